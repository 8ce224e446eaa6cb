//! Events: points in a stream.

use super::stream::{Kind as StreamKind, Stream};
use crate::cuda;
use crate::error::Error;
use std::time::Duration;

/// A point in a stream.
#[derive(Debug)]
pub struct Event(pub(super) cuda::Event);

impl Event {
    /// After everything that is in the stream now. It can be timed.
    ///
    /// # Errors
    /// What the kernels before ended with.
    pub fn record(stream: &Stream) -> Result<Event, Error> {
        let StreamKind::Cuda(stream) = &stream.0;
        cuda::Event::record(stream).map(Event)
    }

    /// After everything that is in the stream now. It orders and keeps no time.
    pub(crate) fn order(stream: &Stream) -> Result<Event, Error> {
        let StreamKind::Cuda(stream) = &stream.0;
        cuda::Event::order(stream).map(Event)
    }

    /// Moves it to after everything that is in the stream now. What waited for it before keeps waiting for the earlier
    /// point.
    ///
    /// # Errors
    /// What the kernels before ended with.
    pub fn record_again(&self, stream: &Stream) -> Result<(), Error> {
        let StreamKind::Cuda(stream) = &stream.0;
        self.0.record_again(stream)
    }

    /// Waits until the stream reaches it.
    ///
    /// # Errors
    /// What the kernels before ended with.
    pub fn wait(&self) -> Result<(), Error> {
        self.0.wait()
    }

    /// Whether the stream has reached it. Does not wait. True if it was never recorded.
    ///
    /// # Errors
    /// What the kernels before ended with.
    pub fn is_done(&self) -> Result<bool, Error> {
        self.0.is_done()
    }

    /// How long after an earlier one, once both are past.
    ///
    /// # Errors
    /// What the kernels before ended with; events of [`Gpu::event`](super::Gpu::event), which keep no time.
    pub fn since(&self, earlier: &Event) -> Result<Duration, Error> {
        self.0.since(&earlier.0)
    }
}

impl Stream {
    /// What comes later in this stream waits until the event's stream has reached it. The host does not wait.
    ///
    /// # Errors
    /// What the driver refuses.
    pub fn wait(&self, event: &Event) -> Result<(), Error> {
        let StreamKind::Cuda(stream) = &self.0;
        event.0.hold(stream)
    }
}
