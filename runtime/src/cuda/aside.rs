//! A separate context on a GPU. Blocked work in the hardware queues of the kernels' context may block any of its
//! streams, also the one that was to unblock it. It does not block another context.

use super::Gpu;
use super::driver::check;
use super::enqueue::{MemoryOp, memory_ops_in};
use super::later;
use crate::error::Error;
use cudarc::driver::sys;
use std::ptr;

/// Context and a stream in it, for the thread that made it.
pub(crate) struct Aside {
    context: sys::CUcontext,
    stream: sys::CUstream,
}

impl Aside {
    /// On that GPU; current on this thread until it is dropped.
    pub fn new(gpu: &Gpu) -> Result<Aside, Error> {
        let mut aside = Aside {
            context: ptr::null_mut(),
            stream: ptr::null_mut(),
        };
        let device = gpu.context().cu_device();
        let code = later::make_context(&mut aside.context, device);
        check("make a context beside the one of kernels", code)?;
        let flags = sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
        // SAFETY: the stream's place is ours, and the context is current.
        let code = unsafe { sys::cuStreamCreate(&raw mut aside.stream, flags) };
        check("make a stream beside those of kernels", code).map(|()| aside)
    }

    /// Runs these operations in order and waits for them.
    pub fn run(&self, ops: &[MemoryOp]) -> Result<(), Error> {
        memory_ops_in(self.stream, ops)?;
        self.finish()
    }

    fn finish(&self) -> Result<(), Error> {
        // SAFETY: the stream is ours, and nothing in it waits.
        check("wait for the GPU", unsafe {
            sys::cuStreamSynchronize(self.stream)
        })
    }
}

impl Drop for Aside {
    fn drop(&mut self) {
        // SAFETY: both were made in `new`, or are null, which the driver refuses; nobody else has them.
        unsafe {
            if !self.stream.is_null() {
                sys::cuStreamDestroy_v2(self.stream);
            }
            if !self.context.is_null() {
                sys::cuCtxDestroy_v2(self.context);
            }
        }
    }
}
