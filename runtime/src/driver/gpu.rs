//! A rank's GPU.

use super::event::Event;
use super::stream::Stream;
use crate::cuda;
use crate::error::Error;
use std::sync::Arc;

/// A rank's GPU. Clones are the same GPU.
#[derive(Clone, Debug)]
pub struct Gpu(Kind);

#[derive(Clone, Debug)]
enum Kind {
    Cuda(Arc<cuda::Gpu>),
}

impl From<Arc<cuda::Gpu>> for Gpu {
    fn from(gpu: Arc<cuda::Gpu>) -> Gpu {
        Gpu(Kind::Cuda(gpu))
    }
}

impl Gpu {
    /// The CUDA GPU that it is.
    ///
    /// # Errors
    /// [`Error::NoDevice`] if it is none.
    pub fn cuda(&self) -> Result<&Arc<cuda::Gpu>, Error> {
        let Kind::Cuda(gpu) = &self.0;
        Ok(gpu)
    }

    /// Its name.
    pub fn name(&self) -> &str {
        let Kind::Cuda(gpu) = &self.0;
        gpu.name()
    }

    /// Its number.
    pub fn ordinal(&self) -> u32 {
        let Kind::Cuda(gpu) = &self.0;
        gpu.ordinal()
    }

    /// Its streaming multiprocessors.
    pub fn sms(&self) -> u32 {
        let Kind::Cuda(gpu) = &self.0;
        gpu.sms()
    }

    /// Bytes of its memory.
    pub fn memory(&self) -> u64 {
        let Kind::Cuda(gpu) = &self.0;
        gpu.memory()
    }

    /// Whether it is a stream of this GPU.
    pub(crate) fn has(&self, stream: &Stream) -> bool {
        let Kind::Cuda(gpu) = &self.0;
        stream
            .cuda()
            .is_ok_and(|stream| stream.context().cu_ctx() == gpu.context().cu_ctx())
    }

    /// A new stream that does not wait for the default one.
    ///
    /// # Errors
    /// What the driver refuses.
    pub fn stream(&self) -> Result<Stream, Error> {
        let Kind::Cuda(gpu) = &self.0;
        gpu.stream().map(Stream::from)
    }

    /// A new stream for copies, with priority over kernels.
    pub(crate) fn copy_stream(&self) -> Result<Stream, Error> {
        let Kind::Cuda(gpu) = &self.0;
        gpu.copy_stream().map(Stream::from)
    }

    /// A new event that orders and keeps no time. Record it with [`Event::record_again`].
    ///
    /// # Errors
    /// What the driver refuses.
    pub fn event(&self) -> Result<Event, Error> {
        let Kind::Cuda(gpu) = &self.0;
        gpu.event().map(Event)
    }
}
