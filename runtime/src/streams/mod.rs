//! The stream that a rank's copies are on, and what bounds its waits.

mod waits;

pub(crate) use waits::{Wait, Waits, enqueued};

use crate::cuda::{CudaEvent, CudaStream, Gpu};
use crate::error::Error;
use crate::group::Group;
use std::sync::Arc;

/// A rank's stream of copies.
#[derive(Debug)]
pub(crate) struct CopyStream {
    pub stream: Arc<CudaStream>,
    /// Of the rank's stream: what copies come after; and of this: what comes after the copies.
    pub before: CudaEvent,
    pub after: CudaEvent,
    pub waits: Arc<Waits>,
}

impl CopyStream {
    pub(crate) fn new(gpu: &Gpu, rank: u32, group: &Arc<Group>) -> Result<CopyStream, Error> {
        let stream = gpu.copy_stream()?;
        Ok(CopyStream {
            before: gpu.event()?,
            after: gpu.event()?,
            waits: Waits::watched(stream.clone(), gpu, rank, group)?,
            stream,
        })
    }
}
