//! A measurement's task, operands and results.

use super::apart::Apart;
use super::beside::Beside;
use super::fused_epilogue::FusedEpilogue;
use super::interleaved::{Exchange, Sustained};
use super::meter::Reading;
use super::room::{Room, What};
use super::unlike;
use super::variants::{Built, Plane, Planned};
use super::written::Written;
use crate::cuda::{Difference, Operands, Scaled};
use crate::suite::Case;
use counterflow_codegen::dtype::Dtype;
use counterflow_codegen::program::TensorId;
use counterflow_codegen::variant::Layout;
use counterflow_runtime::Error;
use counterflow_runtime::gpus::Memory;
use counterflow_runtime::jit::Compiler;

/// Measurement that all ranks make.
pub(super) struct Task<'a> {
    pub case: &'a Case,
    pub dtype: Dtype,
    /// Beside FP8 operands: cuBLASLt with every other kind of scale, too.
    pub every_scale: bool,
    pub layout: Layout,
    /// Kernels of the schedule.
    pub ours: &'a [Planned<'a>],
    /// Plans without the options whose cost is measured, one for each, if there are such options.
    pub plain: &'a [Planned<'a>],
    /// Several kernels each, one behind the other.
    pub apart: &'a [Apart<'a>],
    /// Our kernel for the product on each rank alone.
    pub alone: Option<&'a Planned<'a>>,
    /// None on emulated GPUs.
    pub compiler: Option<&'a Compiler>,
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

    /// True if the result is more than the product, or of another type than its operands. It is then compared with the
    /// epilogue of the unrounded product.
    pub(super) fn fused(&self) -> bool {
        self.epilogue().some() || self.result() != self.dtype
    }

    /// True if results, or products on their way to other ranks, are FP8. They are then compared within the bounds of that.
    pub(super) fn narrows(&self) -> bool {
        let kernel = &self.ours[0].built.kernel;
        self.result().is_fp8() || kernel.quantised_reduction().is_some()
    }

    /// True if results are compared with exact products.
    pub(super) fn is_exact(&self) -> bool {
        self.dtype.is_fp8() || self.narrows()
    }

    /// Each kernel that is loaded. Ours for the product alone stands beside NCCL, too.
    pub(super) fn loaded(&self) -> impl Iterator<Item = &Planned<'_>> {
        let alone = self.alone.into_iter();
        alone
            .clone()
            .chain(alone)
            .chain(self.ours)
            .chain(self.plain)
            .chain(self.apart.iter().flat_map(|apart| &apart.stages))
    }

    /// Factor of FP8 results with a given scale: sums of `k` products of numbers of variance 1 are of the size of its
    /// root, and no one of them is eight times that.
    pub(super) fn given(&self) -> f32 {
        let size = 8.0 * (self.case.size[2] as f32).sqrt();
        self.result().largest() / size
    }

    /// The type of cuBLASLt's results where it has none in FP8, or ours are not.
    pub(super) fn wide(&self) -> Dtype {
        unlike::wide(self.result(), self.dtype)
    }

    /// The types that its results of FP8 operands may have, the nearest to ours first.
    pub(super) fn theirs(&self, kind: Scaled) -> Vec<Dtype> {
        unlike::types(self.result(), self.dtype, kind)
    }

    /// Words behind the name of a peer: what its result in that type lacks of ours, or has instead.
    pub(super) fn lacks(&self, dtype: Dtype) -> String {
        let variant = &self.ours[0].built.kernel.variant;
        unlike::lacks(dtype, self.result(), variant)
    }

    /// The result's type.
    pub(super) fn result(&self) -> Dtype {
        let built = self.ours[0].built;
        built.kernel.buffers[built.roles.y.index()].dtype
    }
}

/// One rank's samples, candidate by candidate: cuBLASLt, our product alone if requested, ours, ours without options, those with
/// NCCL if requested, cuBLASLt with other kinds of scales.
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
    /// Description of cuBLASLt's launch.
    pub baseline: String,
    /// Products of the schedule.
    pub products: u32,
    /// Contenders that communicate by NCCL.
    pub peers: Vec<String>,
    /// The other kinds of scales that cuBLASLt was measured with.
    pub beside: Vec<String>,
    /// Kinds of scales that it has no algorithm for.
    pub absent: Vec<String>,
}

