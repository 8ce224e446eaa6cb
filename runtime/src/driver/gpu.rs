//! A rank's GPU.

use super::refusal;
use super::stream::{Kind as StreamKind, Stream};
use crate::cuda::{self, Address};
use crate::emulated;
use crate::error::Error;
use crate::shared::{Handles, Segment};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// A rank's GPU. Clones are the same GPU.
///
/// ```
/// use counterflow::{Communicator, driver::Gpu};
///
/// let rank = &Communicator::emulated(1)?[0];
/// let gpu: &Gpu = rank.gpu();
/// println!("{} {}: {} SMs, {} bytes", gpu.ordinal(), gpu.name(), gpu.sms(), gpu.memory());
/// let stream = gpu.stream()?;
/// gpu.event()?.record_again(&stream)?;
/// assert!(gpu.is_emulated() && gpu.cuda().is_err()); // what CUDA alone has is behind `cuda`
/// # Ok::<(), counterflow::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Gpu(pub(super) Kind);

#[derive(Clone, Debug)]
pub(super) enum Kind {
    Cuda(Arc<cuda::Gpu>),
    Emulated(emulated::Gpu),
}

/// A GPU, for ranks in other processes.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct About {
    /// Name of the GPU among all GPUs. None if it is emulated.
    pub uuid: Option<String>,
    /// Bytes of its memory.
    pub memory: u64,
    /// Memory that processes share comes in multiples of so many bytes.
    pub page: u64,
    /// Form in which its memory goes to other processes.
    pub handles: Handles,
}

/// Memory that processes share, which a GPU's work reaches as long as this is there.
#[derive(Debug)]
pub(crate) enum Reached {
    Cuda(cuda::Registered),
    Emulated(emulated::Reached),
}

impl Reached {
    /// Address of the memory.
    pub fn address(&self) -> Address {
        match self {
            Reached::Cuda(registered) => registered.address(),
            Reached::Emulated(reached) => reached.address(),
        }
    }
}

impl From<Arc<cuda::Gpu>> for Gpu {
    fn from(gpu: Arc<cuda::Gpu>) -> Gpu {
        Gpu(Kind::Cuda(gpu))
    }
}

impl From<emulated::Gpu> for Gpu {
    fn from(gpu: emulated::Gpu) -> Gpu {
        Gpu(Kind::Emulated(gpu))
    }
}

impl Gpu {
    /// The CUDA GPU that it is.
    ///
    /// # Errors
    /// [`Error::NoDevice`] if it is emulated.
    pub fn cuda(&self) -> Result<&Arc<cuda::Gpu>, Error> {
        match &self.0 {
            Kind::Cuda(gpu) => Ok(gpu),
            Kind::Emulated(_) => Err(refusal::emulated("this GPU")),
        }
    }

    /// True if the GPU is emulated.
    pub fn is_emulated(&self) -> bool {
        matches!(self.0, Kind::Emulated(_))
    }

    /// Name that the driver gives the GPU.
    pub fn name(&self) -> &str {
        match &self.0 {
            Kind::Cuda(gpu) => gpu.name(),
            Kind::Emulated(_) => "emulated GPU",
        }
    }

    /// Ordinal of the GPU in this process.
    pub fn ordinal(&self) -> u32 {
        match &self.0 {
            Kind::Cuda(gpu) => gpu.ordinal(),
            Kind::Emulated(gpu) => gpu.ordinal(),
        }
    }

    /// Number of its machine: this one, or an emulated one. GPUs of two machines have nothing to do with each other.
    pub(crate) fn machine(&self) -> usize {
        match &self.0 {
            Kind::Cuda(_) => 0,
            Kind::Emulated(gpu) => Arc::as_ptr(gpu.machine()).addr(),
        }
    }

    /// Number of streaming multiprocessors.
    pub fn sms(&self) -> u32 {
        match &self.0 {
            Kind::Cuda(gpu) => gpu.sms(),
            Kind::Emulated(_) => emulated::SMS,
        }
    }

    /// Bytes of its memory.
    pub fn memory(&self) -> u64 {
        match &self.0 {
            Kind::Cuda(gpu) => gpu.memory(),
            Kind::Emulated(gpu) => gpu.memory(),
        }
    }

