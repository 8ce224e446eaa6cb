//! Needs of a launch that the program captures into a graph, in a stream of its own.

use super::Event;
use super::driver::check;
use crate::error::Error;
use cudarc::driver::{CudaStream, sys};
use std::ffi::c_void;
use std::ptr;

/// A stream that records, now.
#[derive(Debug)]
pub(crate) struct Capture {
    /// No other capture of the process has it.
    pub id: u64,
    graph: sys::CUgraph,
    /// Nodes that the stream's next work comes after.
    pub last: Vec<u64>,
}

/// Capture that the stream records. Its context is current.
pub(crate) fn capture_of(stream: &CudaStream) -> Result<Capture, Error> {
    let mut status = sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
    let (mut id, mut graph, mut last, mut edges, mut count) =
        (0, ptr::null_mut(), ptr::null(), ptr::null(), 0);
    // SAFETY: the stream is alive, and the places are ours.
    let code = unsafe {
        sys::cuStreamGetCaptureInfo_v3(
            stream.cu_stream(),
            &raw mut status,
            &raw mut id,
            &raw mut graph,
            &raw mut last,
            &raw mut edges,
            &raw mut count,
        )
    };
    check("ask what a stream records", code)?;
    if status != sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_ACTIVE {
        return Err(Error::Usage {
            what: "a launch on a stream whose capture has failed".into(),
            legal: "end that capture: an earlier call of the program spoiled it".into(),
        });
    }
    let last = match last.is_null() {
        true => Vec::new(),
        // SAFETY: the driver's own list of so many nodes, until the stream's next call.
        false => unsafe { std::slice::from_raw_parts(last, count) }
            .iter()
            .map(|node| node.addr() as u64)
            .collect(),
    };
    Ok(Capture { id, graph, last })
}

impl Capture {
    /// Acts so when the graph is gone, and whatever is made of it, and their launches are done. What `act` has stays until
    /// then. It may make no call of CUDA.
    pub(crate) fn once_gone(&self, act: Box<dyn FnOnce() + Send + Sync>) -> Result<(), Error> {
        type Act = Box<dyn FnOnce() + Send + Sync>;
        /// The driver calls it from a thread of its own, which may make no call of CUDA.
        unsafe extern "C" fn gone(act: *mut c_void) {
            // SAFETY: it is the box that was handed to the driver, which calls this once.
            let act = unsafe { Box::from_raw(act.cast::<Act>()) };
            act();
        }
        let act = Box::into_raw(Box::new(act));
        let mut object = ptr::null_mut();
        let alone = sys::CUuserObject_flags::CU_USER_OBJECT_NO_DESTRUCTOR_SYNC as u32;
        // SAFETY: the place is ours; the box lives until the driver calls the function.
        let code =
            unsafe { sys::cuUserObjectCreate(&raw mut object, act.cast(), Some(gone), 1, alone) };
        if let Err(error) = check("keep what a captured launch uses", code) {
            // SAFETY: the driver did not take it.
            drop(unsafe { Box::from_raw(act) });
            return Err(error);
        }
        let moved = sys::CUuserObjectRetain_flags::CU_GRAPH_USER_OBJECT_MOVE as u32;
        // SAFETY: the stream still records the graph, and the reference is ours to give.
        let code = unsafe { sys::cuGraphRetainUserObject(self.graph, object, 1, moved) };
        check("let a captured graph keep what a launch uses", code).inspect_err(|_| {
            // SAFETY: the reference is still ours.
            unsafe { sys::cuUserObjectRelease(object, 1) };
        })
    }
}

/// The stream's next work comes after that node of its capture, too.
pub(crate) fn come_after(stream: &CudaStream, node: u64) -> Result<(), Error> {
    let mut node: sys::CUgraphNode = ptr::with_exposed_provenance_mut(node as usize);
    let add =
        sys::CUstreamUpdateCaptureDependencies_flags::CU_STREAM_ADD_CAPTURE_DEPENDENCIES as u32;
    // SAFETY: the node is of the graph that the stream records, as its capture's number says; an edge without data.
    let code = unsafe {
        sys::cuStreamUpdateCaptureDependencies_v2(
            stream.cu_stream(),
            &raw mut node,
            ptr::null(),
            1,
            add,
        )
    };
    check("order captured launches", code)
}

impl Event {
    /// Records a node that waits, at each replay, for the point at which the event was recorded by then.
    pub(crate) fn hold_replays(&self, stream: &CudaStream) -> Result<(), Error> {
        let external = sys::CUevent_wait_flags::CU_EVENT_WAIT_EXTERNAL as u32;
        // SAFETY: both are alive; what is kept with the graph keeps the event.
        check("order replays", unsafe {
            sys::cuStreamWaitEvent(stream.cu_stream(), self.raw(), external)
        })
    }

    /// Records a node that records the event at each replay.
    pub(crate) fn record_in_replays(&self, stream: &CudaStream) -> Result<(), Error> {
        let external = sys::CUevent_record_flags::CU_EVENT_RECORD_EXTERNAL as u32;
        // SAFETY: as above.
        check("order replays", unsafe {
            sys::cuEventRecordWithFlags(self.raw(), stream.cu_stream(), external)
        })
    }
}
