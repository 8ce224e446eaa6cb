//! What measurements need of a GPU and no schedule does: cuBLASLt and NCCL, which ours are compared with, and random
//! numbers made and compared there.
//!
//! The libraries are bound and our kernels for them launched here and nowhere else in this crate.
#![allow(unsafe_code)]

mod blas;
mod elements;
mod nccl;
mod numbers;

pub(crate) use blas::{Blas, Fused, Operands, Problem, Product};
pub(crate) use nccl::Nccl;
pub(crate) use numbers::{Activation, Compare, CompareFused, Difference, Draw, Numbers};
