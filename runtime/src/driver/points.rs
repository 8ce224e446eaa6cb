//! Events in streams: where they are recorded, and what waits for them.

use super::event::{Event, Kind as EventKind, mixed};
use super::gpu::{Gpu, Kind as GpuKind};
use super::stream::{Kind as StreamKind, Stream};
use crate::cuda;
use crate::emulated;
use crate::error::Error;

impl Event {
    /// After everything that is in the stream now. It can be timed.
    ///
    /// # Errors
    /// What the kernels before ended with.
    pub fn record(stream: &Stream) -> Result<Event, Error> {
        match &stream.0 {
            StreamKind::Cuda(stream) => cuda::Event::record(stream).map(Event::from),
            StreamKind::Emulated(stream) => emulated::Event::of(stream).map(Event::from),
        }
    }

    /// After everything that is in this emulated stream now.
    pub(super) fn emulated(stream: &emulated::Stream) -> Result<Event, Error> {
        emulated::Event::of(stream).map(Event::from)
    }

    /// Moves it to after everything that is in the stream now. What waited for it before keeps waiting for the earlier
    /// point.
    ///
    /// # Errors
    /// What the kernels before ended with.
    pub fn record_again(&self, stream: &Stream) -> Result<(), Error> {
        match (&self.0, &stream.0) {
            (EventKind::Cuda(event), StreamKind::Cuda(stream)) => {
                cuda::bind(stream)?;
                event.record_again(stream)
            }
            (EventKind::Emulated(event), StreamKind::Emulated(stream)) => event.record(stream),
            (EventKind::Cuda(_), StreamKind::Emulated(_))
            | (EventKind::Emulated(_), StreamKind::Cuda(_)) => Err(mixed()),
        }
    }
}

impl Gpu {
    /// A new event that orders and keeps no time. Record it with [`Event::record_again`].
    ///
    /// # Errors
    /// What the driver refuses.
    pub fn event(&self) -> Result<Event, Error> {
        match &self.0 {
            GpuKind::Cuda(gpu) => gpu.event().map(Event::from),
            GpuKind::Emulated(gpu) => Ok(emulated::Event::new(gpu).into()),
        }
    }
}

impl Stream {
    /// Makes later work of this stream wait until the event's stream has reached it. The host does not wait.
    ///
    /// # Errors
    /// What the driver refuses.
    pub fn wait(&self, event: &Event) -> Result<(), Error> {
        match (&self.0, &event.0) {
            (StreamKind::Cuda(stream), EventKind::Cuda(event)) => {
                cuda::bind(stream)?;
                event.hold(stream)
            }
            (StreamKind::Emulated(stream), EventKind::Emulated(event)) => stream.wait(event),
            (StreamKind::Cuda(_), EventKind::Emulated(_))
            | (StreamKind::Emulated(_), EventKind::Cuda(_)) => Err(mixed()),
        }
    }
}
