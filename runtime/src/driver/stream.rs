//! Streams: a GPU's work in order.

use crate::cuda::{self, Lines2d, MemoryOp};
use crate::error::Error;
use cudarc::driver::CudaStream;
use std::sync::Arc;

/// An ordered queue of a GPU's work. Clones are the same stream.
#[derive(Clone, Debug)]
pub struct Stream(pub(super) Kind);

#[derive(Clone, Debug)]
pub(super) enum Kind {
    Cuda(Arc<CudaStream>),
}

impl From<Arc<CudaStream>> for Stream {
    fn from(stream: Arc<CudaStream>) -> Stream {
        Stream(Kind::Cuda(stream))
    }
}

impl Stream {
    /// The stream of cudarc that it is.
    ///
    /// # Errors
    /// [`Error::NoDevice`] if it is no stream of a CUDA GPU.
    pub fn cuda(&self) -> Result<&Arc<CudaStream>, Error> {
        let Kind::Cuda(stream) = &self.0;
        Ok(stream)
    }

    /// Waits until everything in it is done. It has no time limit: [`Communicator::synchronize`] has.
    ///
    /// [`Communicator::synchronize`]: crate::Communicator::synchronize
    ///
    /// # Errors
    /// What its work ended with.
    pub fn synchronize(&self) -> Result<(), Error> {
        let Kind::Cuda(stream) = &self.0;
        cuda::synchronize(stream)
    }

    /// Whether both are one stream.
    pub(crate) fn is(&self, other: &Stream) -> bool {
        let (Kind::Cuda(one), Kind::Cuda(other)) = (&self.0, &other.0);
        one.cu_stream() == other.cu_stream() && one.context().cu_ctx() == other.context().cu_ctx()
    }

    /// Whether its work is recorded into a graph instead of done.
    pub fn is_capturing(&self) -> bool {
        let Kind::Cuda(stream) = &self.0;
        cuda::is_capturing(stream)
    }
}

/// Whether the stream is empty. Does not wait.
pub(crate) fn is_done(stream: &Stream) -> Result<bool, Error> {
    let Kind::Cuda(stream) = &stream.0;
    cuda::is_done(stream)
}

/// Enqueues waits and stores of cells, in order.
pub(crate) fn memory_ops(stream: &Stream, ops: &[MemoryOp]) -> Result<(), Error> {
    let Kind::Cuda(stream) = &stream.0;
    cuda::memory_ops(stream, ops)
}

/// Copies lines between GPUs that reach each other, or within one, by a copy engine, in stream order.
pub(crate) fn copy_lines(stream: &Stream, copy: &Lines2d) -> Result<(), Error> {
    let Kind::Cuda(stream) = &stream.0;
    cuda::copy_lines(stream, copy)
}
