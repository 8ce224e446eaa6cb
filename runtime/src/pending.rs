//! A launch that was enqueued.

use crate::communicator::Communicator;
use crate::driver::{Event, Stream};
use crate::error::Error;
use std::sync::Arc;

/// A launch that was enqueued: ask it, wait for it, or drop it. It owns none of the launch's memory and borrows nothing:
/// dropping it does nothing, and the launch keeps what it needs without it.
#[derive(Clone, Debug)]
pub struct Pending {
    rank: Arc<Communicator>,
    done: Arc<Event>,
}

impl Pending {
    pub(crate) fn new(rank: &Arc<Communicator>, done: Event) -> Pending {
        Pending {
            rank: rank.clone(),
            done: Arc::new(done),
        }
    }

    /// Whether it has ended well. Does not wait.
    ///
    /// # Errors
    /// [`Error::Stalled`] if it or a peer gave up.
    pub fn is_done(&self) -> Result<bool, Error> {
        let done = self.done.is_done();
        // What gave up has ended too, and its results are no results.
        self.rank.judge(done)
    }

    /// Waits until it has ended well.
    ///
    /// # Errors
    /// [`Error::Stalled`] if it or a peer gave up.
    pub fn wait(&self) -> Result<(), Error> {
        self.rank.until(|| self.done.is_done())
    }

    /// What comes later in that stream comes after the launch. The host does not wait.
    ///
    /// # Errors
    /// [`Error::Stalled`] if a launch gave up before; what the driver refuses.
    pub fn wait_on(&self, stream: &Stream) -> Result<(), Error> {
        self.rank.alive()?;
        stream.wait(&self.done)
    }
}
