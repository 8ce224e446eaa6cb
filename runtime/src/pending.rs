//! A launch that was enqueued.

use crate::communicator::Communicator;
use crate::done::Done;
use crate::driver::{Event, Stream};
use crate::error::Error;
use std::sync::Arc;

/// A launch that was enqueued: ask it, wait for it, or drop it. It owns none of the launch's memory and borrows nothing:
/// dropping it does nothing, and the launch keeps what it needs without it. Who asks for the first time also waits for what
/// the rank wrote, filled and copied since, but for no later launch and for nobody else's work.
///
/// ```
/// use counterflow::{Communicator, prelude::bf16, schedules::GemmOp};
///
/// let rank = &Communicator::emulated(1)?[0];
/// let op = rank.op_of::<GemmOp>().first_options().up_to(64, 64, 64).build()?;
/// let (x, mut y) = (rank.zeros::<bf16>([64, 64])?, rank.zeros::<bf16>([64, 64])?);
/// let done = op.on(rank).x(&x).w(&x).y(&mut y).launch()?;
/// done.wait_on(&rank.gpu().stream()?)?; // another stream goes on after it
/// done.wait()?; // and so does this thread
/// assert!(done.is_done()?);
/// # Ok::<(), counterflow::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Pending {
    rank: Arc<Communicator>,
    /// None: a graph records it.
    done: Option<Arc<Done>>,
    /// The rank's latest launch by then that waits for peers.
    launch: Option<u64>,
}

impl Pending {
    pub(crate) fn new(rank: &Arc<Communicator>, done: Arc<Done>, launch: Option<u64>) -> Pending {
        Pending {
            rank: rank.clone(),
            done: Some(done),
            launch,
        }
    }

    /// Makes the handle of a launch that becomes part of a graph.
    pub(crate) fn recorded(rank: &Arc<Communicator>) -> Pending {
        Pending {
            rank: rank.clone(),
            done: None,
            launch: None,
        }
    }

    /// Event of the launch's end, if somebody asked before.
    #[cfg(test)]
    pub(crate) fn known(&self) -> Option<Arc<Event>> {
        self.done.as_ref().and_then(|done| done.known())
    }

    fn done(&self) -> Result<Arc<Event>, Error> {
        let done = self.done.as_ref().ok_or_else(|| Error::Usage {
            what: "a launch that was recorded in a graph did not run".into(),
            legal: "launch the graph, and wait for what that gives".into(),
        })?;
        match done.known() {
            Some(event) => Ok(event),
            None => done.event(self.rank.gpu().current()?, self.rank.own_stream()),
        }
    }

    /// True if the launch has ended well. Does not wait.
    ///
    /// # Errors
    /// [`Error::Stalled`] if it or a peer gave up.
    pub fn is_done(&self) -> Result<bool, Error> {
        let done = self.done()?.is_done();
        // What gave up has ended too, and its results are no results.
        self.rank.judge(done)
    }

    /// Waits until it has ended well.
    ///
    /// # Errors
    /// [`Error::Stalled`] if it or a peer gave up.
    pub fn wait(&self) -> Result<(), Error> {
        let done = self.done()?;
        self.rank.until(|| done.is_done())
    }

    /// Makes later work of `stream` wait for the launch. The host does not wait.
    ///
    /// # Errors
    /// [`Error::Stalled`] if a launch gave up before; what the driver refuses.
    pub fn wait_on(&self, stream: &Stream) -> Result<(), Error> {
        let done = self.done()?;
        self.rank.alive()?;
        if let Some(launch) = self.launch {
            self.rank.stands(stream, launch, &done);
        }
        stream.wait(&done)
    }
}
