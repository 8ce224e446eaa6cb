//! Events: points in a stream.

use super::refusal;
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

    /// True if the stream has reached the event, or if it was never recorded. Does not wait.
    ///
    /// # Errors
    /// What the kernels before ended with.
    pub fn is_done(&self) -> Result<bool, Error> {
        match &self.0 {
            Kind::Cuda(event) => event.is_done(),
            Kind::Emulated(event) => event.is_done(),
        }
    }

    /// True if nothing before it runs any more: the stream has reached it, or the context is dead. Not, if that cannot be
    /// asked.
    pub(crate) fn is_past(&self) -> bool {
        settled(self.is_done())
    }

    /// Time since an earlier event, once both are past. An emulated GPU has no clock of its own: there it is the time
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

/// True if nothing runs any more, by that answer to whether it is done: it is, or the context is dead.
pub(super) fn settled(answer: Result<bool, Error>) -> bool {
    answer.unwrap_or_else(|error| cuda::is_dead(&error) || emulated::is_dead(&error))
}
