//! The order of a GPU's launches, once a program captures some of them in a stream of its own.
//!
//! A replay of such a graph calls nobody, so a rank's stream cannot be told to wait for it. An event can: each captured launch
//! stands between a wait for it and a record of it, and from the first capture on, all that enters a rank's stream does so,
//! too. The driver resolves both when a graph is launched, so work comes in the order in which it was handed to the driver.

use super::event::Event;
use super::graph::Node;
use super::stream::Stream;
use crate::error::{Error, Stall};
use crate::this_thread::this_thread;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// The order of launches of the ranks on a GPU that have the same place among their communicator's ranks there: of most
/// GPUs, all. Communicators share it.
#[derive(Debug, Default)]
pub(crate) struct Lane {
    /// After all that has entered so far. None before the first capture.
    turn: OnceLock<Event>,
    state: Mutex<State>,
    free: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// The thread that enqueues, and how often it has entered.
    holder: Option<(usize, u32)>,
    /// Where the latest captured launch ends: in which capture, and its last node.
    captured: Option<(u64, Node)>,
}

/// Work enters until this is dropped.
#[derive(Debug)]
pub(crate) struct Entering<'a> {
    lane: &'a Lane,
    /// None: a captured launch.
    stream: Option<(&'a Stream, &'a Event)>,
}

impl Lane {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether something was captured.
    pub fn is_open(&self) -> bool {
        self.turn.get().is_some()
    }

    /// The event, from now on after everything that `make` put before it.
    pub fn open(&self, make: impl FnOnce() -> Result<Event, Error>) -> Result<&Event, Error> {
        if let Some(turn) = self.turn.get() {
            return Ok(turn);
        }
        let made = make()?;
        Ok(self.turn.get_or_init(|| made))
    }

    /// Keeps other threads out.
    fn lock(&self) -> Result<(), Error> {
        /// Who is in only enqueues.
        const LIMIT: Duration = Duration::from_secs(110);
        let start = Instant::now();
        let mut state = self.state();
        loop {
            match &mut state.holder {
                None => {
                    state.holder = Some((this_thread(), 1));
                    return Ok(());
                }
                Some((holder, depth)) if *holder == this_thread() => {
                    *depth += 1;
                    return Ok(());
                }
                Some(_) if start.elapsed() > LIMIT => {
                    return Err(Error::Stalled(Box::new(Stall {
                        role: "its thread has something to enqueue".into(),
                        waited_on:
                            "threads of other communicators on the GPU that had enqueued theirs"
                                .into(),
                        wanted: 1,
                        ..Stall::default()
                    })));
                }
                Some(_) => {
                    let waited = self.free.wait_timeout(state, LIMIT);
                    state = waited.unwrap_or_else(PoisonError::into_inner).0;
                }
            }
        }
    }

    /// A captured launch is about to be recorded.
    ///
    /// # Errors
    /// [`Error::Stalled`] if another thread stays in.
    pub fn captures(&self) -> Result<Entering<'_>, Error> {
        self.lock()?;
        Ok(Entering {
            lane: self,
            stream: None,
        })
    }

    /// The last node of the latest launch, if it is in that capture.
    pub fn before(&self, capture: u64) -> Option<Node> {
        let captured = self.state().captured;
        captured
            .filter(|(known, _)| *known == capture)
            .map(|(_, node)| node)
    }

    /// The launch ends with that node.
    pub fn captured(&self, capture: u64, node: Node) {
        self.state().captured = Some((capture, node));
    }
}

impl Stream {
    /// Its lane, if it is a rank's own stream.
    pub(crate) fn lane(&self) -> Option<&Arc<Lane>> {
        self.1.as_ref()
    }

    /// The same stream as a rank's own, in that lane.
    #[must_use]
    pub(crate) fn in_lane(self, lane: Arc<Lane>) -> Stream {
        Stream(self.0, Some(lane))
    }

    /// Work is about to enter, until the result is dropped: it comes after all replays of captured launches that were
    /// launched before, and before those that come later. Nothing, unless something was captured.
    ///
    /// # Errors
    /// What the driver refuses.
    pub(crate) fn enter(&self) -> Result<Option<Entering<'_>>, Error> {
        let Some(lane) = self.lane() else {
            return Ok(None);
        };
        let Some(turn) = lane.turn.get() else {
            return Ok(None);
        };
        lane.lock()?;
        let mut entering = Entering { lane, stream: None };
        self.wait(turn)?;
        entering.stream = Some((self, turn));
        Ok(Some(entering))
    }
}

impl Drop for Entering<'_> {
    fn drop(&mut self) {
        if let Some((stream, turn)) = self.stream {
            // A context that takes no event is dead, and runs nothing.
            let _ = turn.record_again(stream);
        }
        let mut state = self.lane.state();
        if let Some((_, depth)) = &mut state.holder {
            *depth -= 1;
            if *depth == 0 {
                state.holder = None;
                self.lane.free.notify_one();
            }
        }
    }
}
