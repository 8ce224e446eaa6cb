//! A GPU's memory that has no address yet: this process's own, or another's that handed over a file descriptor. The
//! memory lives until nobody has a handle of it or has it mapped, in any process.

use super::Gpu;
use super::driver::check;
use crate::error::Error;
use cudarc::driver::sys;
use rustix::io::{FdFlags, fcntl_setfd};
use std::ffi::c_void;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use tracing::debug;

/// So that other processes of the host can have it.
const FD: sys::CUmemAllocationHandleType =
    sys::CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;

/// The driver's handle of some memory.
#[derive(Debug)]
pub(super) struct Handle {
    raw: sys::CUmemGenericAllocationHandle,
    bytes: u64,
}

impl Handle {
    /// New memory of that GPU. It holds anything.
    pub fn create(gpu: &Gpu, bytes: u64) -> Result<Handle, Error> {
        gpu.bind()?;
        let wanted = property(gpu);
        let mut raw = 0;
        // SAFETY: the place is ours, and the struct is filled.
        let code = unsafe { sys::cuMemCreate(&raw mut raw, bytes as usize, &raw const wanted, 0) };
        check(format_args!("{bytes} bytes of GPU {}", gpu.ordinal()), code)?;
        Ok(Handle { raw, bytes })
    }

    /// What is mapped at an address, if it is memory of the driver's virtual memory management.
    pub fn at(address: u64, bytes: u64) -> Option<Handle> {
        let mut raw = 0;
        // SAFETY: the place is ours. The driver looks the address up and touches no memory there.
        let code =
            unsafe { sys::cuMemRetainAllocationHandle(&raw mut raw, address as *mut c_void) };
        (code == sys::CUresult::CUDA_SUCCESS).then_some(Handle { raw, bytes })
    }

    /// Whether both are one allocation.
    pub fn is(&self, other: &Handle) -> bool {
        self.raw == other.raw
    }

    /// What it was made with.
    pub fn properties(&self, gpu: &Gpu) -> Result<sys::CUmemAllocationProp, Error> {
        let mut found = property(gpu);
        // SAFETY: the place and the handle are ours.
        let code = unsafe { sys::cuMemGetAllocationPropertiesFromHandle(&raw mut found, self.raw) };
        check("ask what memory was made with", code)?;
        Ok(found)
    }

    /// All of what was found.
    pub fn set_bytes(&mut self, bytes: u64) {
        self.bytes = bytes;
    }

    /// How much memory it is.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// A file descriptor for another process.
    pub fn export(&self) -> Result<OwnedFd, Error> {
        let mut fd: i32 = -1;
        let place = (&raw mut fd).cast::<c_void>();
        // SAFETY: the handle is ours, and a file descriptor is what that type writes there.
        let code = unsafe { sys::cuMemExportToShareableHandle(place, self.raw, FD, 0) };
        check("hand memory to other processes", code)?;
        // SAFETY: the driver has just opened it for us.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        // A program that this process starts gets none of the memory.
        fcntl_setfd(&fd, FdFlags::CLOEXEC).map_err(|why| Error::Driver {
            what: "keep memory from programs that this process starts".into(),
            code: why.to_string(),
            help: "report it".into(),
        })?;
        Ok(fd)
    }

    /// So much memory of another process.
    pub fn import(gpu: &Gpu, fd: &OwnedFd, bytes: u64) -> Result<Handle, Error> {
        gpu.bind()?;
        let number = fd.as_raw_fd() as usize as *mut c_void;
        let mut raw = 0;
        // SAFETY: the place is ours, and the file descriptor, which the driver takes as a pointer, is open.
        let code = unsafe { sys::cuMemImportFromShareableHandle(&raw mut raw, number, FD) };
        check("take memory of another process", code)?;
        Ok(Handle { raw, bytes })
    }

    /// Gives it addresses, at which these GPUs reach it.
    pub fn map(&self, address: u64, gpus: &[i32]) -> Result<(), Error> {
        let bytes = self.bytes;
        let what = || format!("map {bytes} bytes");
        // SAFETY: the addresses are reserved by the caller, unmapped, and aligned to the granularity.
        let code = unsafe { sys::cuMemMap(address, bytes as usize, 0, self.raw, 0) };
        check(what(), code)?;
        let access = gpus.iter().map(|id| sys::CUmemAccessDesc {
            location: location(*id),
            flags: sys::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
        });
        let access: Vec<_> = access.collect();
        // SAFETY: the range was just mapped, and the list has as many entries as is said.
        let code =
            unsafe { sys::cuMemSetAccess(address, bytes as usize, access.as_ptr(), access.len()) };
        check(what(), code).inspect_err(|_| {
            unmap(address, bytes);
        })
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        // SAFETY: the handle is ours. A mapping keeps the memory alive without it.
        let code = unsafe { sys::cuMemRelease(self.raw) };
        noted(check("let go of memory", code));
    }
}

/// Takes the memory from addresses. Whether it did.
pub(super) fn unmap(address: u64, bytes: u64) -> bool {
    // SAFETY: exactly this range was mapped; users of the heap hold it alive.
    let code = unsafe { sys::cuMemUnmap(address, bytes as usize) };
    noted(check("take memory from its addresses", code))
}

/// Whether it was done. Nobody is there to hear of what was not, but who reads the log: a driver that has ended, or a dead
/// context, has nothing left to give back.
pub(super) fn noted(done: Result<(), Error>) -> bool {
    let done = done.inspect_err(|error| debug!(%error, "memory was not given back"));
    done.is_ok()
}

fn location(id: i32) -> sys::CUmemLocation {
    sys::CUmemLocation {
        type_: sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE,
        id,
    }
}

fn property(owner: &Gpu) -> sys::CUmemAllocationProp {
    sys::CUmemAllocationProp {
        type_: sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
        requestedHandleTypes: FD,
        location: location(owner.ordinal() as i32),
        win32HandleMetaData: std::ptr::null_mut(),
        allocFlags: sys::CUmemAllocationProp_st__bindgen_ty_1 {
            compressionType: 0,
            gpuDirectRDMACapable: 0,
            usage: 0,
            reserved: [0; 4],
        },
    }
}

impl Gpu {
    /// Memory that peers map comes in multiples of so many bytes.
    pub(crate) fn page(&self) -> Result<u64, Error> {
        self.bind()?;
        let mut bytes = 0;
        let wanted = property(self);
        // SAFETY: both structs are alive and filled.
        let code = unsafe {
            sys::cuMemGetAllocationGranularity(
                &raw mut bytes,
                &raw const wanted,
                sys::CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_RECOMMENDED,
            )
        };
        check("ask for the size of pages", code)?;
        Ok((bytes as u64).max(2 << 20))
    }
}
