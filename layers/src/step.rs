//! An op that a layer launches, before it is built.

use counterflow::Setting;
use counterflow::family::Family;
use counterflow::op::Workspace;
use counterflow::rule::Fp8;
use counterflow::{Communicator, Dtype, Error, Layout, Op, OpBuilder, Program, Scales, Shape};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Work of a step: one schedule, or the fastest one of a family.
#[derive(Clone, Debug)]
pub(crate) enum Work {
    Schedule(Program),
    Family(Family),
}

impl From<Program> for Work {
    fn from(program: Program) -> Work {
        Work::Schedule(program)
    }
}

/// A schedule with its layout, its largest launch and the choices that settings make.
#[derive(Clone, Debug)]
pub(crate) struct Step {
    pub work: Work,
    pub layout: Layout,
    pub shape: Shape,
    pub choices: Vec<(&'static str, Setting)>,
    /// FP8 operands.
    pub coded: Option<CodedStep>,
    /// SMs that are left to others.
    pub margin: u32,
    /// Elements of another type than the schedule's.
    pub dtype: Option<Dtype>,
}

/// The FP8 operands of a product.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CodedStep {
    /// Types of the first and second operand's codes.
    pub codes: [Fp8; 2],
    pub scales: Scales,
    /// True if sums are promoted to f32 every 128 of their depth.
    pub promote: bool,
}

/// Codes in a row of memory are a multiple of this.
pub(crate) const CODES: usize = 16;

/// Blocks of 128 elements, of which the last may be short.
pub(crate) fn blocks(elements: usize) -> usize {
    elements.div_ceil(128)
}

/// What `make` builds and loads. All ranks meet before it, so that all have enqueued what kernels of their peers wait for, and behind it,
/// so that nobody enqueues more before all have loaded. A load may wait for the kernels of its GPU, and other threads of the process for
/// it. Collective.
pub(crate) fn together<T>(
    rank: &Communicator,
    make: impl FnOnce() -> Result<T, Error>,
) -> Result<T, Error> {
    rank.barrier()?;
    let made = make()?;
    rank.barrier()?;
    Ok(made)
}

/// Proves and compiles side by side, on this rank, what is built one after another later. A step that cannot be says so then. An emulated
/// rank does neither unless it fills a cache for GPUs, as [`OpBuilder::compile_ahead`] says.
pub(crate) fn compile_ahead<'s>(rank: &Communicator, steps: impl IntoIterator<Item = &'s Step>) {
    let steps: Vec<&Step> = steps.into_iter().collect();
    let next = AtomicUsize::new(0);
    let work = || {
        while let Some(step) = steps.get(next.fetch_add(1, Ordering::Relaxed)) {
            drop(step.builder(rank).compile_ahead());
        }
    };
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..cores.min(steps.len()) {
            scope.spawn(work);
        }
    });
}

/// The shape of a product. A size that does not fit is refused as too large when the op is built.
pub(crate) fn shape(m: usize, n: usize, k: usize) -> Shape {
    Shape::new(size(m), size(n), size(k))
}

pub(crate) fn size(of: usize) -> u32 {
    u32::try_from(of).unwrap_or(u32::MAX)
}

impl Step {
    pub fn new(work: impl Into<Work>, layout: Layout, shape: Shape) -> Step {
        Step {
            work: work.into(),
            layout,
            shape,
            choices: Vec::new(),
            coded: None,
            margin: 0,
            dtype: None,
        }
    }

    /// With elements of that type.
    pub fn of(mut self, dtype: Dtype) -> Step {
        self.dtype = Some(dtype);
        self
    }

    /// Leaves so many SMs to others.
    pub fn margin(mut self, sms: u32) -> Step {
        self.margin = sms;
        self
    }

    fn builder<'a>(&'a self, rank: &'a Communicator) -> OpBuilder<'a> {
        let builder = match &self.work {
            Work::Schedule(program) => rank.op(program),
            Work::Family(family) => rank.family(family),
        };
        let choices = self.choices.iter();
        let builder = choices.fold(builder.layout(self.layout), |builder, (name, setting)| {
            builder.set(name, *setting)
        });
        let builder = builder.shape(self.shape.clone()).sm_margin(self.margin);
        let builder = match self.dtype {
            Some(dtype) => builder.dtype(dtype),
            None => builder,
        };
        let Some(coded) = self.coded else {
            return builder;
        };
        let [first, second] = coded.codes;
        let builder = builder.dtype(first.dtype()).scales(coded.scales);
        let builder = match first == second {
            true => builder,
            false => builder.rhs_dtype(second.dtype()),
        };
        match coded.promote {
            true => builder.promote(),
            false => builder,
        }
    }

    pub fn workspace(&self, rank: &Communicator) -> Result<Workspace, Error> {
        self.builder(rank).workspace()
    }

    pub fn build(&self, rank: &Communicator) -> Result<Built, Error> {
        let op = self.builder(rank).build()?;
        let most = self.shape.m as usize;
        let schedule = match &self.work {
            Work::Schedule(program) => program.name.clone(),
            Work::Family(_) => op.schedule_of(most).to_owned(),
        };
        let why = match &self.work {
            Work::Schedule(_) => "its settings".to_owned(),
            Work::Family(_) => op.why(most).to_string(),
        };
        Ok(Built { op, schedule, why })
    }
}

/// An op, with the name of its schedule and what chose that.
#[derive(Debug)]
pub(crate) struct Built {
    pub op: Op,
    pub schedule: String,
    pub why: String,
}

impl Built {
    /// True if it is one kernel. The stages of a family's candidate are joined by `+`.
    pub fn is_fused(&self) -> bool {
        !self.schedule.contains('+')
    }
}

/// Ops by what they were built for: the latest few, the latest one last.
#[derive(Debug)]
pub(crate) struct Latest<K>(Mutex<Vec<(K, Arc<Built>)>>);

impl<K: PartialEq + Clone> Latest<K> {
    pub fn new() -> Self {
        Latest(Mutex::default())
    }

    /// The op for a key; if there is none, it is built. Collective: all ranks ask in the same order.
    pub fn of(
        &self,
        rank: &Communicator,
        key: &K,
        build: impl FnOnce() -> Result<Built, Error>,
    ) -> Result<Arc<Built>, Error> {
        const KEPT: usize = 8;
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let found = match all.iter().position(|(of, _)| of == key) {
            Some(at) => all.remove(at),
            None => (key.clone(), Arc::new(together(rank, build)?)),
        };
        if all.len() == KEPT {
            all.remove(0);
        }
        all.push(found.clone());
        Ok(found.1)
    }
}
