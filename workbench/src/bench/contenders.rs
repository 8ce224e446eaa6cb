//! The candidates beside cuBLASLt: our kernels, and NCCL before or after cuBLASLt.

use super::task::{Set, Task};
use super::variants::Planned;
use crate::cuda::{Matmul, Nccl, Operands};
use counterflow_codegen::dtype::Dtype;
use counterflow_codegen::kernel::Kernel;
use counterflow_codegen::plan::Plan;
use counterflow_codegen::program::{TensorId, TensorKind};
use counterflow_codegen::shape::Extent;
use counterflow_runtime::gpus::Memory;
use counterflow_runtime::jit::Compiler;
use counterflow_runtime::launch::{Loaded, Tensors};
use counterflow_runtime::{Communicator, Error};

/// What a candidate writes on a rank, and where.
pub(super) struct Written<'a> {
    pub memory: &'a Memory,
    /// Rows of the whole result.
    pub rows: Extent,
    /// Whether those rows are at the start of the memory, whichever they are.
    pub at_front: bool,
    pub holds: Holds,
}

/// What a result is made of.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Holds {
    /// This rank's product.
    Own,
    /// The sum of all ranks' products.
    Sum,
    /// All ranks' products, in a slot for each of so many rows.
    Each { slot: u32 },
}

impl Holds {
    pub(super) fn of(kernel: &Kernel, plan: &Plan, y: TensorId) -> Holds {
        let buffer = &kernel.buffers[y.index()];
        match buffer.kind {
            TensorKind::Scattered | TensorKind::Reduced => Holds::Sum,
            TensorKind::Exchanged => Holds::Each {
                slot: plan.geometry.chunk_rows(buffer.rows),
            },
            TensorKind::Gathered
            | TensorKind::Local
            | TensorKind::Vector
            | TensorKind::Scale { .. }
            | TensorKind::Out
            | TensorKind::Accumulated
            | TensorKind::Amax { .. }
            | TensorKind::GatheredOutput
            | TensorKind::Scratch { .. } => Holds::Own,
        }
    }
}

impl<'a> Written<'a> {
    /// A schedule's kernel's result.
    fn of(rank: &Communicator, planned: &Planned<'_>, memory: &'a Memory) -> Written<'a> {
        let (kernel, plan) = (&planned.built.kernel, &planned.plan);
        let tensor = planned.built.roles.y;
        let y = &kernel.buffers[tensor.index()];
        Written {
            memory,
            rows: plan.geometry.held(y, rank.rank()),
            at_front: y.chunk_only(),
            holds: Holds::of(kernel, plan, tensor),
        }
    }
}

/// One of our kernels with all it needs on a rank.
pub(super) struct Ready<'a> {
    planned: &'a Planned<'a>,
    loaded: Loaded,
    /// Set by set.
    tensors: Vec<Tensors>,
    /// A kernel beside the schedule's has its own result.
    mine: Vec<(TensorId, Memory)>,
}

impl<'a> Ready<'a> {
    pub(super) fn new(
        rank: &Communicator,
        compiler: &Compiler,
        planned: &'a Planned<'a>,
        sets: &[Set],
        alone: bool,
    ) -> Result<Ready<'a>, Error> {
        let (kernel, roles) = (&planned.built.kernel, planned.built.roles);
        let loaded = Loaded::load(rank, compiler, planned.pipeline, &planned.series)?;
        // Nothing else in the stream is launched early: cuBLASLt's and our own kernels are ordinary launches.
        let loaded = loaded.early_after_foreign_kernels();
        let mut tensors = vec![Tensors::new(); sets.len()];
        let mut mine = Vec::new();
        for index in 0..kernel.buffers.len() {
            let tensor = TensorId(index as u16);
            let (bytes, in_heap) = Loaded::needs(kernel, &planned.plan, tensor);
            if kernel.buffers[index].is_scratch() {
                continue;
            }
            let own = tensor == roles.y && alone;
            if own {
                let name = &kernel.buffers[index].name;
                mine.push((tensor, Memory::new(rank, name, bytes, in_heap)?));
            }
            for (set, tensors) in sets.iter().zip(&mut tensors) {
                let own = mine.last().filter(|(held, _)| *held == tensor);
                let more = if alone { None } else { set.more(tensor) };
                let memory = match own.map(|(_, own)| own).or(more) {
                    Some(own) => own,
                    None if tensor == roles.w => &set.w,
                    None if tensor == roles.y => &set.y,
                    None if alone => set.whole.as_ref().unwrap_or(&set.x),
                    None => &set.x,
                };
                memory.hold(tensor, bytes, tensors);
            }
        }
        Ok(Ready {
            planned,
            loaded,
            tensors,
            mine,
        })
    }

    pub(super) fn launch(&self, rank: &Communicator, set: usize) -> Result<(), Error> {
        self.loaded
            .launch(rank, &self.planned.plan, &self.tensors[set])
    }

    pub(super) fn result<'b>(&'b self, rank: &Communicator, set: &'b Set) -> Written<'b> {
        let y = self.planned.built.roles.y;
        let own = self.mine.iter().find(|(held, _)| *held == y);
        Written::of(rank, self.planned, own.map_or(&set.y, |(_, own)| own))
    }
}

