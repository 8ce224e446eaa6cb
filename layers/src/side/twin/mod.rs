//! The kernels' twin: plain Rust with the same bits, which emulated ranks run and tests compare with.

mod attention;
mod codes;
mod elements;
mod embedding;
mod loss;
mod norm;
mod numbers;
mod random;

pub use attention::{AttentionShape, attention, attention_backward};
pub use codes::{largest_of_ranks, transposed};
pub use elements::{Activation, dropout, dropout_add, rope};
pub use embedding::{embedding, embedding_backward};
pub use loss::{IGNORED, cross_entropy, cross_entropy_of_parts, cross_entropy_part};
pub(super) use norm::SLABS;
pub use norm::{Affine, AffineGradients, Norm, Normalization, Statistics};
pub use numbers::{exp, ln};
pub use random::{Mask, philox};
