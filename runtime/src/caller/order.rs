//! A caller when its launch is made.

use super::{Caller, Kind};
use crate::communicator::Communicator;
use crate::driver::{Current, Stream};
use crate::error::Error;
use crate::recording::Recording;
use std::sync::Arc;

/// Order that a launch joins, seen from the rank that launches.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Place<'a> {
    /// The rank's own stream, alone.
    Own,
    /// Another stream: after what is in it, before what comes later.
    Outside(&'a Stream),
    /// A graph.
    Recording(&'a Recording),
    /// A graph that the program captures in that stream.
    Captured(&'a Stream),
}

/// A caller at the time of its launch. A caller may be made long before, and be kept for long after: only now is it known
/// whether this thread records what it joins.
#[derive(Debug)]
pub(crate) struct Order<'a> {
    kind: Kind<'a>,
    /// The graph that this thread records the rank's own order into, if the launch joins that order.
    own: Option<Arc<Recording>>,
}

impl<'a> Caller<'a> {
    /// What a launch of that rank joins, which this thread makes now.
    pub(crate) fn order(self, rank: &Communicator) -> Order<'a> {
        let joins_own = match &self.0 {
            Kind::Rank(other) => other.is(rank),
            Kind::Stream(stream) => stream.is(rank.own_stream()),
            Kind::Recording(_) => false,
        };
        let own = joins_own.then(|| rank.own().recording()).flatten();
        Order {
            kind: self.0,
            own: own.and_then(|recording| recording.itself().downcast().ok()),
        }
    }
}

impl Order<'_> {
    /// True if nothing runs now.
    pub fn records(&self) -> bool {
        self.own.is_some() || matches!(self.kind, Kind::Recording(_))
    }

    /// Place of a launch of that rank.
    ///
    /// # Errors
    /// [`Error::Usage`] for another rank, a stream of another GPU, a recording that has ended, and where the rank's own stream
    /// records a graph: what is in its order is then never done.
    pub fn place(&self, rank: &Communicator, current: Current<'_>) -> Result<Place<'_>, Error> {
        if let Some(recording) = &self.own {
            return recording.is_open().map(|()| Place::Recording(recording));
        }
        let others = |other: &Communicator| {
            Err(Error::Usage {
                what: format!("a launch of rank {} on rank {}", rank.rank(), other.rank()),
                legal: "each rank launches what it built".into(),
            })
        };
        match &self.kind {
            Kind::Rank(other) if !other.is(rank) => others(other),
            Kind::Recording(recording) if recording.rank().is(rank) => {
                recording.is_open().map(|()| Place::Recording(recording))
            }
            Kind::Recording(recording) => others(recording.rank()),
            Kind::Stream(stream) if !rank.gpu().has(stream) => Err(Error::Usage {
                what: format!("a stream of another GPU than rank {}'s", rank.rank()),
                legal: format!("give a stream of GPU {}", rank.gpu().ordinal()),
            }),
            // Nobody records a stream that nobody has.
            Kind::Rank(_) | Kind::Stream(_)
                if rank.has_lent() && current.is_capturing(rank.own_stream()) =>
            {
                Err(Error::Usage {
                    what: "a launch while the rank's own stream records a graph".into(),
                    legal: "capture another stream, or use `Communicator::capture`".into(),
                })
            }
            Kind::Stream(stream) if current.is_capturing(stream) => Ok(Place::Captured(stream)),
            Kind::Rank(_) => Ok(Place::Own),
            Kind::Stream(stream) if stream.is(rank.own_stream()) => Ok(Place::Own),
            Kind::Stream(stream) => Ok(Place::Outside(stream)),
        }
    }
}