/// NCCL communicates and cuBLASLt multiplies, one after the other.
pub(super) struct Peer<'a> {
    nccl: &'a Nccl,
    product: &'a Matmul<'a>,
    sets: &'a [Set],
    /// The schedule that does the same.
    like: &'a Planned<'a>,
    dtype: Dtype,
    rank: u32,
    world: u32,
    /// Rows of a rank's chunk, and elements of each row that moves.
    moved: [u64; 2],
    how: How,
}

/// What NCCL does.
#[derive(Clone, Copy, PartialEq, Eq)]
enum How {
    Gather,
    Scatter,
    Reduce,
    Exchange,
}

impl<'a> Peer<'a> {
    pub(super) fn new(
        rank: &Communicator,
        nccl: &'a Nccl,
        product: &'a Matmul<'a>,
        task: &'a Task<'a>,
        sets: &'a [Set],
    ) -> Peer<'a> {
        let like = &task.ours[0];
        let [m, n, k] = task.case.size.map(u64::from);
        let y = like.built.kernel.buffers[like.built.roles.y.index()].kind;
        let (how, columns) = match y {
            TensorKind::Scattered => (How::Scatter, n),
            TensorKind::Reduced => (How::Reduce, n),
            TensorKind::Exchanged => (How::Exchange, n),
            TensorKind::Gathered
            | TensorKind::Local
            | TensorKind::Vector
            | TensorKind::Scale { .. }
            | TensorKind::Out
            | TensorKind::Accumulated
            | TensorKind::Amax { .. }
            | TensorKind::GatheredOutput
            | TensorKind::Scratch { .. } => (How::Gather, k),
        };
        Peer {
            nccl,
            product,
            sets,
            like,
            dtype: task.dtype,
            rank: rank.rank(),
            world: rank.world(),
            moved: [m.div_ceil(u64::from(rank.world())), columns],
            how,
        }
    }

    pub(super) fn launch(&self, set: usize) -> Result<(), Error> {
        let set = &self.sets[set];
        let [rows, columns] = self.moved;
        let count = rows * columns;
        let y = set.y.address();
        match self.how {
            How::Gather => {
                let x = set.x.address();
                let own = u64::from(self.rank) * count * u64::from(self.dtype.bytes());
                self.nccl.all_gather(x.plus(own), x, count, self.dtype)?;
                let w = set.w.address();
                self.product.run(&Operands {
                    x,
                    w,
                    y,
                    ..set.operands()
                })
            }
            How::Scatter => {
                self.product.run(&set.operands())?;
                let product = set.product.address();
                self.nccl.reduce_scatter(product, y, count, self.dtype)
            }
            How::Reduce => {
                self.product.run(&set.operands())?;
                let all = u64::from(self.like.plan.shape.m) * columns;
                let product = set.product.address();
                self.nccl.all_reduce(product, y, all, self.dtype)
            }
            How::Exchange => {
                self.product.run(&set.operands())?;
                let product = set.product.address();
                let each = (count, self.world);
                self.nccl.all_to_all(product, y, each, self.dtype)
            }
        }
    }

    pub(super) fn result<'b>(&self, rank: &Communicator, set: &'b Set) -> Written<'b> {
        Written::of(rank, self.like, &set.y)
    }
}
