//! GPU code that only measurements need: cuBLASLt and NCCL, the baselines, and random numbers that are made and
//! compared on the GPU; and what `doctor` asks beside its safe wrappers.
//!
//! Only this module binds these libraries and launches these kernels.
#![allow(unsafe_code)]

mod blas;
mod elements;
mod fabric;
mod fp8;
mod leave;
mod nccl;
mod numbers;

pub use blas::{Blas, Fused, Matmul, Operands, Problem, Scaled};
pub(crate) use fabric::{Fabric, FabricState};
pub use fp8::Pieces;
#[cfg(test)]
pub(crate) use fp8::Term;
pub(crate) use fp8::{
    Coded, Exactly, Fp8, Got, Matrix, Narrowed, OperandSource, Scale, Share, Terms,
};
pub(crate) use leave::leave;
pub use nccl::Nccl;
pub(crate) use nccl::Parts;
pub(crate) use numbers::{
    Activation, Compare, CompareFused, Difference, Draw, Numbers, off_of_sums,
};
