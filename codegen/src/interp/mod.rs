//! The emulator: a kernel and its plans, executed on CPU ranks, stricter than any hardware.
//!
//! # What runs
//!
//! An agent is one role of one rank. Its steps are cut into items. Each role has workers; a worker claims the next
//! item of its agent, does its steps one after another, and claims again, so items start in order and are otherwise
//! concurrent. An item of a later phase starts only when all items of earlier phases of its agent are done (a join).
//! A copy engine has one worker. A rank's next launch starts when all its roles are done with the previous one; ranks
//! are otherwise skewed as far as counters allow, and each launch has a plan of its own, so `m` may change.
//!
//! Before each launch the caller (role `host`) fills a rank's inputs and what it adds to (or leaves there what the launch
//! before made of it), and leaves nothing in its other outputs; at its end it takes the parameters back. Scratch keeps
//! what is in it, but other kernels may use it between launches, so a write to a rank's scratch must have arrived when
//! the rank's launch ends.
//!
//! Counters are 64-bit and only grow. A wait of launch `e` on a counter of lag `l` is satisfied when the cell has what
//! the waiter's plans say arrives in all launches before `e - l`, plus the wait's own number (or all that arrives) of
//! launch `e - l`; with a lag and no such launch it is satisfied at once. A copy engine *stores* its count.
//!
//! # What is checked
//!
//! Every failure is decided in one of two ways.
//!
//! *By value*, in the interleaving that ran: [`FailureKind::Deadlock`], [`FailureKind::UninitialisedRead`],
//! [`FailureKind::StaleRead`], [`FailureKind::WrittenTwice`], [`FailureKind::NeverWritten`],
//! [`FailureKind::Contribution`], [`FailureKind::NotGathered`], [`FailureKind::OutOfBounds`],
//! [`FailureKind::CounterDecrease`], [`FailureKind::Mismatch`], [`FailureKind::StepLimit`].
//! [`FailureKind::OtherSeries`] comes before anything runs.
//!
//! *By clock*, whatever the interleaving was: [`FailureKind::MissingAcquire`], [`FailureKind::Overwrite`],
//! [`FailureKind::LateWrite`] (the last two also by value, where the run got that far) and
//! [`FailureKind::Attribution`]. Two events are ordered only by: steps of one item; joins; a rank's launches; and
//! signal to wait, where a wait joins with all signals of earlier launches and with those of its own launch that it
//! cannot have missed. Those are all of them if it waits for all that arrives. If it waits for less, a signal counts
//! if the others, without those that follow it in its own agent, do not add up to the wait's number. That a worker
//! happens to do two items one after the other orders nothing: another run has other workers.
//!
//! Memory is tracked on a grid for each buffer, cut at every rectangle of every plan with that shape. Scratch that two
//! consecutive launches divide differently is one block between them: any access of the one conflicts with any write
//! of the other, because rows move in memory when the shape changes.
//!
//! # Numbers
//!
//! Memory holds each element as the f32 its dtype rounds to, and NaN until written. Products, sums of stored tiles and
//! the expression of a store are made in f32 or better and rounded once where they are stored. A reduce-add rounds the
//! tile, and then every sum at the destination. A sum in the switch is made in f32 and rounded once to the memory's
//! type. The order of reduce-adds is the interleaving's, so their bits may differ between seeds.
//!
//! Where CTAs share the K steps of a tile, each one's part is summed by itself, and then the parts in their order; on a
//! GPU every panel begins with the part of the CTA that stores it.
//!
//! # What it is compared with
//!
//! [`reference()`] says what outputs should be, and [`compare`] how far off they are. It looks at the program and never at
//! the kernel. What sums over ranks and accumulated outputs promise is made of the terms that the statements bring
//! together, each counted as the type says; `Out` is what [`meaning`] makes of the statements, executed one after another.
//! Where that leaves open what is promised, or gives no number, there is no reference.
//!
//! # What is not modelled
//!
//! Time, the warp level (mbarriers, TMA, proxy fences, swizzles), clusters, partial visibility of one copy or store,
//! aborts, tf32 rounding of f32 operands, and how many CTAs fit.

mod clocks;
mod compare;
mod counters;
mod data;
mod expected;
mod explore;
mod failure;
mod fill;
mod inputs;
mod known;
mod machine;
mod meaning;
mod memory;
mod outcome;
mod policy;
mod reference;
mod sched;
mod setup;
mod sizes;
mod step;
mod tags;

