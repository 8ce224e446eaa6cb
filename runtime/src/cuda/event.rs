//! Events: points in a stream.

use super::driver::checked;
use crate::error::Error;
use cudarc::driver::sys::CUevent_flags;
use cudarc::driver::{CudaEvent, CudaStream};
use std::time::Duration;

/// A point in a stream.
#[derive(Debug)]
pub struct Event(CudaEvent);

impl Event {
    /// After everything that is in the stream now.
    ///
    /// # Errors
    /// What the kernels before ended with.
    pub fn record(stream: &CudaStream) -> Result<Event, Error> {
        let event = stream.record_event(Some(CUevent_flags::CU_EVENT_DEFAULT));
        checked("record an event", event).map(Event)
    }

    /// Waits until the stream reaches it.
    ///
    /// # Errors
    /// What the kernels before ended with.
    pub fn wait(&self) -> Result<(), Error> {
        checked("wait for an event", self.0.synchronize())
    }

    /// How long after an earlier one, once both are past.
    ///
    /// # Errors
    /// What the kernels before ended with.
    pub fn since(&self, earlier: &Event) -> Result<Duration, Error> {
        let milliseconds = checked("time two events", earlier.0.elapsed_ms(&self.0))?;
        Ok(Duration::from_secs_f64(
            f64::from(milliseconds).max(0.0) / 1e3,
        ))
    }
}
