//! Host memory that GPUs reach.

use super::gpu::{Gpu, Kind as GpuKind};
use crate::cuda::{self, Address, Told};
use crate::emulated::{self, Plain};
use crate::error::Error;
use crate::shared::Segment;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

/// Bytes of a value, at most. Each launch reads every rank's record, so there they need no memory of their own.
const MOST: usize = 64;

/// A value in host memory that GPUs reach.
#[derive(Debug)]
pub(crate) enum Pinned<T> {
    Cuda(cuda::Pinned<T>),
    Emulated(emulated::Pinned<T>),
    /// Memory that processes share, where in it, and where this process's GPU has that.
    Shared(Arc<Segment>, u64, Address),
}

impl<T: Plain> Pinned<T> {
    /// No value is larger than what is read and written at once.
    const FITS: () = assert!(T::BYTES <= MOST, "a larger value: raise MOST");

    /// All zeros.
    pub fn new(gpu: &Gpu) -> Result<Pinned<T>, Error> {
        Ok(match &gpu.0 {
            GpuKind::Cuda(gpu) => Pinned::Cuda(cuda::Pinned::new(gpu)?),
            GpuKind::Emulated(gpu) => Pinned::Emulated(emulated::Pinned::new(gpu)?),
        })
    }

    /// In memory that processes share.
    pub fn shared((segment, offset, address): (Arc<Segment>, u64, Address)) -> Pinned<T> {
        const { Self::FITS };
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
                let mut all = [0; MOST];
                let bytes = &mut all[..T::BYTES];
                segment.read(*offset, bytes);
                T::parse(bytes)
            }
        }
    }

    /// Stores a value. GPUs see it soon.
    pub fn set(&self, value: T) {
        match self {
            Pinned::Cuda(pinned) => pinned.set(value),
            Pinned::Emulated(pinned) => pinned.set(value),
            Pinned::Shared(segment, offset, _) => {
                let mut all = [0; MOST];
                let bytes = &mut all[..T::BYTES];
                value.record(bytes);
                segment.write(*offset, bytes);
            }
        }
    }
}

/// One rank's record.
pub(crate) type Record = Pinned<Told>;

impl Record {
    /// The report, if there is one. Each launch asks, so the rest is read only where it is.
    pub fn stall(&self) -> Option<Told> {
        let written = match self {
            Pinned::Cuda(record) => record.is_written(),
            Pinned::Emulated(record) => record.is_written(),
            Pinned::Shared(segment, offset, _) => {
                let mut first = [0; Told::WRITTEN];
                segment.read(*offset, &mut first);
                Told::is_written(first)
            }
        };
        fence(Ordering::Acquire);
        written.then(|| self.get())
    }
}
