//! Graphs: work that was recorded once and is launched as a whole.

use super::driver::{check, checked};
use crate::error::Error;
use cudarc::driver::{CudaContext, CudaStream, sys};
use std::ptr;
use std::sync::{Arc, Mutex, PoisonError};

/// A graph that can be launched.
#[derive(Debug)]
pub(crate) struct Graph {
    /// The driver wants one call at a time.
    exec: Mutex<sys::CUgraphExec>,
    context: Arc<CudaContext>,
}

// SAFETY: the driver's handle may be used from any thread, one at a time, which the lock sees to.
unsafe impl Send for Graph {}
// SAFETY: as above.
unsafe impl Sync for Graph {}

/// Begins to record the stream's work instead of doing it.
pub(crate) fn record(stream: &CudaStream) -> Result<(), Error> {
    let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
    checked("record a graph", stream.begin_capture(mode))
}

/// Ends that. The recorded work, ready to be launched.
pub(crate) fn recorded(stream: &CudaStream) -> Result<Graph, Error> {
    checked("select the GPU", stream.context().bind_to_thread())?;
    let mut graph = ptr::null_mut();
    // SAFETY: the stream records; the place is ours.
    let ended = unsafe { sys::cuStreamEndCapture(stream.cu_stream(), &raw mut graph) };
    check("record a graph", ended)?;
    let mut exec = ptr::null_mut();
    // SAFETY: the graph was just made, the place is ours, and no flag asks for anything more.
    let code = unsafe { sys::cuGraphInstantiateWithFlags(&raw mut exec, graph, 0) };
    // SAFETY: what was made of it does not need it any more, and nobody else has it.
    unsafe { sys::cuGraphDestroy(graph) };
    check("make a recorded graph ready", code)?;
    Ok(Graph {
        exec: Mutex::new(exec),
        context: stream.context().clone(),
    })
}

impl Graph {
    /// Puts its work into the stream, whose context is current.
    pub(crate) fn launch(&self, stream: &CudaStream) -> Result<(), Error> {
        let exec = self.exec.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: the graph is alive, and what its work uses is kept by who holds this.
        check("launch a graph", unsafe {
            sys::cuGraphLaunch(*exec, stream.cu_stream())
        })
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        let exec = self.exec.get_mut().unwrap_or_else(PoisonError::into_inner);
        if self.context.bind_to_thread().is_ok() {
            // SAFETY: nobody else has it, and whoever drops it has waited for its launches.
            unsafe { sys::cuGraphExecDestroy(*exec) };
        }
    }
}
