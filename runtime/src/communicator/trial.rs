//! A communicator beside another one, of the same ranks, for launches that may stall or fail: its end is not the other's.

use super::Communicator;
use crate::driver::is_done;
use crate::error::{Error, Stall};
use crate::retire;
use std::time::{Duration, Instant};
use tracing::debug;

/// Time between two looks at a stream.
const PAUSE: Duration = Duration::from_micros(50);

impl Communicator {
    /// A communicator of the same ranks with a heap, a ledger, a stream and an end of its own, whose kernels wait for a peer at
    /// most `patience`. Launches of other communicators on the GPUs do not wait for its launches. Collective. Give it back with
    /// [`Communicator::gives_back`].
    ///
    /// # Errors
    /// As [`Communicator::split`].
    pub(crate) fn trial(&self, patience: Duration) -> Result<Communicator, Error> {
        self.own().must_not_have_turn("a call of all ranks")?;
        let (group, rank) = self.group.trial(self.rank)?;
        debug!(rank, ?patience, "trial");
        let mut made = self.seat_in(&group, rank);
        made.patience = Some(patience);
        Ok(made)
    }

    /// True if some ranks share a GPU, whichever it is: of this communicator, or of one that it was split off.
    pub(crate) fn any_shares_gpu(&self) -> bool {
        self.group.any_shares()
    }

    /// True if another communicator of this process has ranks on a GPU of this one's ranks here. One that was dropped has none, once
    /// its work is done.
    pub(crate) fn has_company(&self) -> bool {
        retire::sweep();
        self.group.has_company()
    }

    /// Waits for launches of other communicators of this process on this rank's GPU, at most `limit`. True if none runs then.
    ///
    /// # Errors
    /// Why the communicator ended.
    pub(crate) fn is_quiet_within(&self, limit: Duration) -> Result<bool, Error> {
        let start = Instant::now();
        let is_busy = || self.group.is_busy_beside(self.rank);
        self.until(|| Ok(!is_busy() || start.elapsed() > limit))?;
        Ok(!is_busy())
    }

    /// Time that a kernel waits for a peer.
    pub(crate) fn patience(&self) -> Duration {
        self.patience.unwrap_or(self.timeout())
    }

    /// Bytes at the start of every slot of the heap that are the communicator's own.
    pub(crate) fn control_bytes(&self) -> u64 {
        self.group.control()
    }

    /// Waits for this rank's stream, at most `limit`. Nothing ends if that is not enough.
    ///
    /// # Errors
    /// [`Error::Stalled`] if it is not; why the communicator ended.
    pub(crate) fn waits_at_most(&self, limit: Duration) -> Result<(), Error> {
        let start = Instant::now();
        let in_time = self.until(|| Ok(is_done(self.own_stream())? || start.elapsed() > limit));
        in_time?;
        match is_done(self.own_stream())? {
            true => Ok(()),
            false => Err(Error::Stalled(Box::new(Stall {
                rank: self.rank,
                role: format!("its host waits {limit:?} for its GPU"),
                waited_on:
                    "kernels that do not run, as where another library's kernels have the SMs"
                        .into(),
                wanted: 1,
                ..Stall::default()
            }))),
        }
    }

    /// Ends a trial on this rank and frees what it has. If its kernels do not end within `limit`, they end as soon as they run,
    /// and its memory is freed after that. True if it is free on this rank now.
    pub(crate) fn gives_back(self, limit: Duration) -> bool {
        let start = Instant::now();
        // A context that is dead runs nothing any more.
        let done = || is_done(self.own_stream()).unwrap_or(true);
        while !done() && start.elapsed() < limit {
            std::thread::sleep(PAUSE);
        }
        let free = done();
        drop(self);
        retire::sweep();
        free
    }
}
