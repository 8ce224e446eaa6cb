//! Our kernels as candidates, and what a result is made of.

use super::task::Set;
use super::variants::Planned;
use counterflow_codegen::kernel::{Kernel, OpKind, visit};
use counterflow_codegen::program::{StoreMode, TensorId, TensorKind};
use counterflow_codegen::shape::Extent;
use counterflow_runtime::gpus::Memory;
use counterflow_runtime::jit::Compiler;
use counterflow_runtime::launch::{Loaded, Tensors};
use counterflow_runtime::{Communicator, Error};
use std::collections::BTreeSet;

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
    pub(super) fn of(planned: &Planned<'_>) -> Holds {
        let (plan, y) = (&planned.plan, planned.built.roles.y);
        let buffer = &planned.built.kernel.buffers[y.index()];
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
            | TensorKind::MadeScale { .. }
            | TensorKind::GatheredOutput
            | TensorKind::Scratch { .. } => Holds::Own,
        }
    }
}

impl<'a> Written<'a> {
    /// All of this rank's product.
    pub(super) fn all(memory: &'a Memory, rows: u32) -> Written<'a> {
        Written {
            memory,
            rows: Extent {
                start: 0,
                end: rows,
            },
            at_front: true,
            holds: Holds::Own,
        }
    }

    /// A schedule's kernel's result.
    pub(super) fn of(
        rank: &Communicator,
        planned: &Planned<'_>,
        memory: &'a Memory,
    ) -> Written<'a> {
        let (kernel, plan) = (&planned.built.kernel, &planned.plan);
        let tensor = planned.built.roles.y;
        let y = &kernel.buffers[tensor.index()];
        Written {
            memory,
            rows: plan.geometry.held(y, rank.rank()),
            at_front: y.chunk_only(),
            holds: Holds::of(planned),
        }
    }
}

/// How often our sums over so many ranks are rounded to the result's type before the last time.
pub(super) fn rounded(kernel: &Kernel, world: u32) -> u32 {
    match adds_to_sums(kernel) {
        true => world,
        false => 1,
    }
}

/// Whether sums of several ranks' products are stored and then added to: each is rounded on its way. Otherwise products
/// are, and their sum once more.
fn adds_to_sums(kernel: &Kernel) -> bool {
    let mut sums = BTreeSet::new();
    let mut found = false;
    for role in &kernel.roles {
        visit(&role.body, &mut |op| match &op.kind {
            OpKind::Load { acc, from } | OpKind::Reduce { acc, from } => {
                if kernel.buffers[from.buffer.index()].is_scratch() {
                    sums.insert(*acc);
                }
            }
            OpKind::Store { mode, .. } => found |= *mode == StoreMode::Add,
            OpKind::Dot { .. }
            | OpKind::ForRanks { .. }
            | OpKind::If { .. }
            | OpKind::Wait { .. }
            | OpKind::Signal { .. }
            | OpKind::Copy { .. } => {}
        });
    }
    for role in &kernel.roles {
        visit(&role.body, &mut |op| match &op.kind {
            OpKind::Store { dst, value, .. } => {
                let value = &kernel.values[usize::from(value.0)];
                let adds = value.accs().iter().any(|acc| sums.contains(acc));
                found |= adds && kernel.buffers[dst.buffer.index()].is_scratch();
            }
            OpKind::Load { .. }
            | OpKind::Reduce { .. }
            | OpKind::Dot { .. }
            | OpKind::ForRanks { .. }
            | OpKind::If { .. }
            | OpKind::Wait { .. }
            | OpKind::Signal { .. }
            | OpKind::Copy { .. } => {}
        });
    }
    found
}

/// One of our kernels with all it needs on a rank.
pub(super) struct Ready<'a> {
    planned: &'a Planned<'a>,
    loaded: Loaded,
    /// Set by set.
    tensors: Vec<Tensors>,
    /// The result of a kernel beside the schedule's.
    own: Option<Memory>,
}

impl<'a> Ready<'a> {
    /// A kernel of the schedule.
    pub(super) fn new(
        rank: &Communicator,
        compiler: &Compiler,
        planned: &'a Planned<'a>,
        sets: &[Set],
    ) -> Result<Ready<'a>, Error> {
        let place = |set: usize, tensor| sets[set].given(planned.built, tensor);
        Ready::with((rank, compiler), planned, sets.len(), place)
    }

    /// Our kernel for the product of this rank alone, with a result of its own.
    pub(super) fn alone(
        rank: &Communicator,
        compiler: &Compiler,
        planned: &'a Planned<'a>,
        sets: &[Set],
    ) -> Result<Ready<'a>, Error> {
        let (kernel, y) = (&planned.built.kernel, planned.built.roles.y);
        let (bytes, in_heap) = Loaded::needs(kernel, &planned.plan, y);
        let own = Memory::new(rank, &kernel.buffers[y.index()].name, bytes, in_heap)?;
        let place = |set: usize, tensor| match tensor == y {
            true => Some(&own),
            false => sets[set].alone(planned.built, tensor),
        };
        let ready = Ready::with((rank, compiler), planned, sets.len(), place)?;
        Ok(Ready {
            own: Some(own),
            ..ready
        })
    }

    /// A kernel whose tensors are, in so many sets, at those places.
    pub(super) fn with<'m>(
        (rank, compiler): (&Communicator, &Compiler),
        planned: &'a Planned<'a>,
        sets: usize,
        place: impl Fn(usize, TensorId) -> Option<&'m Memory>,
    ) -> Result<Ready<'a>, Error> {
        let kernel = &planned.built.kernel;
        let loaded = Loaded::load(rank, compiler, planned.pipeline, &planned.series)?;
        // Nothing else in the stream is launched early: cuBLASLt's and our own kernels are ordinary launches.
        let loaded = loaded.early_after_foreign_kernels();
        let mut tensors = vec![Tensors::new(); sets];
        for (set, tensors) in tensors.iter_mut().enumerate() {
            for index in 0..kernel.buffers.len() {
                let tensor = TensorId(index as u16);
                // Scratch is the kernel's own.
                if let Some(memory) = place(set, tensor) {
                    let (bytes, _) = Loaded::needs(kernel, &planned.plan, tensor);
                    memory.hold(tensor, bytes, tensors);
                }
            }
        }
        Ok(Ready {
            planned,
            loaded,
            tensors,
            own: None,
        })
    }

    pub(super) fn launch(&self, rank: &Communicator, set: usize) -> Result<(), Error> {
        self.loaded
            .launch(rank, &self.planned.plan, &self.tensors[set])
    }

    pub(super) fn result<'b>(&'b self, rank: &Communicator, set: &'b Set) -> Written<'b> {
        Written::of(rank, self.planned, self.own.as_ref().unwrap_or(&set.y))
    }
}
