//! Events: points in a stream.
//!
//! To make an event and to destroy it costs a good part of what a launch may cost, so events that keep no time are used
//! again. Nobody sees it: a stream that was told to wait for one waits for the point at which it was recorded then. A GPU
//! keeps them, and they go with its last handle: an event holds the GPU's context.

use super::Gpu;
use super::driver::{aside, check, checked, on, passed};
use super::relaxed::relaxed;
use super::unused::Unused;
use crate::error::Error;
use cudarc::driver::sys::{self, CUevent_flags};
use cudarc::driver::{CudaEvent, CudaStream};
use std::mem::ManuallyDrop;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// A point in a stream.
#[derive(Debug)]
pub(crate) struct Event {
    event: ManuallyDrop<CudaEvent>,
    /// Pool that takes the event back when this is dropped, if others may have it then.
    again: Option<Weak<Unused>>,
}

impl Event {
    fn of(event: CudaEvent, again: Option<Weak<Unused>>) -> Event {
        Event {
            event: ManuallyDrop::new(event),
            again,
        }
    }

    /// The driver's handle.
    pub(super) fn raw(&self) -> sys::CUevent {
        self.event.cu_event()
    }

    /// After everything that is in the stream now.
    pub(crate) fn record(stream: &CudaStream) -> Result<Event, Error> {
        let event = stream.record_event(Some(CUevent_flags::CU_EVENT_DEFAULT));
        checked("record an event", event).map(|event| Event::of(event, None))
    }

    /// Moves it to after everything that is in the stream now. The stream's context is current.
    pub(crate) fn record_again(&self, stream: &CudaStream) -> Result<(), Error> {
        // SAFETY: both are alive; the driver refuses those of two contexts.
        check("order streams", unsafe {
            sys::cuEventRecord(self.event.cu_event(), stream.cu_stream())
        })
    }

    /// Has later work of that stream wait for the event. The stream's context is current.
    pub(crate) fn hold(&self, stream: &CudaStream) -> Result<(), Error> {
        let plain = sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT as u32;
        // SAFETY: both are alive.
        check("order streams", unsafe {
            sys::cuStreamWaitEvent(stream.cu_stream(), self.event.cu_event(), plain)
        })
    }

    /// True if the stream has reached it.
    pub(crate) fn is_done(&self) -> Result<bool, Error> {
        // SAFETY: the event is alive.
        let query = || unsafe { sys::cuEventQuery(self.event.cu_event()) };
        passed(on(self.event.context(), query)?)
    }

    /// Waits until the stream reaches it.
    pub(crate) fn wait(&self) -> Result<(), Error> {
        relaxed(|| checked("wait for an event", self.event.synchronize()))
    }

    /// Time since an earlier event, once both are past.
    pub(crate) fn since(&self, earlier: &Event) -> Result<Duration, Error> {
        let milliseconds = checked("time two events", earlier.event.elapsed_ms(&self.event))?;
        Ok(Duration::from_secs_f64(
            f64::from(milliseconds).max(0.0) / 1e3,
        ))
    }
}

impl Gpu {
    /// After everything that is in this stream of the GPU now. It keeps no time. The GPU is current.
    pub(crate) fn order(&self, stream: &CudaStream) -> Result<Event, Error> {
        let event = match self.unused().take() {
            Some(event) => event,
            None => checked("make an event", self.context().new_event(None))?,
        };
        let event = Event::of(event, Some(Arc::downgrade(self.unused())));
        event.record_again(stream).map(|()| event)
    }

    /// A new event that orders and does not time.
    pub(crate) fn event(&self) -> Result<Event, Error> {
        let event = checked("make an event", self.context().new_event(None));
        event.map(|event| Event::of(event, None))
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: the event is taken once, here, where nobody has the place any more.
        let event = unsafe { ManuallyDrop::take(&mut self.event) };
        match self.again.as_ref().and_then(Weak::upgrade) {
            Some(unused) => unused.put(event),
            // To destroy one selects its GPU, and a launch on another may be what drops it.
            None => aside(|| drop(event)),
        }
    }
}
