//! A launch that may be refused. What is refused before peers can know of the launch ends nothing: the rank may correct it
//! and launch. Later the peers wait for what never comes, so they are told.

use crate::communicator::Communicator;
use crate::error::Error;
use crate::group::Entry;
use std::cell::Cell;

/// A launch that peers may wait for, until it is enqueued or refused.
#[derive(Debug)]
pub(crate) struct Attempt<'a> {
    rank: &'a Communicator,
    /// True if peers can know of it, or a part of it may be in a graph.
    entered: Cell<bool>,
}

impl<'a> Attempt<'a> {
    pub fn new(rank: &'a Communicator) -> Attempt<'a> {
        Attempt {
            rank,
            entered: Cell::new(false),
        }
    }

    /// From here on it is refused no more: what fails ends the communicator.
    pub fn enters(&self) {
        self.entered.set(true);
    }

    /// Writes it into the ledger that all ranks read, as [`Communicator::write`] does, and gives its number on this rank. From
    /// then on peers count on it. It may wait for a slow peer, so nothing enters the rank's stream meanwhile.
    ///
    /// # Errors
    /// As there.
    pub fn write(&self, entry: &Entry) -> Result<u64, Error> {
        self.enters();
        let launch = self.rank.write(entry)?;
        self.rank.launches()?;
        Ok(launch)
    }

    /// Compares the launch of that number, which was written, on the GPUs, too, if replays are. Its kernel follows in the
    /// rank's stream. The GPU is current.
    ///
    /// # Errors
    /// What the driver refuses.
    pub fn compare(&self, launch: u64, entry: &Entry) -> Result<(), Error> {
        self.rank
            .compare(self.rank.own_stream(), entry, Some(launch))
    }

    /// Tells the peers what came of it, if they wait for such a launch. `what` names it.
    pub fn told<T>(&self, waits: bool, what: &str, result: Result<T, Error>) -> Result<T, Error> {
        if waits && let Err(error) = &result {
            match self.entered.get() {
                true => self
                    .rank
                    .ended_early(&format!("it does not launch {what}: {error}")),
                false => self.rank.was_refused(&format!("{what}: {error}")),
            }
        }
        result
    }
}
