//! Our kernels as candidates, and what a result is made of.

use super::beside::Beside;
use super::task::Set;
use super::variants::Planned;
use counterflow_codegen::dtype::Dtype;
use counterflow_codegen::kernel::{Kernel, OpKind, visit};
use counterflow_codegen::program::{Pick, StoreMode, TensorId, TensorKind};
use counterflow_codegen::rule::Rule;
use counterflow_codegen::shape::Extent;
use counterflow_runtime::gpus::Memory;
use counterflow_runtime::jit::Compiler;
use counterflow_runtime::launch::{Loaded, Tensors};
use counterflow_runtime::{Communicator, Error};
use std::collections::BTreeSet;

/// What a candidate writes on a rank, and where.
pub(super) struct Written<'a> {
    pub memory: &'a Memory,
    pub dtype: Dtype,
    /// Rows of the whole result.
    pub rows: Extent,
    /// Whether those rows are at the start of the memory, whichever they are.
    pub at_front: bool,
    pub holds: Holds,
    /// What stands beside it.
    pub beside: Beside<&'a Memory>,
    /// Where products are codes with scales of their own: those of the result, or those that are added.
    pub codes: Option<Codes>,
}

/// Products as codes with scales of 1×128.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Codes {
    pub rule: Rule,
    /// Numbers in a line of the plane that the launch makes.
    pub pitch: u32,
    /// Rows of a chunk, if the rank that has it adds its own products as they are.
    pub chunk: Option<u32>,
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
    /// All of this rank's product, by others than us.
    pub(super) fn all(
        (memory, dtype): (&'a Memory, Dtype),
        rows: u32,
        beside: Beside<&'a Memory>,
    ) -> Written<'a> {
        Written {
            memory,
            dtype,
            rows: Extent {
                start: 0,
                end: rows,
            },
            at_front: true,
            holds: Holds::Own,
            beside,
            codes: None,
        }
    }

    /// A schedule's kernel's result.
    pub(super) fn of(
        rank: &Communicator,
        planned: &Planned<'_>,
        memory: &'a Memory,
        beside: &'a Beside<Memory>,
    ) -> Written<'a> {
        let (built, plan) = (planned.built, &planned.plan);
        let tensor = built.roles.y;
        let y = &built.kernel.buffers[tensor.index()];
        Written {
            memory,
            dtype: y.dtype,
            rows: plan.geometry.held(y, rank.rank()),
            at_front: y.chunk_only(),
            holds: Holds::of(planned),
            beside: beside.used(built.roles.beside),
            codes: Codes::of(planned),
        }
    }
}

impl Codes {
    /// Those of a schedule's kernel.
    pub(super) fn of(planned: &Planned<'_>) -> Option<Codes> {
        let (built, plan) = (planned.built, &planned.plan);
        let kernel = &built.kernel;
        let variant = &kernel.variant;
        if let (Some(rule), Some(made)) = (variant.output_scales, built.roles.beside.made) {
            let pitch = plan.pitch(kernel, made) / u64::from(Dtype::F32.bytes());
            return Some(Codes {
                rule,
                pitch: pitch as u32,
                chunk: None,
            });
        }
        let rows = kernel.buffers[built.roles.y.index()].rows;
        Some(Codes {
            rule: variant.partial_sums?,
            pitch: 0,
            chunk: adds_others(kernel).then(|| plan.geometry.chunk_rows(rows)),
        })
    }
}

/// Whether what a rank adds of memory is what others stored there.
fn adds_others(kernel: &Kernel) -> bool {
    let mut others = true;
    for role in &kernel.roles {
        visit(&role.body, &mut |op| match &op.kind {
            OpKind::Reduce { from, .. } => others &= from.slot == Some(Pick::Others),
            OpKind::Load { .. }
            | OpKind::Store { .. }
            | OpKind::Dot { .. }
            | OpKind::ForRanks { .. }
            | OpKind::If { .. }
            | OpKind::Wait { .. }
            | OpKind::Signal { .. }
            | OpKind::Copy { .. } => {}
        });
    }
    others
}

/// How often our sums over so many ranks are rounded to the result's type before the last time.
pub(super) fn rounded(kernel: &Kernel, world: u32) -> u32 {
    match (adds_to_sums(kernel), kernel.variant.partial_sums) {
        (true, _) => world,
        (false, None) => 1,
        // Their products are rounded to codes.
        (false, Some(_)) => 0,
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
    own: Option<(Memory, Beside<Memory>)>,
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

    /// Our kernel for the product of this rank alone, with a result of its own, multiplied by so much if it is FP8.
    pub(super) fn alone(
        (rank, compiler): (&Communicator, &Compiler),
        planned: &'a Planned<'a>,
        sets: &[Set],
        given: f32,
    ) -> Result<Ready<'a>, Error> {
        let (kernel, roles) = (&planned.built.kernel, planned.built.roles);
        let y = roles.y;
        let (bytes, in_heap) = Loaded::needs(kernel, &planned.plan, y);
        let own = Memory::new(rank, &kernel.buffers[y.index()].name, bytes, in_heap)?;
        let beside = Beside::new(rank, planned, given)?;
        let place = |set: usize, tensor| match tensor == y {
            true => Some(&own),
            false => (beside.place(roles.beside, tensor))
                .or_else(|| sets[set].alone(planned.built, tensor)),
        };
        let ready = Ready::with((rank, compiler), planned, sets.len(), place)?;
        Ok(Ready {
            own: Some((own, beside)),
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

    pub(super) fn kernel(&self) -> &'a Kernel {
        &self.planned.built.kernel
    }

    pub(super) fn result<'b>(&'b self, rank: &Communicator, set: &'b Set) -> Written<'b> {
        let (memory, beside) = match &self.own {
            Some((memory, beside)) => (memory, beside),
            None => (&set.y, &set.beside),
        };
        Written::of(rank, self.planned, memory, beside)
    }
}
