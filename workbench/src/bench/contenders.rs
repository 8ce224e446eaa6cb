//! Our kernels as candidates.

use super::apart::Apart;
use super::beside::Beside;
use super::room::{Room, What};
use super::task::{Set, Task};
use super::variants::Planned;
use super::written::Written;
use counterflow_codegen::kernel::{Kernel, OpKind, visit};
use counterflow_codegen::program::{StoreMode, TensorId};
use counterflow_runtime::family::Source;
use counterflow_runtime::gpus::Memory;
use counterflow_runtime::jit::Compiler;
use counterflow_runtime::launch::{Loaded, Tensors};
use counterflow_runtime::{Communicator, Error};
use std::collections::BTreeSet;

/// Number of times that our sums over so many ranks are rounded to the result's type before the last time.
pub(super) fn rounded(kernel: &Kernel, world: u32) -> u32 {
    match (adds_to_sums(kernel), kernel.quantised_reduction()) {
        (true, _) => world,
        (false, None) => 1,
        // Their products are rounded to codes.
        (false, Some(_)) => 0,
    }
}

/// True if sums of several ranks' products are stored and then added to: each is rounded on its way. Otherwise products
/// are, and their sum once more.
fn adds_to_sums(kernel: &Kernel) -> bool {
    let mut sums = BTreeSet::new();
    let mut found = false;
    for role in &kernel.roles {
        visit(&role.body, &mut |op| match &op.kind {
            OpKind::Load { acc, from } | OpKind::Reduce { acc, from, .. } => {
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
    /// Description of the result.
    planned: &'a Planned<'a>,
    /// Kernels, one behind the other.
    parts: Vec<Part<'a>>,
    /// Memory that one of them makes for the next.
    _between: Option<Memory>,
    /// The result of a kernel beside the schedule's.
    own: Option<(Memory, Beside<Memory>)>,
}

/// A kernel with its tensors.
struct Part<'a> {
    planned: &'a Planned<'a>,
    loaded: Loaded,
    /// Set by set.
    tensors: Vec<Tensors>,
}

impl<'a> Ready<'a> {
    /// A kernel of the schedule.
    pub(super) fn new(
        rank: &Communicator,
        compiler: Option<&Compiler>,
        planned: &'a Planned<'a>,
        sets: &[Set],
    ) -> Result<Ready<'a>, Error> {
        let place = |set: usize, tensor| sets[set].given(planned.built, tensor);
        Ready::with((rank, compiler), planned, sets.len(), place)
    }

    /// Our kernel for the product of this rank alone, with a result of its own, multiplied by so much if it is FP8.
    pub(super) fn alone(
        (room, compiler): (&Room<'_>, Option<&Compiler>),
        planned: &'a Planned<'a>,
        sets: &[Set],
        given: f32,
    ) -> Result<Ready<'a>, Error> {
        let roles = planned.built.roles;
        let y = roles.y;
        let own = room.take(What::Alone(y))?;
        let beside = planned.beside((room, What::Alone), given)?;
        let place = |set: usize, tensor| match tensor == y {
            true => Some(&own),
            false => (beside.place(roles.beside, tensor))
                .or_else(|| sets[set].alone(planned.built, tensor)),
        };
        let ready = Ready::with((room.rank, compiler), planned, sets.len(), place)?;
        Ok(Ready {
            own: Some((own, beside)),
            ..ready
        })
    }

    /// Several kernels of ours, one behind the other. Their tensors are those of the schedule's kernels, and one of their own.
    pub(super) fn apart(
        (room, compiler): (&Room<'_>, Option<&Compiler>),
        task: &Task<'a>,
        (at, apart): (usize, &'a Apart<'a>),
        sets: &[Set],
    ) -> Result<Ready<'a>, Error> {
        let front = &task.ours[0];
        let between = apart.between().map(|_| room.take(What::Between(at)));
        let between = between.transpose()?;
        let stages = apart.stages.iter().zip(&apart.sources);
        let parts = stages.map(|(planned, sources)| {
            let place = |set: usize, tensor: TensorId| match sources[tensor.index()]? {
                Source::Given(at) => sets[set].given(front.built, TensorId(at as u16)),
                Source::Own => between.as_ref(),
            };
            Part::new((room.rank, compiler), planned, sets.len(), place)
        });
        Ok(Ready {
            planned: front,
            parts: parts.collect::<Result<_, _>>()?,
            _between: between,
            own: None,
        })
    }

    /// A kernel whose tensors are, in so many sets, at those places.
    pub(super) fn with<'m>(
        (rank, compiler): (&Communicator, Option<&Compiler>),
        planned: &'a Planned<'a>,
        sets: usize,
        place: impl Fn(usize, TensorId) -> Option<&'m Memory>,
    ) -> Result<Ready<'a>, Error> {
        Ok(Ready {
            planned,
            parts: vec![Part::new((rank, compiler), planned, sets, place)?],
            _between: None,
            own: None,
        })
    }

    pub(super) fn launch(&self, rank: &Communicator, set: usize) -> Result<(), Error> {
        let mut parts = self.parts.iter().enumerate();
        parts.try_for_each(|(at, part)| part.launch(rank, set, self.parts.get(at + 1)))
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

impl<'a> Part<'a> {
    fn new<'m>(
        (rank, compiler): (&Communicator, Option<&Compiler>),
        planned: &'a Planned<'a>,
        sets: usize,
        place: impl Fn(usize, TensorId) -> Option<&'m Memory>,
    ) -> Result<Part<'a>, Error> {
        let kernel = &planned.built.kernel;
        let (pipeline, series) = (planned.pipeline, &planned.series);
        let loaded = Loaded::load_exchange(rank, compiler, pipeline, series, planned.collective)?;
        // Nothing else in the stream is launched early: cuBLASLt's and our own kernels are ordinary launches.
        let loaded = loaded.pdl_after_foreign_kernels();
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
        Ok(Part {
            planned,
            loaded,
            tensors,
        })
    }

    fn launch(
        &self,
        rank: &Communicator,
        set: usize,
        next: Option<&Part<'_>>,
    ) -> Result<(), Error> {
        let next = next.map(|next| (&next.loaded, &*next.planned.plan));
        self.loaded
            .launch_before(rank, &self.planned.plan, &self.tensors[set], next)
    }
}
