//! What the ranks are to measure of a product, with which operands, and what comes of it.

use super::after::After;
use super::meter::Reading;
use super::turns::{Exchange, Sustained};
use super::variants::Planned;
use crate::cuda::{Difference, Operands};
use crate::suite::Case;
use counterflow_codegen::dtype::Dtype;
use counterflow_codegen::program::TensorId;
use counterflow_codegen::variant::Layout;
use counterflow_runtime::gpus::Memory;
use counterflow_runtime::jit::Compiler;

/// What all ranks are to do.
pub(super) struct Task<'a> {
    pub case: &'a Case,
    pub dtype: Dtype,
    pub layout: Layout,
    /// Kernels of the schedule.
    pub ours: &'a [Planned<'a>],
    /// The product on each rank by itself, by a kernel of ours.
    pub alone: Option<&'a Planned<'a>>,
    pub compiler: &'a Compiler,
    pub samples: usize,
    /// Seconds of turns before them.
    pub warm: f64,
    /// Seconds for all of it, if they are limited: then fewer turns and samples.
    pub budget: Option<f64>,
    /// Seconds of each contender back to back, besides.
    pub sustained: Option<f64>,
    pub seed: u64,
    pub exchange: &'a Exchange,
}

impl Task<'_> {
    /// What becomes of the product.
    pub(super) fn after(&self) -> After {
        self.ours[0].built.roles.after
    }

    /// Whether the result is more than the product, or of another type than its operands: then it is compared with
    /// what becomes of the unrounded product.
    pub(super) fn fused(&self) -> bool {
        self.after().some() || self.result() != self.dtype
    }

    /// The result's type.
    pub(super) fn result(&self) -> Dtype {
        let built = self.ours[0].built;
        built.kernel.buffers[built.roles.y.index()].dtype
    }
}

/// What one rank measured, contender by contender: cuBLASLt, ours alone if asked for, ours, NCCL's if asked for.
pub(super) struct Measured {
    /// Seconds a launch, sample by sample.
    pub seconds: Vec<Vec<f64>>,
    /// How ours differ from cuBLASLt; the first is cuBLASLt itself.
    pub differences: Vec<Difference>,
    /// Launches in a sample.
    pub launches: Vec<u32>,
    pub reading: Option<Reading>,
    /// Back to back.
    pub sustained: Vec<Sustained>,
    /// Algorithms of cuBLASLt that were tried.
    pub algorithms: usize,
    /// What cuBLASLt did.
    pub yardstick: String,
}

/// One set of operands and results.
pub(super) struct Set {
    /// The schedule's own.
    pub x: Memory,
    pub w: Memory,
    pub y: Memory,
    /// All rows of a gathered `x`, not by way of a peer.
    pub whole: Option<Memory>,
    /// The product of this rank alone, with room for equal chunks.
    pub product: Memory,
    /// What else the kernels read.
    pub more: Vec<(TensorId, Memory)>,
}

impl Set {
    pub(super) fn operands(&self) -> Operands {
        Operands {
            x: self.whole.as_ref().unwrap_or(&self.x).address(),
            w: self.w.address(),
            c: None,
            y: self.product.address(),
        }
    }

    /// The memory of a tensor that is no operand of the product.
    pub(super) fn more(&self, tensor: TensorId) -> Option<&Memory> {
        let mut more = self.more.iter();
        more.find(|(held, _)| *held == tensor)
            .map(|(_, memory)| memory)
    }
}
