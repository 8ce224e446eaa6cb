//! Kernel → `Checked<Kernel>` and Plan → `Checked<Plan>`: the guarantees, and when each is checked.
//!
//! | guarantee | rule | checked once per variant | checked for a shape |
//! |---|---|---|---|
//! | 1 progress | [`Rule::Progress`](crate::diag::Rule::Progress) | | one greedy run |
//! | 2 no race | [`Rule::Race`](crate::diag::Rule::Race) | | every conflicting pair of accesses |
//! | 3 coverage | [`Rule::Coverage`](crate::diag::Rule::Coverage) | every store that makes scales of its output | every block of every output |
//! | 4 reuse | [`Rule::Reuse`](crate::diag::Rule::Reuse) | every remote access waits for a credit; every rank grants it | every conflicting pair of accesses of two launches; every access of scratch, against the credit of the next |
//! | 4 reuse | [`Rule::Attribution`](crate::diag::Rule::Attribution) | | every cell that several ranks signal, also in different launches of the series |
//! | 5 bounds | [`Rule::Bounds`](crate::diag::Rule::Bounds) | | every rank, slot and row range |
//! | 5 resources | [`Rule::Resources`](crate::diag::Rule::Resources) | | grid and shared memory |
//! | 6 volume | [`Rule::Volume`](crate::diag::Rule::Volume) | | bytes per link (`counterflow_timeline::model`) |
//!
//! Rules between launches of different shapes are checked for all launches of a [`Series`]; see `launches`.
//!
//! Shapes fall into classes. Two shapes of one class have the same number of items in every shard, the same overlaps
//! between partitions and the same empty shards. Their steps differ only in the extents of edge items, which only the
//! bounds rule looks at. [`Series`] keeps the verdict of each class. If tiles of a row differ only in the columns they
//! write (in every gather), one column of them is checked for all: `columns` says when and why.
//!
//! # Why one greedy run decides progress
//!
//! The state of a run is how far each agent is. Counters only grow, a wait asks for "at least", and control depends
//! neither on data nor on whether a wait would block. So a step that is enabled stays enabled until it is taken: any
//! other step only adds to counters. Two enabled steps can be taken in either order and lead to the same state. The system is confluent, and has no infinite run (loops are bounded); therefore all maximal runs
//! end in the same state. If one run ends with every agent done, every fair run does; if one ends blocked, every run
//! does. Hence one run, in time linear in the steps.
//!
//! A real role is many CTAs that claim items in order. Checking a role as *one* sequence is sound for them. Suppose
//! the sequential run finishes and some run with many CTAs is stuck. Of the steps that the stuck run has not taken,
//! pick the one that the sequential run took first. Everything before it in its item was taken earlier by the
//! sequential run, hence also by the stuck run; so were all earlier items of its role, so every CTA that took those
//! is free, and the item is claimed or can be claimed (by ticket or by static assignment in order). The signals it
//! waits for came earlier in the sequential run as well. So it can be taken: a contradiction.
//!
//! Conditions, and who ensures them: a cluster is one agent (its CTAs take the same waits); lagging signals are
//! flushed before any blocking wait (the warp level); all CTAs of roles that wait for each other are resident at once
//! (the grid never exceeds the SMs: [`crate::plan`]); copies that the host enqueues are agents like any other, and what the
//! host submits gets through the hardware queues ([`crate::warp::Pipeline::queued`]); launches of one device are in one
//! agreed order; abort is outside the model. Once a wait gives up, all waits of the communicator return without their
//! signals, so nothing that is proven of data holds any more. What stays is that control and addresses depend on no data:
//! every run then does the same steps at the same places as one in which the signals came, so it ends, and writes nowhere
//! else. Results of such a run are never given out.
//!
//! A launch begins on a rank when that rank's previous one has ended. A lagging wait (scratch credits) asks for
//! signals of the launch before, which ends by itself: so one launch decides for all.
//!
//! # What orders two accesses
//!
//! Program order inside an item, which is that of its statements (a sum over slots waits for a slot and adds it, slot by
//! slot); the joins of a role; a wait and the signals that *must precede it*: those without which, and without what follows
//! them in their agent, the count cannot reach its target. Other items of the same role order nothing, since another CTA may run
//! them. Across launches also the end of a rank's launch and the beginning of its next.
//!
//! # What a sum is of
//!
//! Coverage tracks, for every block of memory, which terms it is the sum of and how often it holds each of them:
//! products (of a rank, of two tensors), inputs, constants, and results of functions. Copies carry terms, `+`, `.sum()`
//! and `+=` add their counts, `-` subtracts them. At the end
//!
//! - `ReduceScattered` and `AllReduced` hold every rank's products once, the same of every rank (if nothing is multiplied,
//!   every rank's input), or functions of that sum. One rank adds a bias, residual or constant, once: the rank that
//!   completes the sum or the one that owns the rows. A rank may not add it to its part of the sum, nor apply a
//!   function to that part, not even a factor;
//! - `Accumulated` gets every product of its expression once, and nothing but products;
//! - `Gathered` holds its owners' rows of that same tensor, copied or stored unchanged;
//! - a `Gathered` output holds in rank `r`'s rows any expression that rank `r` computed, the same one on every rank;
//! - `AllToAll` holds in slot `s` what rank `s` sends: any expression that it computed, or its inputs;
//! - `Out` may be any expression.
//!
//! This is exact but for one case: if rows or columns that one item reads hold different sums, what is computed from
//! them counts as part of no sum. (All items of a partition do the same throughout a shard, so this needs loops over
//! different partitions.)

