//! A measurement's task, operands and results.

use super::fused_epilogue::FusedEpilogue;
use super::interleaved::{Exchange, Sustained};
use super::meter::Reading;
use super::variants::Planned;
use crate::cuda::{Difference, Operands};
use crate::suite::Case;
use counterflow_codegen::dtype::Dtype;
use counterflow_codegen::program::TensorId;
use counterflow_codegen::variant::Layout;
use counterflow_runtime::gpus::Memory;
use counterflow_runtime::jit::Compiler;

/// What all ranks measure.
pub(super) struct Task<'a> {
    pub case: &'a Case,
    pub dtype: Dtype,
    /// Beside FP8 operands: cuBLASLt with every other kind of scale, too.
    pub every_scale: bool,
    pub layout: Layout,
    /// Kernels of the schedule.
    pub ours: &'a [Planned<'a>],
    /// Our kernel for the product on each rank alone.
    pub alone: Option<&'a Planned<'a>>,
    pub compiler: &'a Compiler,
    pub samples: usize,
    /// Seconds of warm-up.
    pub warm: f64,
    /// Seconds for everything, if limited: then less warm-up and fewer samples.
    pub budget: Option<f64>,
    /// Seconds of each candidate's back-to-back run, if any.
    pub sustained: Option<f64>,
    pub seed: u64,
    pub exchange: &'a Exchange,
}

impl Task<'_> {
    /// The epilogue.
    pub(super) fn epilogue(&self) -> FusedEpilogue {
        self.ours[0].built.roles.epilogue
    }

    /// Whether the result is more than the product, or of another type than its operands. It is then compared with the
    /// epilogue of the unrounded product.
    pub(super) fn fused(&self) -> bool {
        self.epilogue().some() || self.result() != self.dtype
    }

    /// The result's type.
    pub(super) fn result(&self) -> Dtype {
        let built = self.ours[0].built;
        built.kernel.buffers[built.roles.y.index()].dtype
    }
}

/// One rank's samples, candidate by candidate: cuBLASLt, our product alone if requested, ours, NCCL's if requested, cuBLASLt
/// with other kinds of scales.
#[derive(Default)]
pub(super) struct Measured {
    /// Seconds per launch, sample by sample.
    pub seconds: Vec<Vec<f64>>,
    /// Differences from cuBLASLt. The first is cuBLASLt itself.
    pub differences: Vec<Difference>,
    /// Launches in a sample.
    pub launches: Vec<u32>,
    pub reading: Option<Reading>,
    /// Back to back.
    pub sustained: Vec<Sustained>,
    /// Algorithms of cuBLASLt that were tried.
    pub algorithms: usize,
    /// What cuBLASLt did.
    pub baseline: String,
    /// Products of the schedule.
    pub products: u32,
    /// The other kinds of scales that cuBLASLt was measured with.
    pub beside: Vec<String>,
    /// Those that it has no algorithm for.
    pub absent: Vec<String>,
}

/// One set of operands and results.
pub(super) struct Set {
    /// The schedule's own.
    pub x: Memory,
    pub w: Memory,
    pub y: Memory,
    /// All rows of a gathered `x`, not fetched from peers.
    pub whole: Option<Memory>,
    /// The product of this rank alone, padded to equal chunks.
    pub product: Memory,
    /// Other tensors that the kernels read.
    pub more: Vec<(TensorId, Memory)>,
}

impl Set {
    pub(super) fn operands(&self) -> Operands {
        Operands {
            x: self.whole.as_ref().unwrap_or(&self.x).address(),
            w: self.w.address(),
            c: None,
            y: self.product.address(),
            scales: [None; 2],
        }
    }

    /// The memory of a tensor that is not an operand of the product.
    pub(super) fn more(&self, tensor: TensorId) -> Option<&Memory> {
        let mut more = self.more.iter();
        more.find(|(held, _)| *held == tensor)
            .map(|(_, memory)| memory)
    }
}
