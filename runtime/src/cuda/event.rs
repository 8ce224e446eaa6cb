//! Events: points in a stream.

use super::Gpu;
use super::driver::{check, checked};
use crate::error::Error;
use cudarc::driver::sys::{self, CUevent_flags};
use cudarc::driver::{CudaEvent, CudaStream};
use std::time::Duration;

/// A point in a stream.
#[derive(Debug)]
pub(crate) struct Event(CudaEvent);

impl Event {
    /// After everything that is in the stream now.
    pub(crate) fn record(stream: &CudaStream) -> Result<Event, Error> {
        let event = stream.record_event(Some(CUevent_flags::CU_EVENT_DEFAULT));
        checked("record an event", event).map(Event)
    }

    /// The same, without the time.
    pub(crate) fn order(stream: &CudaStream) -> Result<Event, Error> {
        checked("record an event", stream.record_event(None)).map(Event)
    }

    /// Moves it to after everything that is in the stream now.
    pub(crate) fn record_again(&self, stream: &CudaStream) -> Result<(), Error> {
        checked("order streams", self.0.record(stream))
    }

    /// What comes later in that stream waits for it.
    pub(crate) fn hold(&self, stream: &CudaStream) -> Result<(), Error> {
        checked("order streams", stream.wait(&self.0))
    }

    /// Whether the stream has reached it.
    pub(crate) fn is_done(&self) -> Result<bool, Error> {
        checked("select the GPU", self.0.context().bind_to_thread())?;
        // SAFETY: the event is alive.
        match unsafe { sys::cuEventQuery(self.0.cu_event()) } {
            sys::CUresult::CUDA_ERROR_NOT_READY => Ok(false),
            code => check("ask the GPU how far it is", code).map(|()| true),
        }
    }

    /// Waits until the stream reaches it.
    pub(crate) fn wait(&self) -> Result<(), Error> {
        checked("wait for an event", self.0.synchronize())
    }

    /// How long after an earlier one, once both are past.
    pub(crate) fn since(&self, earlier: &Event) -> Result<Duration, Error> {
        let milliseconds = checked("time two events", earlier.0.elapsed_ms(&self.0))?;
        Ok(Duration::from_secs_f64(
            f64::from(milliseconds).max(0.0) / 1e3,
        ))
    }
}

impl Gpu {
    /// A new event that orders and does not time.
    pub(crate) fn event(&self) -> Result<Event, Error> {
        checked("make an event", self.context().new_event(None)).map(Event)
    }
}