pub use compare::{Agreement, Disagreement, compare, compare_exactly};
pub use expected::{Expected, ExpectedTensor, NoReference, Says};
pub use explore::{Explored, explore, provoke_all};
pub use failure::{CellName, Failure, FailureKind, Rect, Site, Stuck};
pub use fill::{integers, uniform};
pub use meaning::meaning;
pub use outcome::{Input, Outcome, Output};
pub use policy::{Numbers, Policy};
pub use reference::reference;

use crate::kernel::Kernel;
use crate::plan::Plan;
use crate::verify::{Checked, Series};
use machine::{Fill, Machine};
use sched::Scheduler;
use setup::{Setup, of_series};

/// How to run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Options {
    /// Determines the policy, the workers and every choice.
    pub seed: u64,
    /// Workers of each role but a copy engine, which has one; `None`: 1 to 4, by the seed.
    pub workers: Option<u32>,
    /// Who goes next; `None`: by the seed.
    pub policy: Option<Policy>,
    /// The most steps.
    pub step_limit: u64,
    /// Whether to compute numbers. Without them only who touches what is tracked, which is much faster.
    pub data: bool,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            seed: 0,
            workers: None,
            policy: None,
            step_limit: 1 << 32,
            data: true,
        }
    }
}

impl Options {
    /// The defaults with that seed.
    pub fn seed(seed: u64) -> Options {
        Options {
            seed,
            ..Options::default()
        }
    }

    /// Without numbers.
    #[must_use]
    pub fn tags_only(self) -> Options {
        Options {
            data: false,
            ..self
        }
    }
}

/// Runs launches of a series one after another on every rank. `inputs` fills an input before a launch; values are
/// rounded to the tensor's type.
///
/// # Errors
/// A plan of another series, or the first thing that went wrong.
pub fn run(
    series: &Series,
    launches: &[&Checked<Plan>],
    options: &Options,
    mut inputs: impl FnMut(Input<'_>, &mut [f32]),
) -> Result<Outcome, Failure> {
    let plans = of_series(series, launches)?;
    execute(series.kernel(), &plans, options, &mut inputs)
}

/// As [`run`], but takes what nothing has checked: the door for testing the verifier, and this emulator, on broken
/// kernels and plans. A launch is one plan for all ranks, or one for each.
///
/// # Errors
/// The first thing that went wrong.
///
/// # Panics
/// If a plan is of another kernel or world, or a launch has neither one plan nor one a rank.
pub fn provoke(
    kernel: &Kernel,
    launches: &[Vec<&Plan>],
    options: &Options,
    mut inputs: impl FnMut(Input<'_>, &mut [f32]),
) -> Result<Outcome, Failure> {
    execute(kernel, launches, options, &mut inputs)
}

fn execute(
    kernel: &Kernel,
    launches: &[Vec<&Plan>],
    options: &Options,
    inputs: &mut Fill<'_>,
) -> Result<Outcome, Failure> {
    let setup = Setup::new(kernel, launches);
    let mut numbers = Numbers::new(options.seed);
    let workers = |_| {
        let chosen = 1 + (numbers.draw() % 4) as u32;
        options.workers.unwrap_or(chosen)
    };
    let mut machine = Machine::new(&setup, workers, options.data);
    let policy = options
        .policy
        .unwrap_or_else(|| Policy::of_seed(options.seed, setup.world as u32, setup.roles as u32));
    let mut scheduler = Scheduler::new(policy, options.seed);
    let mut steps = 0;
    let failed = |kind: Box<FailureKind>, steps: u64| Failure {
        kind,
        seed: options.seed,
        steps,
        schedule: Vec::new(),
    };
    while let Some(turn) = scheduler.choose(&machine) {
        if steps == options.step_limit {
            let limit = options.step_limit;
            return Err(failed(Box::new(FailureKind::StepLimit { limit }), steps));
        }
        machine
            .take(turn, inputs)
            .map_err(|kind| failed(kind, steps))?;
        steps += 1;
    }
    if !machine.done() {
        return Err(failed(machine.deadlock(), steps));
    }
    Ok(Outcome {
        outputs: machine.outputs,
        steps,
        policy,
    })
}
