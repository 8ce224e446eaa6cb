//! The stream of a rank's copies, and the time limit of its waits.

mod waits;

pub(crate) use waits::{Wait, Waits};

use crate::driver::{Event, Gpu, Stream};
use crate::error::Error;
use crate::group::Group;
use crate::retire;
use std::sync::Arc;

/// A rank's stream of copies.
#[derive(Debug)]
pub(crate) struct CopyStream {
    pub stream: Stream,
    /// An event of the rank's stream, which the copies follow, and one of this stream, which follows the copies.
    pub before: Event,
    pub after: Event,
    pub waits: Arc<Waits>,
}

/// Waits may still be in the stream: they are watched until they are over.
impl Drop for CopyStream {
    fn drop(&mut self) {
        self.waits.close();
        retire::later(self.waits.gpu(), &self.stream, self.waits.clone());
    }
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
