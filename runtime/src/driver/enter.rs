//! Work enters a lane: that of a rank's own stream, and captured launches.

use super::lane::{Entrance, Lane, Turn};
use super::stream::Stream;
use crate::error::Error;

/// Work enters until this is dropped.
#[derive(Debug)]
pub(crate) struct Entering<'a> {
    lane: &'a Lane,
    /// None: a captured launch, or nothing was captured yet.
    stream: Option<(&'a Stream, &'a Turn)>,
}

impl<'a> Entering<'a> {
    /// The thread has come in: what enters the stream comes after all that entered before.
    fn into_stream(mut self, stream: &'a Stream) -> Result<Entering<'a>, Error> {
        if let Some(turn) = self.lane.turn() {
            stream.wait(&turn.entered)?;
            stream.wait(&turn.replayed)?;
            self.stream = Some((stream, turn));
        }
        Ok(self)
    }
}

impl Entrance {
    fn entered(&self) -> Result<Entering<'_>, Error> {
        let Entrance { lane, limit } = self;
        lane.lock(*limit)?;
        Ok(Entering { lane, stream: None })
    }
}

impl Stream {
    /// Work is about to enter, until the result is dropped: it comes after all replays of captured launches that were
    /// launched before, and before those that come later. Before something was captured, this only keeps the lane from
    /// opening. The host waits for nothing until the result is dropped: other communicators' threads may wait for it.
    ///
    /// # Errors
    /// [`Error::Stalled`] if another thread stays in; what the driver refuses.
    pub(crate) fn enter(&self) -> Result<Option<Entering<'_>>, Error> {
        let entered = self.entrance().map(Entrance::entered).transpose()?;
        entered
            .map(|entering| entering.into_stream(self))
            .transpose()
    }

    /// From here on the stream comes after all replays that were launched before. Does not wait: false if another thread is
    /// in, and nothing was done.
    ///
    /// # Errors
    /// What the driver refuses.
    pub(crate) fn comes_after_replays(&self) -> Result<bool, Error> {
        let Some(Entrance { lane, .. }) = self.entrance() else {
            return Ok(true);
        };
        if !lane.try_lock() {
            return Ok(false);
        }
        let entering = Entering { lane, stream: None };
        entering.into_stream(self).map(|_| true)
    }

    /// Work that waits for no peer and may take the host long, such as a program's own code: it enters as with
    /// [`Stream::enter`], but no other thread waits for it.
    ///
    /// # Errors
    /// Those of `work`, and of [`Stream::enter`].
    pub(crate) fn around<T>(&self, work: impl FnOnce() -> Result<T, Error>) -> Result<T, Error> {
        drop(self.enter()?);
        let done = work()?;
        // Before what comes later: also replays that are launched from here on.
        drop(self.enter()?);
        Ok(done)
    }

    /// A captured launch of the stream's rank is about to be recorded: no other one is, until the result is dropped.
    ///
    /// # Errors
    /// [`Error::Stalled`] if another thread stays in.
    pub(crate) fn captures(&self) -> Result<Option<Entering<'_>>, Error> {
        self.entrance().map(Entrance::entered).transpose()
    }
}

impl Drop for Entering<'_> {
    fn drop(&mut self) {
        if let Some((stream, turn)) = self.stream {
            // A context that takes no event is dead, and runs nothing.
            let _ = turn.entered.record_again(stream);
        }
        self.lane.unlock();
    }
}
