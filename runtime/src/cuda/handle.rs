//! A GPU's memory that has no address yet: this process's own, or another's that handed over a file descriptor. The
//! memory lives until nobody has a handle of it or has it mapped, in any process.

use super::Gpu;
use super::driver::{check, checked, name_of};
use super::later::Location;
use crate::error::Error;
use crate::shared::{FABRIC, Handed, Handles, no_fabric};
use cudarc::driver::sys;
use rustix::io::{FdFlags, fcntl_setfd};
use std::ffi::c_void;
use std::fmt;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use tracing::debug;

use sys::CUmemAllocationHandleType as Type;

/// As the driver calls what other processes have memory by.
pub(super) const fn kind(handles: Handles) -> Type {
    match handles {
        Handles::Files => Type::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
        Handles::Fabric => Type::CU_MEM_HANDLE_TYPE_FABRIC,
    }
}

/// The driver's handle of some memory.
#[derive(Debug)]
pub(super) struct Handle {
    raw: sys::CUmemGenericAllocationHandle,
    bytes: u64,
    handles: Handles,
}

impl Handle {
    /// New memory of that GPU, which other processes can have by such handles. It holds anything.
    pub fn create(gpu: &Gpu, bytes: u64, handles: Handles) -> Result<Handle, Error> {
        gpu.bind()?;
        let wanted = property(gpu, handles);
        let mut raw = 0;
        // SAFETY: the place is ours, and the struct is filled.
        let code = unsafe { sys::cuMemCreate(&raw mut raw, bytes as usize, &raw const wanted, 0) };
        let what = format!("{bytes} bytes of GPU {}", gpu.ordinal());
        may_use(handles, what, code)?;
        Ok(Handle {
            raw,
            bytes,
            handles,
        })
    }

    /// Handle of the memory mapped at an address, if it is memory of the driver's virtual memory management.
    pub fn at(address: u64, bytes: u64) -> Option<Handle> {
        let mut raw = 0;
        // SAFETY: the place is ours. The driver looks the address up and touches no memory there.
        let code =
            unsafe { sys::cuMemRetainAllocationHandle(&raw mut raw, address as *mut c_void) };
        (code == sys::CUresult::CUDA_SUCCESS).then_some(Handle {
            raw,
            bytes,
            handles: Handles::Files,
        })
    }

    /// A multicast object that the driver has just made for so many bytes of addresses.
    #[cfg(feature = "multicast")]
    pub fn of_multicast(
        raw: sys::CUmemGenericAllocationHandle,
        bytes: u64,
        handles: Handles,
    ) -> Handle {
        Handle {
            raw,
            bytes,
            handles,
        }
    }

    /// The driver's number.
    #[cfg(feature = "multicast")]
    pub fn raw(&self) -> sys::CUmemGenericAllocationHandle {
        self.raw
    }

    /// True if both are one allocation.
    pub fn is(&self, other: &Handle) -> bool {
        self.raw == other.raw
    }

    /// Properties that the allocation was made with.
    pub fn properties(&self, gpu: &Gpu) -> Result<sys::CUmemAllocationProp, Error> {
        let mut found = property(gpu, Handles::Files);
        // SAFETY: the place and the handle are ours.
        let code = unsafe { sys::cuMemGetAllocationPropertiesFromHandle(&raw mut found, self.raw) };
        check("ask what memory was made with", code)?;
        Ok(found)
    }

    /// All of what was found.
    pub fn set_bytes(&mut self, bytes: u64) {
        self.bytes = bytes;
    }

    /// Size of the memory in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// For another process.
    pub fn export(&self) -> Result<Handed, Error> {
        match self.handles {
            Handles::Files => self.file().map(Handed::File),
            Handles::Fabric => self.name().map(Handed::Fabric),
        }
    }

    fn name(&self) -> Result<[u8; FABRIC], Error> {
        let mut name = [0; FABRIC];
        let (place, kind) = (name.as_mut_ptr().cast::<c_void>(), kind(self.handles));
        // SAFETY: the handle is ours, and so many bytes are what that type writes there.
        let code = unsafe { sys::cuMemExportToShareableHandle(place, self.raw, kind, 0) };
        may_use(self.handles, "hand memory to other processes", code)?;
        Ok(name)
    }

