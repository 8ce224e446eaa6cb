//! Where a kernel that waited too long writes its report: host memory that outlives the kernel and its context.

use super::driver::check;
use super::{Address, Gpu};
use crate::error::Error;
use cudarc::driver::sys;
use std::ptr::{self, NonNull};

/// As the prelude's `Stall`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Stall {
    written: u32,
    pub rank: u32,
    pub role: u32,
    pub block: u32,
    pub what: u32,
    pub index: u32,
    pub seen: u64,
    pub wanted: u64,
}

/// A value in host memory that GPUs can write.
#[derive(Debug)]
pub(crate) struct Pinned<T> {
    host: NonNull<T>,
    device: Address,
}

// SAFETY: the host side is only read, volatile; the driver frees it from any thread.
unsafe impl<T: Send> Send for Pinned<T> {}
// SAFETY: as above.
unsafe impl<T: Sync> Sync for Pinned<T> {}

impl<T: Copy + Default> Pinned<T> {
    pub(crate) fn new(gpu: &Gpu) -> Result<Pinned<T>, Error> {
        gpu.bind()?;
        let mut host = ptr::null_mut();
        // Portable, mapped: every context may use it, and it has an address on the GPU.
        let flags = sys::CU_MEMHOSTALLOC_PORTABLE | sys::CU_MEMHOSTALLOC_DEVICEMAP;
        // SAFETY: the pointer's place is ours.
        let code = unsafe { sys::cuMemHostAlloc(&raw mut host, size_of::<T>(), flags) };
        check("allocate host memory that GPUs write", code)?;
        let Some(host) = NonNull::new(host.cast::<T>()) else {
            return Err(super::driver::none(
                "host memory at address zero",
                "restart the process",
            ));
        };
        // SAFETY: the memory was just allocated with this size, and pages are aligned for anything.
        unsafe { host.write_volatile(T::default()) };
        let mut device = 0;
        // SAFETY: the memory was allocated mapped.
        let code =
            unsafe { sys::cuMemHostGetDevicePointer_v2(&raw mut device, host.as_ptr().cast(), 0) };
        check("map host memory that GPUs write", code)?;
        Ok(Pinned {
            host,
            device: Address(device),
        })
    }

    /// Where GPUs write it.
    pub(crate) fn address(&self) -> Address {
        self.device
    }

    /// The current value. GPUs write whole words.
    pub(crate) fn get(&self) -> T {
        // SAFETY: the memory lives as long as this.
        unsafe { self.host.read_volatile() }
    }
}

impl<T> Drop for Pinned<T> {
    fn drop(&mut self) {
        // SAFETY: allocated by cuMemHostAlloc; who lets a GPU write it holds this.
        unsafe { sys::cuMemFreeHost(self.host.as_ptr().cast()) };
    }
}

/// One rank's record.
pub(crate) type Record = Pinned<Stall>;

impl Record {
    /// The report, if there is one: a kernel sets `written` last.
    pub(crate) fn stall(&self) -> Option<Stall> {
        Some(self.get()).filter(|told| told.written != 0)
    }
}

/// As the prelude's `Watch`: what a kernel needs to give up.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Watch {
    pub claim: Address,
    pub abort: Address,
    pub abort_stride: u64,
    pub timeout_ns: u64,
    pub rank: u32,
    pub world: u32,
}

impl Watch {
    /// As the kernel takes it.
    pub(crate) fn bytes(&self, record: &Record) -> [u8; 48] {
        let mut bytes = [0; 48];
        let words = [
            record.address().0,
            self.claim.0,
            self.abort.0,
            self.abort_stride,
            self.timeout_ns,
        ];
        for (at, word) in words.into_iter().enumerate() {
            bytes[at * 8..][..8].copy_from_slice(&word.to_le_bytes());
        }
        bytes[40..44].copy_from_slice(&self.rank.to_le_bytes());
        bytes[44..].copy_from_slice(&self.world.to_le_bytes());
        bytes
    }
}
