//! Quantisers: FP8 codes of a tensor and the scales that go with them.
//!
//! A [`ScaleRule`] says how an amax, the largest absolute value of some elements, becomes a scale: as TransformerEngine does
//! it, or as DeepGEMM does, bit for bit. A [`Granularity`] says which elements share one. A [`Plane`] is how scales lie in
//! memory, and its type says which of the layouts in use it is.
//!
//! [`twin`] computes all of it on the host, one element after another, without a GPU:
//!
//! ```
//! use counterflow_codegen::dtype::Dtype;
//! use counterflow_quantise::{Fp8, Matrix, Granularity, Plane, ScaleRule, RowsLast, twin};
//!
//! let x: Vec<f32> = (0..2 * 256).map(|at| at as f32 / 16.0).collect();
//! let x = Matrix::new(&x, [2, 256], Dtype::Bf16);
//! let quantised = twin::quantise(&x, &ScaleRule::transformer_engine(Fp8::E4M3), Granularity::BLOCK_1X128);
//! let plane: Plane<RowsLast> = quantised.plane();
//! assert_eq!((quantised.codes.len(), plane.values().len()), (512, 2 * 4)); // two blocks of K, rows padded to 4
//! ```
//! [`Quantiser`] does the same on a GPU, in the order of a rank's launches, by kernels that the runtime's compiler makes
//! of `kernels/*.cuh`. They are CUDA and not functions of cubecl: its quotients are plain ones, which our compiler's
//! options approximate, so scales would differ in the last bit; it makes whole kernels with headers, not functions for
//! ours; and its packages are more than twice as many as all others here.
//!
//! [`AllReduceNorm`] is an all-reduce with a residual, a norm and such a quantiser behind it, in one kernel.
#![deny(unsafe_code, clippy::undocumented_unsafe_blocks)]

mod all_reduce_norm;
mod builder;
mod emulate;
mod histories;
mod history;
mod job;
mod kernels;
mod launch;
mod plane;
mod quantiser;
pub mod twin;

pub use all_reduce_norm::{AllReduceNorm, AllReduceNormBuilder, AllReduceNormLaunch};
pub use builder::Quantise;
pub use counterflow_codegen::encoding::{Granularity, ScaleBlock};
pub use counterflow_codegen::rule::{Convention, Fp8, Scale, ScaleRule};
pub use histories::{DeviceHistory, Histories};
pub use history::{Delayed, History, Pick};
pub use kernels::{HEADERS, RULE_HEADER, Recipe, SCALE_HEADER, Scaling};
pub use plane::{
    BlocksLast, Layout, OneByBlock, Plane, RowsLast, Square, SquareByColumn, SquareByRow,
    SquarePadded,
};
pub use quantiser::Quantiser;
pub use twin::{Matrix, Quantised};
