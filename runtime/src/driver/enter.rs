//! Work enters a lane: that of a rank's own stream, and captured launches.

use super::event::Event;
use super::lane::Lane;
use super::stream::Stream;
use crate::error::Error;

/// Work enters until this is dropped.
#[derive(Debug)]
pub(crate) struct Entering<'a> {
    lane: &'a Lane,
    /// None: a captured launch.
    stream: Option<(&'a Stream, &'a Event)>,
}

impl Lane {
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
}

impl Stream {
    /// Work is about to enter, until the result is dropped: it comes after all replays of captured launches that were
    /// launched before, and before those that come later. Nothing, unless something was captured.
    ///
    /// # Errors
    /// What the driver refuses.
    pub(crate) fn enter(&self) -> Result<Option<Entering<'_>>, Error> {
        let Some(lane) = self.lane() else {
            return Ok(None);
        };
        let Some(turn) = lane.turn() else {
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
        self.lane.unlock();
    }
}
