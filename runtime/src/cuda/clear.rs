//! Clearing memory that no kernel uses, while kernels run. A fill by the driver is a kernel, which waits for SMs: those may
//! belong to a kernel that waits for a peer, whose host waits for this memory. A copy from the host needs none.

use super::driver::{check, checked};
use super::watch::Pinned;
use super::{Address, Gpu};
use crate::error::Error;
use cudarc::driver::{CudaStream, sys};
use std::sync::Arc;

/// As much as one copy clears.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
struct Zeros([u64; Zeros::BYTES / 8]);

impl Zeros {
    const BYTES: usize = 64 << 10;
}

impl Default for Zeros {
    fn default() -> Zeros {
        Zeros([0; Zeros::BYTES / 8])
    }
}

/// A stream that does nothing else, and zeros that a copy engine reads.
#[derive(Debug)]
pub(super) struct Clearer {
    stream: Arc<CudaStream>,
    zeros: Pinned<Zeros>,
}

impl Clearer {
    /// On that GPU.
    pub fn new(gpu: &Gpu) -> Result<Clearer, Error> {
        Ok(Clearer {
            stream: gpu.stream()?,
            zeros: Pinned::new(gpu)?,
        })
    }

    /// Clears so many bytes from there, and waits until that is done.
    pub fn clear(&self, from: Address, bytes: u64) -> Result<(), Error> {
        checked("select the GPU", self.stream.context().bind_to_thread())?;
        for at in (0..bytes).step_by(Zeros::BYTES) {
            let piece = (bytes - at).min(Zeros::BYTES as u64) as usize;
            // SAFETY: the zeros are as long and stay until the stream was waited for below; the range is in a slot, and
            // nobody uses it.
            let code = unsafe {
                sys::cuMemcpyHtoDAsync_v2(
                    from.0 + at,
                    self.zeros.host().cast(),
                    piece,
                    self.stream.cu_stream(),
                )
            };
            check("clear memory of the heap", code)?;
        }
        checked("wait for cleared memory", self.stream.synchronize())
    }
}