/// One set of operands and results.
pub(super) struct Set {
    /// The left operand and the right one.
    pub operands: [Operand; 2],
    /// The schedule's result.
    pub y: Memory,
    /// Memory beside the result.
    pub beside: Beside<Memory>,
    /// The product of this rank alone, padded to equal shards.
    pub product: Memory,
    /// Memory beside the first product, if that is FP8.
    pub of_product: Beside<Memory>,
    /// Other tensors that the kernels read.
    pub more: Vec<(TensorId, Memory)>,
}

/// An operand of a product.
pub(super) struct Operand {
    /// Memory that the schedule is given.
    pub given: Held,
    /// All of one that is gathered, not fetched from peers.
    pub whole: Option<Held>,
}

/// Elements, with a plane of scales if they have scales.
pub(super) struct Held {
    pub elements: Memory,
    pub scales: Option<Memory>,
}

impl Operand {
    /// All of it.
    pub(super) fn all(&self) -> &Held {
        self.whole.as_ref().unwrap_or(&self.given)
    }
}

impl Held {
    /// Memory of an operand that the schedule's kernels are given.
    pub(super) fn given(room: &Room<'_>, built: &Built, side: usize) -> Result<Held, Error> {
        let place = |tensor| room.take(What::Tensor(tensor));
        Ok(Held {
            elements: place(built.operands()[side])?,
            scales: built.scales(side).map(place).transpose()?,
        })
    }

    /// Elements of the operand, or their scales.
    pub(super) fn plane(&self, plane: Plane) -> Option<&Memory> {
        match plane {
            Plane::Elements => Some(&self.elements),
            Plane::Scales => self.scales.as_ref(),
        }
    }
}

impl Set {
    /// One with these operands, and memory for results.
    pub(super) fn new(
        room: &Room<'_>,
        task: &Task<'_>,
        operands: [Operand; 2],
    ) -> Result<Set, Error> {
        let first = &task.ours[0];
        let roles = first.built.roles;
        // cuBLASLt's results are FP8 only of FP8 operands.
        let narrow = task.dtype.is_fp8() && task.result().is_fp8();
        let more = roles.epilogue.operands();
        let more = more.map(|tensor| Ok((tensor, room.take(What::Tensor(tensor))?)));
        Ok(Set {
            operands,
            y: room.take(What::Tensor(roles.y))?,
            beside: first.beside((room, What::Tensor), task.given())?,
            product: room.take(What::Product)?,
            of_product: match narrow {
                true => {
                    let amax = roles.beside.amax.is_some();
                    Beside::of_theirs(room.rank, task.given(), amax)?
                }
                false => Beside::NOTHING,
            },
            more: more.collect::<Result<_, Error>>()?,
        })
    }

    /// cuBLASLt's product of this rank alone, of operands without scales.
    pub(super) fn of_product(&self) -> Operands {
        let [x, w] = [0, 1].map(|side| self.operands[side].all().elements.address());
        Operands {
            x,
            w,
            c: None,
            y: self.product.address(),
            scales: [None; 2],
            of_result: [None; 2],
        }
    }

    /// cuBLASLt's product of so many rows, as a result in that type.
    pub(super) fn theirs(&self, dtype: Dtype, rows: u32) -> Written<'_> {
        let beside = match dtype.is_fp8() {
            true => self.of_product.each(),
            false => Beside::NOTHING,
        };
        Written::all((&self.product, dtype), rows, beside)
    }

    /// A tensor of the schedule's kernel.
    pub(super) fn given(&self, built: &Built, tensor: TensorId) -> Option<&Memory> {
        match built.operand(tensor) {
            Some((side, plane)) => self.operands[side].given.plane(plane),
            None if tensor == built.roles.y => Some(&self.y),
            None => (self.beside.place(built.roles.beside, tensor)).or_else(|| self.more(tensor)),
        }
    }

    /// An operand of our kernel for the product alone.
    pub(super) fn alone(&self, built: &Built, tensor: TensorId) -> Option<&Memory> {
        let (side, plane) = built.operand(tensor)?;
        self.operands[side].all().plane(plane)
    }

    /// The memory of a tensor that is not an operand of the product.
    pub(super) fn more(&self, tensor: TensorId) -> Option<&Memory> {
        let mut more = self.more.iter();
        more.find(|(held, _)| *held == tensor)
            .map(|(_, memory)| memory)
    }
}
