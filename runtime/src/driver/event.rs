//! Events: points in a stream.

use super::gpu::{Gpu, Kind as GpuKind};
use super::refusal;
use super::stream::{Kind as StreamKind, Stream, settled};
use crate::cuda;
use crate::emulated;
use crate::error::Error;
use std::time::Duration;

/// A point in a stream.
///
/// ```
/// use counterflow::{Communicator, driver::Event};
///
/// let rank = &Communicator::emulated(1)?[0];
/// let stream = rank.gpu().stream()?;
/// let start = Event::record(&stream)?;
/// // What is timed comes here.
/// let end = Event::record(&stream)?;
/// end.wait()?;
/// assert!(end.is_done()?);
/// println!("{:?}", end.since(&start)?);
/// start.record_again(&stream)?; // for the next time
/// # Ok::<(), counterflow::Error>(())
/// ```
#[derive(Debug)]
pub struct Event(pub(super) Kind);

#[derive(Debug)]
pub(super) enum Kind {
    Cuda(cuda::Event),
    Emulated(emulated::Event),
}

impl From<cuda::Event> for Event {
    fn from(event: cuda::Event) -> Event {
        Event(Kind::Cuda(event))
    }
}

impl From<emulated::Event> for Event {
    fn from(event: emulated::Event) -> Event {
        Event(Kind::Emulated(event))
    }
}

/// The refusal of an event and a stream of which one is emulated.
pub(super) fn mixed() -> Error {
    refusal::emulated("one of an event and a stream")
}

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
            (Kind::Cuda(event), StreamKind::Cuda(stream)) => {
                cuda::bind(stream)?;
                event.record_again(stream)
            }
            (Kind::Emulated(event), StreamKind::Emulated(stream)) => {
                stream.on_the_machine_of(event)?;
                event.record(stream)
            }
            (Kind::Cuda(_), StreamKind::Emulated(_)) | (Kind::Emulated(_), StreamKind::Cuda(_)) => {
                Err(mixed())
            }
        }
    }

    /// Waits until the stream reaches it.
    ///
    /// # Errors
    /// What the kernels before ended with.
    pub fn wait(&self) -> Result<(), Error> {
        match &self.0 {
            Kind::Cuda(event) => event.wait(),
            Kind::Emulated(event) => event.wait(),
        }
    }

    /// Whether the stream has reached it. Does not wait. True if it was never recorded.
    ///
    /// # Errors
    /// What the kernels before ended with.
    pub fn is_done(&self) -> Result<bool, Error> {
        match &self.0 {
            Kind::Cuda(event) => event.is_done(),
            Kind::Emulated(event) => event.is_done(),
        }
    }

    /// Whether nothing before it runs any more: the stream has reached it, or the context is dead. Not, if that cannot be
    /// asked.
    pub(crate) fn is_past(&self) -> bool {
        settled(self.is_done())
    }

    /// How long after an earlier one, once both are past. An emulated GPU has no clock of its own: there it is the time
    /// between the calls that recorded them.
    ///
    /// # Errors
    /// What the kernels before ended with; events of [`Gpu::event`](super::Gpu::event), which keep no time.
    pub fn since(&self, earlier: &Event) -> Result<Duration, Error> {
        match (&self.0, &earlier.0) {
            (Kind::Cuda(event), Kind::Cuda(earlier)) => event.since(earlier),
            (Kind::Emulated(event), Kind::Emulated(earlier)) => Ok(event.since(earlier)),
            (Kind::Cuda(_), Kind::Emulated(_)) | (Kind::Emulated(_), Kind::Cuda(_)) => Err(mixed()),
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
    /// What comes later in this stream waits until the event's stream has reached it. The host does not wait.
    ///
    /// # Errors
    /// What the driver refuses.
    pub fn wait(&self, event: &Event) -> Result<(), Error> {
        match (&self.0, &event.0) {
            (StreamKind::Cuda(stream), Kind::Cuda(event)) => {
                cuda::bind(stream)?;
                event.hold(stream)
            }
            (StreamKind::Emulated(stream), Kind::Emulated(event)) => stream.wait(event),
            (StreamKind::Cuda(_), Kind::Emulated(_)) | (StreamKind::Emulated(_), Kind::Cuda(_)) => {
                Err(mixed())
            }
        }
    }
}
