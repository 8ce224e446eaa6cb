//! The order of a GPU's launches, once a program captures some of them in a stream of its own.
//!
//! A replay of such a graph calls nobody, so a rank's stream cannot be told to wait for it. An event can: each captured launch
//! stands between a wait for it and a record of it, and from the first capture on, all that enters a rank's stream does so,
//! too. The driver resolves both when a graph is launched, so work comes in the order in which it was handed to the driver.
//!
//! There are two events, and all wait for both. No lock of ours keeps a replay from being launched between a thread's wait and
//! its record: with one event, that record would hide the replay's.

use super::event::Event;
use crate::error::{Error, Stall};
use crate::this_thread::this_thread;
use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// A node of a graph that the program captures, by the driver's number.
pub(crate) type Node = u64;

/// Turn that all wait for who enter a lane.
#[derive(Debug)]
pub(crate) struct Turn {
    /// After all that threads have enqueued so far. They record it while no other thread is in.
    pub entered: Event,
    /// After all replays so far. Replays alone record it.
    pub replayed: Event,
}

/// The order of launches of the ranks on a GPU that have the same place among their communicator's ranks there: of most
/// GPUs, all. Communicators share it.
#[derive(Debug, Default)]
pub(crate) struct Lane {
    /// After all that has entered so far. None before the first capture.
    turn: OnceLock<Turn>,
    state: Mutex<State>,
    free: Condvar,
}

/// Entrance of a rank's own stream into its lane, and the time that a thread of the rank waits for others that are
/// in.
#[derive(Clone)]
pub(super) struct Entrance {
    pub lane: Arc<Lane>,
    pub limit: Duration,
}

/// All that has a stream leads here.
impl fmt::Debug for Entrance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut entrance = f.debug_struct("Entrance");
        entrance.field("open", &self.lane.is_open());
        entrance.finish_non_exhaustive()
    }
}

#[derive(Debug, Default)]
struct State {
    /// The threads that enqueue, and how often each has entered. Once the lane is open, one at a time.
    inside: Vec<(usize, u32)>,
    /// True if a thread opens the lane: it waits for those that are in, and others wait for it.
    opening: bool,
    /// Number of threads that wait for others.
    waiting: usize,
    /// End of the latest captured launch: the capture, and the launch's last node in it.
    captured: Option<(u64, Node)>,
}

impl Lane {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// True if something was captured.
    pub fn is_open(&self) -> bool {
        self.turn.get().is_some()
    }

    /// The events, from now on after everything that `make` put before them, while no other thread enqueues.
    ///
    /// # Errors
    /// [`Error::Stalled`] if another thread stays in; those of `make`.
    pub fn open(
        &self,
        limit: Duration,
        make: impl FnOnce() -> Result<Turn, Error>,
    ) -> Result<&Turn, Error> {
        if let Some(turn) = self.turn.get() {
            return Ok(turn);
        }
        let others_open = |state: &mut State| state.opening;
        self.until(limit, others_open)?.opening = true;
        let made = || {
            let others_in =
                |state: &mut State| state.inside.iter().any(|(of, _)| *of != this_thread());
            drop(self.until(limit, others_in)?);
            match self.turn.get() {
                Some(turn) => Ok(turn),
                None => make().map(|turn| self.turn.get_or_init(|| turn)),
            }
        };
        let made = made();
        let mut state = self.state();
        state.opening = false;
        self.frees(state);
        made
    }

    /// The events, if something was captured.
    pub(super) fn turn(&self) -> Option<&Turn> {
        self.turn.get()
    }

    /// Waits as long as others are in the way.
    ///
    /// # Errors
    /// [`Error::Stalled`] if they stay.
    fn until(
        &self,
        limit: Duration,
        mut blocked: impl FnMut(&mut State) -> bool,
    ) -> Result<MutexGuard<'_, State>, Error> {
        let mut since = None;
        let mut state = self.state();
        while blocked(&mut state) {
            let start = *since.get_or_insert_with(Instant::now);
            let left = limit.saturating_sub(start.elapsed());
            if left.is_zero() {
                return Err(Error::Stalled(Box::new(Stall {
                    role: "its thread has something to enqueue".into(),
                    waited_on: "threads of other communicators on the GPU that had enqueued theirs"
                        .into(),
                    wanted: 1,
                    ..Stall::default()
                })));
            }
            state.waiting += 1;
            let waited = self.free.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
            state.waiting -= 1;
        }
        Ok(state)
    }

    /// Wakes those that wait, if any do: to wake nobody is a call of the system, too, and a good part of what a launch costs.
    fn frees(&self, state: MutexGuard<'_, State>) {
        let waiting = state.waiting;
        drop(state);
        if waiting > 0 {
            self.free.notify_all();
        }
    }

    /// True if another thread keeps this one out.
    fn is_kept_out(&self, state: &State) -> bool {
        let is_in = state.inside.iter().any(|(of, _)| *of == this_thread());
        let blocked = match self.is_open() {
            true => !state.inside.is_empty(),
            false => state.opening,
        };
        blocked && !is_in
    }

    fn enters(mut state: MutexGuard<'_, State>) {
        let own = this_thread();
        match state.inside.iter_mut().find(|(of, _)| *of == own) {
            Some((_, depth)) => *depth += 1,
            None => state.inside.push((own, 1)),
        }
    }

    /// Comes in, until [`Lane::unlock`], which this thread calls as often. An open lane has one thread at a time; who opens
    /// one waits for those that are in.
    ///
    /// # Errors
    /// [`Error::Stalled`] if another thread stays in.
    pub(super) fn lock(&self, limit: Duration) -> Result<(), Error> {
        let state = self.until(limit, |state| self.is_kept_out(state))?;
        Lane::enters(state);
        Ok(())
    }

    /// Enters without a wait. True if it came in.
    pub(super) fn try_lock(&self) -> bool {
        let state = self.state();
        let free = !self.is_kept_out(&state);
        if free {
            Lane::enters(state);
        }
        free
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

    /// Lets other threads in.
    pub(super) fn unlock(&self) {
        let (mut state, own) = (self.state(), this_thread());
        if let Some(at) = state.inside.iter().position(|(of, _)| *of == own) {
            let (_, depth) = &mut state.inside[at];
            *depth -= 1;
            if *depth == 0 {
                state.inside.swap_remove(at);
                self.frees(state);
            }
        }
    }
}
