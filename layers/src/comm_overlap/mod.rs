//! TransformerEngine's classes for products that overlap their communication, for who ports C++ code: [`CommOverlap`] and
//! [`CommOverlapP2P`], with the operations that each has there. Layers need neither.
//!
//! What is gathered, and what products multiply, has elements or FP8 codes with one scale ([`Factor`]); results are bf16.
//!
//! Every operation is one fused kernel that waits for counters tile by tile, for every type. So an `atomic_gemm_overlap_*` is the
//! `split_overlap_*` of the same name; both are there for their callers.

mod bulk;
mod factor;
mod p2p;
mod shared;

pub use bulk::{CommOverlap, Destination};
pub use factor::Factor;
pub use p2p::CommOverlapP2P;
pub use shared::Operand;
