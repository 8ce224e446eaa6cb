//! The emulator's failures, each with everything that its trace needs.

mod trace;

use counterflow_codegen::diag::{Diagnostic, Rule};
use counterflow_codegen::kernel::OpId;
use counterflow_codegen::program::Loc;
use counterflow_codegen::shape::Extent;

/// A check's result. Boxed, because failures carry their whole trace.
pub(super) type Check<T> = Result<T, Box<FailureKind>>;

/// Reason that a run stopped. The seed reproduces it.
///
/// ```
/// use counterflow_emulator::{self as interp, CellName, Failure, FailureKind, Options, Rect, Site, Stuck};
/// use counterflow_codegen::{lower::lower, machine::Machine, plan::Plan, shape::Shape, variant::Variant};
/// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/../codegen/tests/fixtures/example.rs")); }
///
/// let mut kernel = lower(&example::ag_gemm(), &Variant::new(2))?;
/// kernel.roles.remove(0); // nobody sends
/// let plan = Plan::new(&kernel, &Shape::new(64, 32, 16), &Machine::h200())?;
/// let failure: Failure = interp::provoke(&kernel, &[vec![&plan]], &Options::seed(3), |_, _| {}).unwrap_err();
/// println!("seed {}, after {} steps: {}", failure.seed, failure.steps, failure.kind.name());
/// match &*failure.kind {
///     FailureKind::Deadlock { waits } => {
///         let Stuck { by, on, seen, wanted, .. } = &waits[0];
///         let (Site { rank, role, .. }, CellName { counter, .. }) = (by, on);
///         println!("{role} of rank {rank} waits for {counter}: {seen} of {wanted}");
///     }
///     FailureKind::UninitialisedRead { by, what: Rect { buffer, .. } } => println!("{by:?} reads {buffer}"),
///     other => println!("it breaks {:?}", other.rule()),
/// }
/// # Ok::<(), counterflow_codegen::diag::Diagnostics>(())
/// ```
#[derive(Clone, Debug)]
pub struct Failure {
    /// Kind of the failure.
    pub kind: Box<FailureKind>,
    /// The seed of the run; 0 where the schedule was explored instead.
    pub seed: u64,
    /// Number of steps that had been taken.
    pub steps: u64,
    /// The steps that led there; filled by [`super::explore`] only.
    pub schedule: Vec<Site>,
}

/// A step: who did it, in which launch, and its source line.
///
/// [`Failure`] has an example.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Site {
    /// The rank.
    pub rank: u16,
    /// The role's name; `host` for what the caller does to a rank's parameters between launches.
    pub role: String,
    /// The launch, counted from 0.
    pub launch: usize,
    /// The op and its source location; `None` for the host.
    pub op: Option<(OpId, Loc)>,
    /// Verb for the access: `reads`, `writes`, `adds to`, `waits`, `signals`.
    pub does: &'static str,
}

/// A rectangle of one rank's memory, in global rows and columns.
///
/// [`Failure`] has an example.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Rect {
    /// The tensor's name.
    pub buffer: String,
    /// Rank that holds the memory.
    pub home: u16,
    /// Slot of the tensor.
    pub slot: u16,
    /// Rows of the tensor.
    pub rows: Extent,
    /// Columns of the tensor.
    pub columns: Extent,
}

/// A counter cell.
///
/// [`Failure`] has an example.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CellName {
    /// The counter's name.
    pub counter: String,
    /// Rank whose memory holds the cell.
    pub home: u16,
    /// Index of the cell in its set.
    pub cell: u32,
}

/// A worker that cannot go on.
///
/// [`Failure`] has an example.
#[derive(Clone, Debug)]
pub struct Stuck {
    /// The wait.
    pub by: Site,
    /// Cell that is waited for.
    pub on: CellName,
    /// The cell's value.
    pub seen: u64,
    /// The value it waits for.
    pub wanted: u64,
    /// Signals of that cell that are planned but were not reached, one an agent.
    pub missing: Vec<Site>,
}

