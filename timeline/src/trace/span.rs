//! A trace: spans of lanes, in seconds after the first rank's start.

use super::clocks::Clock;

/// Work of the roles of a launch over time.
///
/// [`crate::trace`] has an example.
#[derive(Clone, PartialEq, Debug)]
pub struct Trace {
    /// The schedule's name, variant, shape, and where it ran or was predicted.
    pub title: String,
    /// Number of ranks.
    pub world: u32,
    /// The lanes of all ranks.
    pub lanes: Vec<Lane>,
    /// Work of the lanes: that of one lane in order of time.
    pub spans: Vec<Span>,
    /// Signals that ended a wait.
    pub arrows: Vec<Arrow>,
    /// The schedule's statements that spans name.
    pub statements: Vec<Statement>,
    /// From the first rank's start to the last rank's end.
    pub total: f64,
    /// Each rank's start and end.
    pub ranks: Vec<(f64, f64)>,
    /// Alignment of each rank's clock. Empty if one clock is known to be everybody's.
    pub clocks: Vec<Clock>,
    /// Events that did not fit and are missing here.
    pub lost: u64,
}

/// A thread of a role, or a worker of the model.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Lane {
    /// Rank of the lane.
    pub rank: u16,
    /// CTA of the lane. `None` for a copy engine.
    pub cta: Option<u32>,
    /// Role of the lane.
    pub name: String,
}

/// A stretch of time of a lane.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Span {
    /// Number of the lane in [`Trace::lanes`].
    pub lane: u32,
    /// Phase of the span.
    pub phase: Phase,
    /// Number of the statement in [`Trace::statements`].
    pub statement: Option<u32>,
    /// Begin, in seconds.
    pub start: f64,
    /// End, in seconds.
    pub end: f64,
}

/// A statement of the schedule.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Statement {
    /// Words of the statement.
    pub text: String,
    /// `file:line`, if it stands in a file.
    pub place: Option<String>,
}

/// A signal and the wait that it ended.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Arrow {
    /// The sender's lane.
    pub from: u32,
    /// Time at which the signal was sent.
    pub sent: f64,
    /// The waiter's lane.
    pub to: u32,
    /// Time at which the wait ended.
    pub met: f64,
}

/// Phase of a lane, or of a CTA.
///
/// [`crate::trace`] has an example.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Phase {
    /// From the rank's start to the CTA's first work.
    Launch,
    /// Waiting for a counter.
    Wait,
    /// Waiting for a tile's first operands, with no wait for a counter open.
    Load,
    /// Multiplying.
    Multiply,
    /// Adding terms of other ranks, and the epilogue of such tiles.
    Sum,
    /// The epilogue of other tiles.
    Epilogue,
    /// Moving data.
    Move,
    /// Storing: what else the CTA does is over.
    Store,
    /// Nothing, between work.
    Idle,
    /// Nothing, after the CTA's last work.
    Tail,
}

impl Phase {
    /// All, in the order of reports.
    pub const ALL: [Phase; 10] = [
        Phase::Launch,
        Phase::Wait,
        Phase::Load,
        Phase::Multiply,
        Phase::Sum,
        Phase::Epilogue,
        Phase::Move,
        Phase::Store,
        Phase::Idle,
        Phase::Tail,
    ];

    /// Name in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Phase::Launch => "launch",
            Phase::Wait => "wait",
            Phase::Load => "load",
            Phase::Multiply => "multiply",
            Phase::Sum => "sum",
            Phase::Epilogue => "epilogue",
            Phase::Move => "move",
            Phase::Store => "store",
            Phase::Idle => "idle",
            Phase::Tail => "tail",
        }
    }

    /// Index in [`Phase::ALL`].
    pub const fn index(self) -> usize {
        self as usize
    }

    /// Priority among several phases at the same time: the smaller number is the CTA's. `None`: never the CTA's.
    pub(super) const fn priority(self) -> Option<u8> {
        match self {
            Phase::Multiply => Some(0),
            Phase::Sum => Some(1),
            Phase::Epilogue => Some(2),
            Phase::Move => Some(3),
            Phase::Wait => Some(4),
            Phase::Load => Some(5),
            Phase::Store => Some(6),
            Phase::Launch | Phase::Idle | Phase::Tail => None,
        }
    }
}
