//! The emulator: executes a kernel and its plans on CPU ranks, more strictly than any hardware.
//!
//! This crate reads no files, environment variables or clocks, has no `unsafe`, and uses no device. It is above the compiler,
//! which cannot use what it is checked by. Threads divide a product, and its bits do not depend on their number.
//!
//! ```
//! use counterflow_codegen::{lower::lower, machine::Machine, shape::Shape, variant::Variant, verify};
//! use counterflow_emulator::{Options, compare, reference, run, uniform};
//! # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/../codegen/tests/fixtures/example.rs")); }
//!
//! let kernel = verify::kernel(lower(&example::ag_gemm(), &Variant::new(2))?)?;
//! let shape = Shape::new(64, 32, 16);
//! let series = verify::series(&kernel, &shape, &Machine::h200())?;
//! let plan = series.plan(&shape)?;
//! let outcome = run(&series, &[&plan], &Options::seed(1), uniform(1))?;
//! let expected = reference(&kernel, &plan, 0, uniform(1))?;
//! println!("{} elements agree", compare(&outcome, &expected)?.elements);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # What runs
//!
//! An agent is one role of one rank. Its steps are divided into items. Each role has workers. A worker claims the next
//! item of its agent, takes its steps in order, and claims again, so items start in order and are otherwise concurrent.
//! An item of a later phase starts only when all items of earlier phases of its agent are done (a join). A copy engine
//! has one worker. A rank's next launch starts when all its roles are done with the previous one; ranks are otherwise
//! skewed as far as counters allow, and each launch has a plan of its own, so `m` may change.
//!
//! Before each launch the caller (role `host`) fills a rank's inputs and accumulated outputs (or keeps an accumulated
//! output of the launch before), and clears its other outputs. At the end it takes the parameters back. Scratch keeps
//! its contents, but other kernels may use it between launches, so every write to a rank's scratch must have arrived
//! when the rank's launch ends.
//!
//! Counters are 64-bit and only grow. A wait of launch `e` on a counter of lag `l` ends when the cell has all arrivals
//! of the launches before `e - l` by the waiter's plans, plus the wait's own number (or all arrivals) of launch
//! `e - l`. With a lag and no such launch it ends at once. A copy engine *stores* its count.
//!
//! # What is checked
//!
//! Every failure is found in one of two ways.
//!
//! *By value*, in the interleaving that ran: [`FailureKind::Deadlock`], [`FailureKind::UninitialisedRead`],
//! [`FailureKind::StaleRead`], [`FailureKind::WrittenTwice`], [`FailureKind::NeverWritten`],
//! [`FailureKind::Contribution`], [`FailureKind::NotGathered`], [`FailureKind::OutOfBounds`],
//! [`FailureKind::CounterDecrease`], [`FailureKind::Mismatch`], [`FailureKind::StepLimit`].
//! [`FailureKind::OtherSeries`] comes before anything runs.
//!
//! *By clock*, whatever the interleaving was: [`FailureKind::MissingAcquire`], [`FailureKind::Overwrite`],
//! [`FailureKind::LateWrite`] (the last two also by value, if the run got that far) and [`FailureKind::Attribution`].
//! Two events are ordered only by: steps of one item; joins; a rank's launches; and signal and wait. A wait joins all
//! signals of earlier launches, and those of its own launch without which it cannot end. If it waits for all arrivals,
//! these are all signals. If it waits for less, a signal counts if the others, without those that follow it in its own
//! agent, do not add up to the wait's number. Two items of one worker are not ordered by that: another run has other
//! workers.
//!
//! Memory is tracked on a grid for each buffer, divided at every rectangle of every plan with that shape. Scratch that
//! two consecutive launches divide differently is one block between them: any access of one conflicts with any write of
//! the other, because rows move in memory when the shape changes.
//!
//! # Numbers
//!
//! Memory holds each element as an f32 rounded to its dtype, and NaN until it is written. Products, sums of stored
//! tiles and the expression of a store are computed in f32 or better and rounded once when stored. A reduce-add rounds
//! the tile, and then every sum at the destination. A sum in the switch is computed in f32 and rounded once to the
//! memory's type. The interleaving decides the order of reduce-adds, and a draw that of sums in the
//! switch, so their bits may differ between seeds.
//!
//! If CTAs share the K steps of a tile, each CTA's part is summed separately, and then the parts in order. On a GPU
//! every epilogue subtile begins with the part of the CTA that stores it.
//!
//! # What it is compared with
//!
//! [`reference()`] gives the expected outputs, and [`compare`] the errors. The reference uses the program and never the
//! kernel. For sums over ranks and accumulated outputs it adds the terms of the statements, each as often as the type
//! promises. For `Out` it is what [`meaning`] computes by executing the statements one after another. If the promise is
//! open, or the value is not a number, there is no reference.
//!
//! # Launches that are not known before
//!
//! [`open`] runs what hosts submit while it runs, on memory by address.
//!
//! # What is not modelled
//!
//! Time, the warp level (mbarriers, TMA, proxy fences, swizzles), clusters, partial visibility of one copy or store,
//! aborts, tf32 rounding of f32 operands, and how many CTAs fit.
#![forbid(unsafe_code)]