/// Kind of a failure.
///
/// [`Failure`] has an example of a run that fails.
///
/// ```
/// use counterflow_codegen::diag::Rule;
/// use counterflow_emulator::FailureKind;
///
/// let long = FailureKind::StepLimit { limit: 100 };
/// assert_eq!((long.name(), long.rule()), ("StepLimit", Rule::Progress));
/// ```
#[derive(Clone, Debug)]
pub enum FailureKind {
    /// No worker can continue, and not all are done.
    Deadlock {
        /// Agents that wait, and the cell that each waits for.
        waits: Vec<Stuck>,
    },
    /// A read (or reduce-add) of memory that nobody has written in a launch whose data could still be there.
    UninitialisedRead {
        /// The read.
        by: Site,
        /// Rectangle that is accessed.
        what: Rect,
    },
    /// Two conflicting accesses of one launch that no signal and wait, item or join puts in order.
    MissingAcquire {
        /// The access that was made second here.
        by: Site,
        /// The part both touch.
        what: Rect,
        /// The one made first.
        other: Site,
    },
    /// A read that found another launch's data.
    StaleRead {
        /// The read.
        by: Site,
        /// Rectangle that is read.
        what: Rect,
        /// Writer of what was found.
        writer: Site,
    },
    /// A rectangle outside the rank's memory, over the end of a shard, or of another size than its counterpart.
    OutOfBounds {
        /// The access.
        by: Site,
        /// Rectangle that is accessed.
        what: Rect,
        /// Bounds that it should have stayed inside (or the size that it should have had).
        inside: (Extent, Extent),
    },
    /// A signal that does not raise its cell, or a copy engine (which *stores* its count) on a cell others signal too.
    CounterDecrease {
        /// The signal.
        by: Site,
        /// The cell.
        on: CellName,
        /// The value before.
        from: u64,
        /// The value after.
        to: u64,
    },
    /// A write of one launch to memory that another launch may still use.
    Overwrite {
        /// The write.
        by: Site,
        /// To what.
        what: Rect,
        /// The access of the other launch.
        other: Site,
    },
    /// An output element written a second time in one launch.
    WrittenTwice {
        /// The second write.
        by: Site,
        /// To what.
        what: Rect,
        /// The first.
        first: Site,
    },
    /// An output element that nothing writes.
    NeverWritten {
        /// The launch.
        launch: usize,
        /// Rectangle of the output.
        what: Rect,
    },
    /// A sum that lacks a rank's contribution, has it more than once, or has a bias or the like once per rank.
    Contribution {
        /// The launch.
        launch: usize,
        /// Rectangle of the sum.
        what: Rect,
        /// Ranks whose contribution is missing.
        missing: Vec<u16>,
        /// Ranks whose contribution is there more than once. If both lists are empty: a function of a part of the sum.
        twice: Vec<u16>,
    },
    /// Rows of a gathered tensor that are not those their owner had.
    NotGathered {
        /// The launch.
        launch: usize,
        /// Rectangle of the rows.
        what: Rect,
        /// The owner.
        owner: u16,
    },
    /// A write to a rank's parameter that the end of the rank's launch does not wait for.
    LateWrite {
        /// The write.
        by: Site,
        /// To what.
        what: Rect,
    },
    /// A signal of a later launch that a wait of an earlier one may count as its own.
    Attribution {
        /// The signal (or, seen from the other side, the wait).
        by: Site,
        /// The cell.
        on: CellName,
        /// Access that it is not ordered with.
        other: Option<Site>,
    },
    /// Ranks that launched different plans.
    Mismatch {
        /// The step that found it.
        by: Site,
        /// The other rank.
        peer: u16,
        /// The plan hashes of both.
        hashes: (u64, u64),
    },
    /// A plan of another series than the one that runs.
    OtherSeries {
        /// Refusal, with what to do.
        refused: Diagnostic,
    },
    /// More steps than the run was allowed.
    StepLimit {
        /// Most steps of a run.
        limit: u64,
    },
}

impl FailureKind {
    /// Name of the kind.
    pub const fn name(&self) -> &'static str {
        match self {
            FailureKind::Deadlock { .. } => "Deadlock",
            FailureKind::UninitialisedRead { .. } => "UninitialisedRead",
            FailureKind::MissingAcquire { .. } => "MissingAcquire",
            FailureKind::StaleRead { .. } => "StaleRead",
            FailureKind::OutOfBounds { .. } => "OutOfBounds",
            FailureKind::CounterDecrease { .. } => "CounterDecrease",
            FailureKind::Overwrite { .. } => "Overwrite",
            FailureKind::WrittenTwice { .. } => "WrittenTwice",
            FailureKind::NeverWritten { .. } => "NeverWritten",
            FailureKind::Contribution { .. } => "Contribution",
            FailureKind::NotGathered { .. } => "NotGathered",
            FailureKind::LateWrite { .. } => "LateWrite",
            FailureKind::Attribution { .. } => "Attribution",
            FailureKind::Mismatch { .. } => "Mismatch",
            FailureKind::OtherSeries { .. } => "OtherSeries",
            FailureKind::StepLimit { .. } => "StepLimit",
        }
    }

    /// The verifier's rule that such a schedule breaks.
    pub const fn rule(&self) -> Rule {
        match self {
            FailureKind::Deadlock { .. }
            | FailureKind::StepLimit { .. }
            | FailureKind::CounterDecrease { .. } => Rule::Progress,
            FailureKind::UninitialisedRead { .. } | FailureKind::MissingAcquire { .. } => {
                Rule::Race
            }
            FailureKind::StaleRead { .. }
            | FailureKind::Overwrite { .. }
            | FailureKind::LateWrite { .. } => Rule::Reuse,
            FailureKind::OutOfBounds { .. } => Rule::Bounds,
            FailureKind::WrittenTwice { .. }
            | FailureKind::NeverWritten { .. }
            | FailureKind::Contribution { .. }
            | FailureKind::NotGathered { .. } => Rule::Coverage,
            FailureKind::Attribution { .. } => Rule::Attribution,
            FailureKind::Mismatch { .. } | FailureKind::OtherSeries { .. } => Rule::Shape,
        }
    }
}