use crate::diag::Diagnostics;
use crate::kernel::Kernel;
use crate::machine::Machine;
use crate::plan::Plan;
use crate::proof::{self, Refused};
use crate::shape::Shape;
use crate::target::Target;
use crate::warp::Pipeline;

pub use crate::checked::{Checked, Subject};
pub use crate::proof::{Class, Decided, Series, kernel_findings, plan_findings, pulled, range};

/// Checks what does not depend on the shape, and decides how a CTA computes the tiles.
///
/// # Errors
/// All findings.
pub fn kernel(kernel: Kernel) -> Result<Checked<Kernel>, Diagnostics> {
    let target = Target::of(kernel.variant.arch);
    proof::kernel(kernel, target.decide)
}

/// The series of a kernel's launches of up to [`Shape::most`] of `most`. The largest is checked now.
///
/// # Errors
/// What [`Plan::new`] rejects in the largest launch, a finding of the first guarantee that it breaks, or what may go
/// wrong between launches.
pub fn series(
    kernel: &Checked<Kernel>,
    most: &Shape,
    machine: &Machine,
) -> Result<Series, Diagnostics> {
    Series::new(kernel, most, machine)
}

/// The plan of a launch, in a series of its own shape.
///
/// ```
/// use counterflow_codegen::{machine::Machine, shape::Shape, verify};
/// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/example.rs")); }
///
/// let (series, _) = example::proven();
/// let found = verify::plan(series.kernel(), &Shape::new(64, 32, 7), &Machine::h200()).unwrap_err();
/// println!("{found}"); // rows of 14 bytes
/// ```
///
/// # Errors
/// As [`series`] and [`Series::plan`].
pub fn plan(
    kernel: &Checked<Kernel>,
    shape: &Shape,
    machine: &Machine,
) -> Result<Checked<Plan>, Diagnostics> {
    Series::new(kernel, shape, machine)?.plan(shape)
}

/// Checks the warps of a CTA by running a few of them ([`crate::warp`]).
///
/// # Errors
/// The first thing that goes wrong, with its trace, or why no case could be run.
pub fn pipeline(pipeline: Pipeline) -> Result<Checked<Pipeline>, Diagnostics> {
    proof::pipeline(pipeline).map_err(|refused| match refused {
        Refused::NoCase(found) | Refused::Wrong(found) => found,
    })
}

/// The warp level of a kernel, built and checked.
///
/// ```
/// use counterflow_codegen::verify;
/// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/example.rs")); }
///
/// let (series, _) = example::proven();
/// let pipeline = verify::warps(series.kernel())?;
/// println!("{}", pipeline.kernel.name);
/// # Ok::<(), counterflow_codegen::diag::Diagnostics>(())
/// ```
///
/// # Errors
/// What the [`Target`] has no pipeline for, each with its statement, and a schedule that is legal in no world in which its
/// warps can be run. If the warp level does not do what the tile level says, that is the compiler's bug, and the
/// findings say so.
pub fn warps(kernel: &Checked<Kernel>) -> Result<Checked<Pipeline>, Diagnostics> {
    let built = (Target::of(kernel.variant.arch).build)(kernel)?;
    proof::pipeline(built).map_err(|refused| match refused {
        Refused::NoCase(found) => found,
        Refused::Wrong(found) => found.ours(&format!("`{}` {}", kernel.name, kernel.variant)),
    })
}

/// For tests that switch [`Fix::WarpOrder`] off: the first rows of another rank that a run reads as the launch before
/// left them, because that rank has not begun.
///
/// # Errors
/// No case to run, or a run that does not end.
#[cfg(all(feature = "undo", debug_assertions))]
#[doc(hidden)]
pub fn outdated(pipeline: &Pipeline) -> Result<Option<String>, Diagnostics> {
    proof::outdated(pipeline).map_err(|refused| match refused {
        Refused::NoCase(found) | Refused::Wrong(found) => found,
    })
}

/// For tests: runs the warps of a few items in a world of so many ranks, also in one that [`pipeline`] does not try.
///
/// # Errors
/// What is wrong with the warps, or why the schedule is not legal in that world.
#[cfg(all(feature = "undo", debug_assertions))]
#[doc(hidden)]
pub fn in_world(pipeline: &Pipeline, world: u32) -> Result<(), Diagnostics> {
    proof::in_world(pipeline, world)
}
