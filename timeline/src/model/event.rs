//! A simulation's record: events, and the signals that ended waits.

use counterflow_codegen::kernel::OpId;
use counterflow_codegen::program::CounterId;

/// Something that took time.
///
/// ```
/// use counterflow_codegen::machine::Machine;
/// use counterflow_timeline::model::{self, Event, EventKind, Flow, Lane};
/// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/../codegen/tests/fixtures/example.rs")); }
///
/// let (series, plan) = example::proven();
/// let timeline = model::predict(series.kernel(), &plan, &Machine::h200())?;
/// let moved = timeline.events.iter().filter(|event: &&Event| event.kind.crosses());
/// assert_eq!(moved.map(|event| event.bytes).sum::<u64>(), timeline.volume.total());
/// let waits = timeline.events.iter().filter(|event| event.kind.idle());
/// for Event { lane, kind, start, end, .. } in waits {
///     let lane: &Lane = &timeline.lanes[usize::from(*lane)];
///     println!("{} of {}: {start} to {end}", kind.name(), lane.name);
/// }
/// for Flow { sent, met, .. } in &timeline.flows {
///     println!("a signal took {} s", met - sent);
/// }
/// # Ok::<(), counterflow_codegen::diag::Diagnostic>(())
/// ```
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Event {
    /// Rank of the event.
    pub rank: u16,
    /// Role of the event.
    pub role: u16,
    /// Lane, of [`Timeline::lanes`](super::Timeline::lanes).
    pub lane: u16,
    /// True if the lane did other work meanwhile, as it does while tiles are stored.
    pub overlapped: bool,
    /// Kind of the event.
    pub kind: EventKind,
    /// Op of the kernel.
    pub op: OpId,
    /// The other rank of a transfer, or [`EVERYWHERE`](super::volume::EVERYWHERE); otherwise the rank itself.
    pub peer: u16,
    /// Begin, in seconds.
    pub start: f64,
    /// End, in seconds.
    pub end: f64,
    /// Bytes that crossed links.
    pub bytes: u64,
}

/// The kind of an event.
///
/// ```
/// use counterflow_timeline::model::EventKind;
///
/// assert_eq!(EventKind::Push.name(), "push");
/// assert!(EventKind::Push.crosses() && EventKind::Wait.idle());
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum EventKind {
    /// Multiplying.
    Dot,
    /// Adding stored tiles.
    Reduce,
    /// Loading an operand of the epilogue.
    Load,
    /// Copying within the rank.
    Local,
    /// Moving bytes to a peer.
    Push,
    /// Fetching bytes from a peer.
    Pull,
    /// Waiting for a counter.
    Wait,
    /// Waiting for earlier items of the role.
    Join,
    /// Waiting until the previous tile is stored.
    Drain,
}

impl EventKind {
    /// Name in traces.
    pub const fn name(self) -> &'static str {
        match self {
            EventKind::Dot => "dot",
            EventKind::Reduce => "sum",
            EventKind::Load => "load",
            EventKind::Local => "copy",
            EventKind::Push => "push",
            EventKind::Pull => "pull",
            EventKind::Wait => "wait",
            EventKind::Join => "join",
            EventKind::Drain => "drain",
        }
    }

    /// True if bytes cross links.
    pub const fn crosses(self) -> bool {
        matches!(self, EventKind::Push | EventKind::Pull)
    }

    /// True if its lane is idle meanwhile.
    pub const fn idle(self) -> bool {
        matches!(self, EventKind::Wait | EventKind::Join | EventKind::Drain)
    }
}

/// A signal that ended a wait.
///
/// [`Event`] has an example.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Flow {
    /// Counter that is signalled.
    pub counter: CounterId,
    /// True if lowering inferred that counter.
    pub credit: bool,
    /// From which rank and lane.
    pub from: (u16, u16),
    /// True if the sender did something else meanwhile ([`Event::overlapped`]).
    pub overlapped: bool,
    /// Time of sending, in seconds.
    pub sent: f64,
    /// Rank and lane that receive.
    pub to: (u16, u16),
    /// End of the wait, in seconds.
    pub met: f64,
}
