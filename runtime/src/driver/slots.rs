//! The ranks' slots of the heap: one range of addresses.

use super::gpu::{Gpu, Kind as GpuKind};
use crate::cuda::{self, Address};
use crate::emulated;
use crate::error::Error;
use crate::shared::Segment;
use std::sync::Arc;

/// Slots side by side, one a rank.
#[derive(Debug)]
pub(crate) enum Slots {
    Cuda(cuda::Slots),
    Emulated(emulated::Slots),
}

impl Slots {
    /// A slot of each GPU, `stride` bytes apart, without memory.
    pub fn new(gpus: &[Gpu], stride: u64) -> Result<Slots, Error> {
        let emulated = gpus.iter().map(|gpu| match &gpu.0 {
            GpuKind::Emulated(gpu) => Some(gpu),
            GpuKind::Cuda(_) => None,
        });
        if let Some(gpus) = emulated.collect::<Option<Vec<_>>>() {
            return emulated::Slots::new(&gpus, stride).map(Slots::Emulated);
        }
        let gpus = gpus.iter().map(|gpu| gpu.cuda().cloned());
        let gpus = gpus.collect::<Result<_, _>>()?;
        cuda::Slots::new(gpus, stride).map(Slots::Cuda)
    }

    /// Slots in memory that processes share, in the order of the ranks, for the GPU of one of them.
    pub fn apart(gpu: &Gpu, slots: Vec<Arc<Segment>>, stride: u64) -> Result<Slots, Error> {
        match &gpu.0 {
            GpuKind::Emulated(gpu) => {
                emulated::Slots::apart(gpu, slots, stride).map(Slots::Emulated)
            }
            GpuKind::Cuda(_) => Err(Error::NotYet {
                what: "ranks that are processes on CUDA GPUs".into(),
                help: "let ranks be threads of one process: `Communicator::local`".into(),
            }),
        }
    }

    /// Bytes from a slot to the next.
    pub fn stride(&self) -> u64 {
        match self {
            Slots::Cuda(slots) => slots.stride(),
            Slots::Emulated(slots) => slots.stride(),
        }
    }

    /// Bytes of every slot that have memory.
    pub fn backed(&self) -> u64 {
        match self {
            Slots::Cuda(slots) => slots.backed(),
            Slots::Emulated(slots) => slots.backed(),
        }
    }

    /// The address in a rank's slot.
    pub fn address(&self, rank: u32, offset: u64) -> Address {
        match self {
            Slots::Cuda(slots) => slots.address(rank, offset),
            Slots::Emulated(slots) => slots.address(rank, offset),
        }
    }

    /// Clears a range of a rank's slot that nobody uses, if the ranks are processes that share it.
    pub fn clear(&self, rank: u32, range: &std::ops::Range<u64>) -> Result<(), Error> {
        match self {
            Slots::Emulated(slots) => slots.clear(rank, range),
            Slots::Cuda(_) => Err(Error::NotYet {
                what: "ranks that are processes on CUDA GPUs".into(),
                help: "let ranks be threads of one process: `Communicator::local`".into(),
            }),
        }
    }

    /// Maps memory to the first `bytes` of every slot. On an error nothing has changed.
    pub fn grow(&mut self, bytes: u64) -> Result<(), Error> {
        match self {
            Slots::Cuda(slots) => slots.grow(bytes),
            Slots::Emulated(slots) => slots.grow(bytes),
        }
    }
}