    fn file(&self) -> Result<OwnedFd, Error> {
        let mut fd: i32 = -1;
        let place = (&raw mut fd).cast::<c_void>();
        // SAFETY: the handle is ours, and a file descriptor is what that type writes there.
        let code =
            unsafe { sys::cuMemExportToShareableHandle(place, self.raw, kind(self.handles), 0) };
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
    pub fn import(gpu: &Gpu, handed: &Handed, bytes: u64) -> Result<Handle, Error> {
        gpu.bind()?;
        let (handles, from) = match handed {
            // The driver takes the number as a pointer.
            Handed::File(fd) => (Handles::Files, fd.as_raw_fd() as usize as *mut c_void),
            Handed::Fabric(name) => (Handles::Fabric, name.as_ptr().cast_mut().cast()),
        };
        let mut raw = 0;
        // SAFETY: the place is ours. The file descriptor is open, or the name is as long as that type's are.
        let code =
            unsafe { sys::cuMemImportFromShareableHandle(&raw mut raw, from, kind(handles)) };
        may_use(handles, "take memory of another process", code)?;
        Ok(Handle {
            raw,
            bytes,
            handles,
        })
    }

    /// Gives it addresses, at which these GPUs reach it.
    pub fn map(&self, address: u64, gpus: &[i32]) -> Result<(), Error> {
        let bytes = self.bytes;
        let what = || format!("map {bytes} bytes");
        // SAFETY: the addresses are reserved by the caller, unmapped, and aligned to the granularity.
        let code = unsafe { sys::cuMemMap(address, bytes as usize, 0, self.raw, 0) };
        check(what(), code)?;
        let access = gpus.iter().map(|id| sys::CUmemAccessDesc {
            location: Location::gpu(*id).theirs(),
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

/// True if it was done. Nobody is there to hear of what was not, but who reads the log: a driver that has ended, or a dead
/// context, has nothing left to give back.
pub(super) fn noted(done: Result<(), Error>) -> bool {
    let done = done.inspect_err(|error| debug!(%error, "memory was not given back"));
    done.is_ok()
}

/// The result of a call, which may be refused for the sake of a fabric handle.
fn may_use(handles: Handles, what: impl fmt::Display, code: sys::CUresult) -> Result<(), Error> {
    let refused = [
        sys::CUresult::CUDA_ERROR_NOT_PERMITTED,
        sys::CUresult::CUDA_ERROR_NOT_SUPPORTED,
        sys::CUresult::CUDA_ERROR_INVALID_VALUE,
        sys::CUresult::CUDA_ERROR_INVALID_HANDLE,
    ];
    if handles == Handles::Fabric && refused.contains(&code) {
        return Err(no_fabric(
            format!("{what}, by a fabric handle"),
            name_of(code),
        ));
    }
    check(what, code)
}

fn property(owner: &Gpu, handles: Handles) -> sys::CUmemAllocationProp {
    sys::CUmemAllocationProp {
        type_: sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
        requestedHandleTypes: kind(handles),
        location: Location::gpu(owner.ordinal() as i32).theirs(),
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
    /// Rejects handles that the GPU's platform does not have.
    ///
    /// # Errors
    /// [`Error::Driver`], with what to use instead.
    pub(crate) fn must_have(&self, handles: Handles) -> Result<(), Error> {
        const FABRIC: sys::CUdevice_attribute =
            sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED;
        let has = match handles {
            Handles::Files => true,
            Handles::Fabric => checked("ask the GPU", self.context().attribute(FABRIC))? == 1,
        };
        match has {
            true => Ok(()),
            false => Err(no_fabric(
                format!("fabric handles of memory of GPU {}", self.ordinal()),
                "its platform has none",
            )),
        }
    }

    /// Memory that peers map by such handles comes in multiples of so many bytes.
    pub(crate) fn page(&self, handles: Handles) -> Result<u64, Error> {
        self.bind()?;
        let mut bytes = 0;
        let wanted = property(self, handles);
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
