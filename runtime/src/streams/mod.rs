//! The stream of a rank's copies, and the time limit of its waits.

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
    /// An event of the rank's stream, which the copies follow, and one of this stream, which follows the copies.
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