    /// Bytes of its L2 cache.
    pub(crate) fn l2(&self) -> u64 {
        match &self.0 {
            Kind::Cuda(gpu) => gpu.l2(),
            Kind::Emulated(_) => emulated::L2,
        }
    }

    /// Facts that ranks in other processes need to know of it.
    ///
    /// # Errors
    /// What the driver refuses, and handles that its platform does not have.
    pub(crate) fn about(&self, handles: Handles) -> Result<About, Error> {
        Ok(match &self.0 {
            Kind::Emulated(gpu) => About {
                uuid: None,
                memory: gpu.memory(),
                page: emulated::PAGE,
                handles,
            },
            Kind::Cuda(gpu) => {
                gpu.must_have(handles)?;
                About {
                    uuid: Some(gpu.uuid()?),
                    memory: gpu.memory(),
                    page: gpu.page(handles)?,
                    handles,
                }
            }
        })
    }

    /// Rejects GPUs of other processes whose memory this one does not reach.
    pub(crate) fn must_reach<'a>(
        &self,
        mut others: impl Iterator<Item = &'a About>,
    ) -> Result<(), Error> {
        match &self.0 {
            Kind::Emulated(_) => Ok(()),
            Kind::Cuda(gpu) => others.try_for_each(|other| match &other.uuid {
                Some(uuid) => gpu.must_reach_named(uuid),
                None => Ok(()),
            }),
        }
    }

    /// Lets its work reach the first bytes of memory that processes share, which has that number in all of them.
    pub(crate) fn reach(
        &self,
        (number, segment): (u64, &Arc<Segment>),
        bytes: u64,
    ) -> Result<Reached, Error> {
        match &self.0 {
            Kind::Emulated(gpu) => Ok(Reached::Emulated(gpu.reach(segment, bytes))),
            Kind::Cuda(gpu) => {
                cuda::Registered::new(gpu, (number, segment), bytes).map(Reached::Cuda)
            }
        }
    }

    /// Memory of so many bytes that was reached before and that nobody here uses, by its numbers. An emulated GPU keeps
    /// none.
    pub(crate) fn unused(&self, bytes: u64) -> Vec<(u64, Arc<Segment>)> {
        match &self.0 {
            Kind::Emulated(_) => Vec::new(),
            Kind::Cuda(gpu) => cuda::Registered::unused(gpu, bytes),
        }
    }

    /// Hardware queues that its streams share.
    pub(crate) fn queues(&self) -> Result<u32, Error> {
        match &self.0 {
            Kind::Cuda(_) => cuda::queues(),
            Kind::Emulated(_) => Ok(cuda::MOST_QUEUES),
        }
    }

    /// True if it is a stream of this GPU.
    pub(crate) fn has(&self, stream: &Stream) -> bool {
        match (&self.0, &stream.0) {
            (Kind::Cuda(gpu), StreamKind::Cuda(stream)) => {
                stream.context().cu_ctx() == gpu.context().cu_ctx()
            }
            (Kind::Emulated(gpu), StreamKind::Emulated(stream)) => stream.is_on(gpu),
            (Kind::Cuda(_), StreamKind::Emulated(_)) | (Kind::Emulated(_), StreamKind::Cuda(_)) => {
                false
            }
        }
    }

    /// Lets this thread enqueue what a strict capture of its own would forbid beside it, until the result is dropped.
    pub(crate) fn relaxed(&self) -> Option<cuda::Relaxed> {
        match &self.0 {
            Kind::Cuda(_) => Some(cuda::Relaxed::now()),
            Kind::Emulated(_) => None,
        }
    }

    /// A new stream that does not wait for the default one.
    ///
    /// # Errors
    /// What the driver refuses.
    pub fn stream(&self) -> Result<Stream, Error> {
        match &self.0 {
            Kind::Cuda(gpu) => gpu.stream().map(Stream::from),
            Kind::Emulated(gpu) => Ok(emulated::Stream::new(gpu).into()),
        }
    }

    /// A new stream for copies, with priority over kernels.
    pub(crate) fn copy_stream(&self) -> Result<Stream, Error> {
        match &self.0 {
            Kind::Cuda(gpu) => gpu.copy_stream().map(Stream::from),
            Kind::Emulated(gpu) => Ok(emulated::Stream::new(gpu).into()),
        }
    }
}
