//! Host memory that GPUs reach.

use super::gpu::{Gpu, Kind as GpuKind};
use crate::cuda::{self, Address, Told};
use crate::emulated::{self, Plain};
use crate::error::Error;
use crate::shared::Segment;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

/// A value in host memory that GPUs reach.
#[derive(Debug)]
pub(crate) enum Pinned<T> {
    Cuda(cuda::Pinned<T>),
    Emulated(emulated::Pinned<T>),
    /// Memory that processes share, where in it, and where this process's GPU has that.
    Shared(Arc<Segment>, u64, Address),
}

impl<T: Plain> Pinned<T> {
    /// All zeros.
    pub fn new(gpu: &Gpu) -> Result<Pinned<T>, Error> {
        Ok(match &gpu.0 {
            GpuKind::Cuda(gpu) => Pinned::Cuda(cuda::Pinned::new(gpu)?),
            GpuKind::Emulated(gpu) => Pinned::Emulated(emulated::Pinned::new(gpu)?),
        })
    }

    /// In memory that processes share.
    pub fn shared((segment, offset, address): (Arc<Segment>, u64, Address)) -> Pinned<T> {
        Pinned::Shared(segment, offset, address)
    }

    /// Allocates without a GPU.
    #[cfg(test)]
    pub fn plain() -> Pinned<T> {
        Pinned::Cuda(cuda::Pinned::plain())
    }

    /// Address by which GPUs reach it.
    pub fn address(&self) -> Address {
        match self {
            Pinned::Cuda(pinned) => pinned.address(),
            Pinned::Emulated(pinned) => pinned.address(),
            Pinned::Shared(.., address) => *address,
        }
    }

    /// The current value.
    pub fn get(&self) -> T {
        match self {
            Pinned::Cuda(pinned) => pinned.get(),
            Pinned::Emulated(pinned) => pinned.get(),
            Pinned::Shared(segment, offset, _) => {
                let mut bytes = vec![0; T::BYTES];
                segment.read(*offset, &mut bytes);
                T::parse(&bytes)
            }
        }
    }

    /// Stores a value. GPUs see it soon.
    pub fn set(&self, value: T) {
        match self {
            Pinned::Cuda(pinned) => pinned.set(value),
            Pinned::Emulated(pinned) => pinned.set(value),
            Pinned::Shared(segment, offset, _) => {
                let mut bytes = vec![0; T::BYTES];
                value.record(&mut bytes);
                segment.write(*offset, &bytes);
            }
        }
    }
}

/// One rank's record.
pub(crate) type Record = Pinned<Told>;

impl Record {
    /// The report, if there is one.
    pub fn stall(&self) -> Option<Told> {
        let written = self.get().is_written();
        fence(Ordering::Acquire);
        written.then(|| self.get())
    }
}
