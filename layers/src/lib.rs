//! Tensor-parallel layers whose communication is fused with their products, over the public API of [`counterflow`] alone.
//!
//! [`overlap`] says how each product of a layer overlaps its communication, as TransformerEngine's users know it. [`Userbuffers`]
//! is what the layers of a group share. [`Linear`], [`LayerNormLinear`], [`LayerNormMlp`], [`MultiheadAttention`] and
//! [`TransformerLayer`] are its layers: forward and backward, without an autograd of their own. [`side`] has the kernels between their
//! products.
//!
//! ```
//! use counterflow::{Communicator, Error, prelude::bf16};
//! use counterflow_layers::overlap::{Config, Flags};
//! use counterflow_layers::{Gradients, Initialize, Linear, LinearConfig, Parameters, Userbuffers};
//! use std::sync::Arc;
//!
//! fn of_rank(rank: &Arc<Communicator>) -> Result<(), Error> {
//!     let (rows, hidden) = (64, 32); // at most; over all ranks
//!     let config = Config::from_yaml("fc1_fprop: {method: ring_exchange, use_ce: 0, num_sm: 4}")?;
//!     let arguments = Initialize { ub_cfgs: vec![config], ..Initialize::new([rows, hidden], rank.world()) };
//!     rank.reserve(arguments.heap_bytes() + (8 << 20))?; // and some for the layers' ops
//!     let userbuffers = Userbuffers::initialize(rank, &arguments)?;
//!     let fc1 = LinearConfig {
//!         ub_name: Some("fc1".into()),
//!         flags: Flags { ub_overlap_ag: true, ub_bulk_dgrad: true, ub_bulk_wgrad: true, ..Flags::default() },
//!         ..LinearConfig::column(hidden, 4 * hidden)
//!     };
//!     let fc1 = Linear::new(&userbuffers, &fc1)?;
//!
//!     let weight = rank.zeros::<bf16>(fc1.weight_shape())?;
//!     let mut gradient = rank.zeros::<f32>(fc1.weight_shape())?; // gradients are added to it
//!     let parameters = Parameters { weight: &weight, bias: None };
//!     for rows in [64, 7] {
//!         let (x, mut y) = (rank.zeros(fc1.input_shape(rows))?, rank.zeros(fc1.output_shape(rows))?);
//!         let saved = fc1.forward(rows, &x, &parameters, &mut y)?;
//!         let (dy, mut dx) = (rank.zeros(fc1.output_shape(rows))?, rank.zeros(fc1.input_shape(rows))?);
//!         let gradients = Gradients { weight: Some(&mut gradient), bias: None };
//!         fc1.backward(saved, &parameters, &dy, &mut dx, gradients)?;
//!     }
//!     rank.synchronize()
//! }
//!
//! let ranks: Vec<_> = Communicator::emulated(2)?.into_iter().map(Arc::new).collect();
//! std::thread::scope(|scope| {
//!     let threads: Vec<_> = ranks.iter().map(|rank| scope.spawn(move || of_rank(rank))).collect();
//!     threads.into_iter().try_for_each(|thread| thread.join().expect("no panic"))
//! })
//! # ?;
//! # Ok::<(), Error>(())
//! ```
#![deny(unsafe_code, clippy::undocumented_unsafe_blocks)]

mod attention;
mod autocast;
mod comm_overlap;
mod cross_entropy;
mod embedding;
mod fp8;
mod gradient_sum;
mod layer_norm_linear;
mod layer_norm_mlp;
mod linear;
pub mod overlap;
mod random;
pub mod schedules;
mod scratch;
pub mod side;
mod step;
mod transformer_layer;
mod userbuffers;

pub use attention::{
    CoreAttention, MultiheadAttention, MultiheadAttentionConfig, MultiheadAttentionGradients,
    MultiheadAttentionParameters, MultiheadAttentionSaved, Rope,
};
pub use autocast::Autocast;
pub use comm_overlap::{CommOverlap, CommOverlapP2P, Destination, Factor, Operand};
pub use cross_entropy::VocabParallelCrossEntropy;
pub use embedding::VocabParallelEmbedding;
pub use fp8::{
    AmaxComputeAlgo, DelayedScaling, Float8BlockScaling, Float8CurrentScaling, Format, Recipe,
};
pub use gradient_sum::GradientSum;
pub use layer_norm_linear::{
    LayerNormLinear, LayerNormLinearConfig, LayerNormLinearGradients, LayerNormLinearParameters,
    LayerNormLinearSaved,
};
pub use layer_norm_mlp::{
    LayerNormMlp, LayerNormMlpConfig, LayerNormMlpGradients, LayerNormMlpParameters,
    LayerNormMlpSaved,
};
pub use linear::{
    GradientPlace, Gradients, Linear, LinearConfig, OutputGradient, Parameters, Product, Saved,
};
pub use random::{RngState, RngTracker};
pub use side::twin::{Activation, Affine, AffineGradients, Norm, Normalization, Statistics};
pub use transformer_layer::{
    TransformerLayer, TransformerLayerConfig, TransformerLayerGradients,
    TransformerLayerParameters, TransformerLayerSaved,
};
pub use userbuffers::{BootstrapBackend, Initialize, QuantizationMode, Userbuffers};

/// The page for who comes from TransformerEngine: its program is compiled and run.
#[cfg(doctest)]
#[doc = include_str!("../../docs/transformer-engine.md")]
struct ComingFromTransformerEngine;
