//! What a traced kernel's probes are.

use counterflow_codegen::program::{CounterId, Loc};

/// A probe: a place in a traced kernel's text.
///
/// [`Traced`](super::Traced) has an example.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Site {
    /// Action of the role there.
    pub kind: SiteKind,
    /// The role, as [`CudaSource::roles`](super::CudaSource::roles) names it.
    pub role: &'static str,
    /// The statement it belongs to, in the schedule's words.
    pub statement: String,
    /// Place of that statement in the schedule.
    pub loc: Option<Loc>,
    /// The counter of a wait or a signal. `None` for a signal that was put off: its place says which.
    pub counter: Option<CounterId>,
}

/// The kind of a probe.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum SiteKind {
    /// The role begins.
    Start,
    /// Begins an item of a GEMM loop. `sums`: the item adds terms of other ranks after its product.
    Tile {
        /// True if terms of other ranks are added.
        sums: bool,
    },
    /// Begins an item that moves data.
    Move,
    /// Comes to a wait for a counter.
    Waits,
    /// A wait for all that arrives in this launch is met.
    Met,
    /// Another wait is met: for some of this launch's arrivals, or for those of launches before.
    MetEarlier,
    /// The first operands of a tile are in shared memory.
    Loaded,
    /// The last product of a tile is done.
    Multiplied,
    /// The boxes of an item were handed to TMA.
    Sent,
    /// The boxes of an item are written.
    Stored,
    /// Is about to signal a counter.
    Signals,
    /// The role ends.
    End,
}
