//! Side kernels: what a layer does between its products. Norms, activations, sums with dropout, rotary positions, attention,
//! embeddings and cross-entropy, each with its gradient; norms and activations that quantise what they give; FP8 codes on their side, and amaxes over ranks.
//!
//! Each is CUDA text (`kernels/*.cuh`), which the JIT compiles and caches, and a [`twin`] in plain Rust, which emulated ranks run: both
//! have the same bits. Launches are in the order of the rank's own ([`Communicator::stream`](counterflow::Communicator::stream)), take
//! tensors and user buffers, and wait for nobody. A row has a multiple of 8 elements.

mod attention;
mod coded_elements;
mod coded_norm;
mod codes;
mod elements;
mod embedding;
mod launch;
mod loss;
mod norm;
mod rope;
pub mod twin;

pub use attention::{AttentionKernels, attention_text};
pub use coded_elements::{CodedElementKernels, coded_elements_text};
pub use coded_norm::{CodedNormKernels, coded_norm_text};
pub use codes::{CodeKernels, codes_text};
pub use elements::{ElementKernels, elements_text};
pub use embedding::{EmbeddingKernels, embedding_text};
pub use launch::HEADERS;
pub use loss::{LossKernels, loss_text};
pub(crate) use norm::eights;
pub use norm::{NormKernels, norm_text};
pub use rope::{RopeKernels, rope_text};
