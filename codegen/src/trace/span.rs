//! A trace: spans of lanes, in seconds after the first rank's start.

use super::clocks::Clock;

/// What the roles of a launch did when.
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
    /// What the lanes did: those of one lane in order of time.
    pub spans: Vec<Span>,
    /// Signals that ended a wait.
    pub arrows: Vec<Arrow>,
    /// The schedule's statements that spans name.
    pub statements: Vec<Statement>,
    /// From the first rank's start to the last rank's end.
    pub total: f64,
    /// Each rank's start and end.
    pub ranks: Vec<(f64, f64)>,
    /// How each rank's clock was aligned. Empty if one clock is known to be everybody's.
    pub clocks: Vec<Clock>,
    /// Events that did not fit and are missing here.
    pub lost: u64,
}

/// A thread of a role, or a worker of the model.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Lane {
    /// Its rank.
    pub rank: u16,
    /// Its CTA. `None` for a copy engine.
    pub cta: Option<u32>,
    /// Its role.
    pub name: String,
}

/// A stretch of time of a lane.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Span {
    /// Which lane, by its number in [`Trace::lanes`].
    pub lane: u32,
    /// What it did.
    pub phase: Phase,
    /// For which statement, by its number in [`Trace::statements`].
    pub statement: Option<u32>,
    /// When it began, in seconds.
    pub start: f64,
    /// When it ended.
    pub end: f64,
}

/// A statement of the schedule.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Statement {
    /// Its words.
    pub text: String,
    /// `file:line`, if it stands in a file.
    pub place: Option<String>,
}

/// A signal and the wait that it ended.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Arrow {
    /// The sender's lane.
    pub from: u32,
    /// When it was sent.
    pub sent: f64,
    /// The waiter's lane.
    pub to: u32,
    /// When the wait ended.
    pub met: f64,
}

/// What a lane, or a CTA, is doing.
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

    /// Its name in reports.
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

    /// Its place in [`Phase::ALL`].
    pub const fn index(self) -> usize {
        self as usize
    }

    /// Which of several phases at the same time is the CTA's: the smaller number. `None`: never the CTA's.
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
