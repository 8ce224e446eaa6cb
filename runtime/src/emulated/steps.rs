//! Steps of recorded work. They name no machine and no stream.

use counterflow_emulator::open::{Point, Work};
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

/// Place and time at which an event is recorded. Clones are the same event's.
#[derive(Clone, Debug, Default)]
pub(super) struct Mark(Arc<Mutex<Option<(Point, u64)>>>);

impl Mark {
    pub fn get(&self) -> Option<(Point, u64)> {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn set(&self, at: (Point, u64)) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(at);
    }
}

/// A step of a graph.
#[derive(Clone, Debug)]
pub(super) enum Step {
    Work(Work),
    /// Waits for where the event is recorded by then.
    Hold(Mark),
    /// Records the event.
    Record(Mark),
}

/// Action once a graph is gone.
pub(super) struct Gone(Box<dyn FnOnce() + Send + Sync>);

impl Gone {
    pub fn new(act: Box<dyn FnOnce() + Send + Sync>) -> Gone {
        Gone(act)
    }

    pub fn act(self) {
        (self.0)();
    }
}

impl fmt::Debug for Gone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("what acts once a graph is gone")
    }
}

/// Recording so far.
#[derive(Debug)]
pub(super) struct Recorded {
    pub id: u64,
    pub steps: Vec<Step>,
    pub gone: Vec<Gone>,
}