mod blocks;
mod clocks;
mod compare;
mod counters;
mod data;
mod emulator;
mod expected;
mod explore;
mod failure;
mod fill;
mod inputs;
mod known;
mod meaning;
mod memory;
pub mod open;
mod outcome;
mod policy;
mod product;
mod reference;
mod sched;
mod setup;
mod sizes;
mod step;
mod tags;
mod threads;

pub use compare::{Agreement, Disagreement, compare, compare_exactly};
pub use expected::{Expected, ExpectedTensor, NoReference, Says};
pub use explore::{Explored, explore, provoke_all};
pub use failure::{CellName, Failure, FailureKind, Rect, Site, Stuck};
pub use fill::{integers, uniform};
pub use inputs::Tables;
pub use meaning::meaning;
pub use outcome::{Input, Outcome, Output};
pub use policy::{Numbers, Policy};
pub use reference::{reference, reference_in};

use counterflow_codegen::kernel::Kernel;
use counterflow_codegen::plan::Plan;
use counterflow_codegen::verify::Checked;
use counterflow_codegen::verify::Series;
use emulator::{Emulator, Fill};
use sched::Scheduler;
use setup::{Setup, of_series};

/// Options of a run.
///
/// ```
/// use counterflow_emulator::{self as interp, Options};
/// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/../codegen/tests/fixtures/example.rs")); }
///
/// let (series, plan) = example::proven();
/// // Numbers whose sums are exact, so that the result has the reference's bits.
/// let outcome = interp::run(&series, &[&plan], &Options::seed(7), interp::integers(7))?;
/// let expected = interp::reference(series.kernel(), &plan, 0, interp::integers(7))?;
/// interp::compare_exactly(&outcome, &expected)?;
/// // Another interleaving, without numbers.
/// interp::run(&series, &[&plan, &plan], &Options::seed(8).tags_only(), |_, _| {})?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Options {
    /// Determines the policy, the workers and every choice.
    pub seed: u64,
    /// Workers of each role (a copy engine always has one). `None`: 1 to 4, by the seed.
    pub workers: Option<u32>,
    /// The policy of who steps next. `None`: by the seed.
    pub policy: Option<Policy>,
    /// The most steps.
    pub step_limit: u64,
    /// True if to compute numbers. Without them only accesses are tracked, which is much faster.
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
/// A plan of another series, or the first failure.
pub fn run(
    series: &Series,
    launches: &[&Checked<Plan>],
    options: &Options,
    mut inputs: impl FnMut(Input<'_>, &mut [f32]),
) -> Result<Outcome, Failure> {
    let plans = of_series(series, launches)?;
    execute(series.kernel(), &plans, options, &mut inputs)
}

/// As [`run`], but takes unchecked kernels and plans: for tests of the verifier, and of this emulator, on broken ones.
/// A launch has one plan for all ranks, or one for each.
///
/// ```
/// use counterflow_codegen::{lower::lower, machine::Machine, plan::Plan, shape::Shape, variant::Variant};
/// use counterflow_emulator as interp;
/// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/../codegen/tests/fixtures/example.rs")); }
///
/// let kernel = lower(&example::ag_gemm(), &Variant::new(2))?;
/// let plan = Plan::new(&kernel, &Shape::new(64, 32, 16), &Machine::h200())?; // nobody checked it
/// interp::provoke(&kernel, &[vec![&plan]], &interp::Options::default(), interp::uniform(0))?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// The first failure.
///
/// # Panics
/// If a plan is of another kernel or world, or a launch has neither one plan nor one per rank.
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
    let mut emulator = Emulator::new(&setup, workers, options.data);
    emulator.switch_adds_by(options.seed);
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
    while let Some(turn) = scheduler.choose(&emulator) {
        if steps == options.step_limit {
            let limit = options.step_limit;
            return Err(failed(Box::new(FailureKind::StepLimit { limit }), steps));
        }
        emulator
            .take(turn, inputs)
            .map_err(|kind| failed(kind, steps))?;
        steps += 1;
    }
    if !emulator.done() {
        return Err(failed(emulator.deadlock(), steps));
    }
    Ok(Outcome {
        outputs: emulator.outputs,
        steps,
        policy,
    })
}
