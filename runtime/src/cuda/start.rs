//! Finds and starts the driver.

use super::driver::{check, name_of, none};
use super::{later, queues};
use crate::error::Error;
use cudarc::driver::sys::{self, CUresult};
use std::ffi::CStr;

/// The functions we need that older drivers lack. A missing one would panic at its first use.
const NEEDED: [&CStr; 27] = [
    c"cuMemAddressReserve",
    c"cuMemCreate",
    c"cuMemMap",
    c"cuMemSetAccess",
    c"cuMemRetainAllocationHandle",
    c"cuMemGetAllocationPropertiesFromHandle",
    c"cuMemGetAddressRange_v2",
    c"cuMemExportToShareableHandle",
    c"cuMemImportFromShareableHandle",
    c"cuMemHostRegister_v2",
    c"cuMemHostUnregister",
    c"cuMemHostGetDevicePointer_v2",
    c"cuDeviceGetUuid_v2",
    c"cuTensorMapEncodeTiled",
    c"cuLaunchKernelEx",
    c"cuFuncGetParamInfo",
    c"cuFuncLoad",
    c"cuDeviceGetDefaultMemPool",
    c"cuDeviceGetMemPool",
    c"cuMemPoolSetAttribute",
    c"cuDevicePrimaryCtxRetain",
    c"cuDevicePrimaryCtxGetState",
    c"cuCtxCreate_v4",
    c"cuCtxGetId",
    c"cuStreamBatchMemOp_v2",
    c"cuMemcpyBatchAsync_v2",
    c"cuMemcpy3DBatchAsync_v2",
];

/// The number of GPUs, with a driver that has what we need.
///
/// # Errors
/// [`Error::NoDevice`], with what is missing and what to do.
pub(super) fn open() -> Result<u32, Error> {
    if !later::is_there() {
        return Err(none(
            "no NVIDIA driver: libcuda.so.1 does not load",
            "install driver 580 or later, or use --device cpu: the emulator runs the same checked plan",
        ));
    }
    for name in NEEDED {
        if !later::has(name) {
            return Err(none(
                &format!(
                    "the NVIDIA driver is too old: it has no {}",
                    name.to_string_lossy()
                ),
                "install driver 580 (CUDA 13.0) or later",
            ));
        }
    }
    let said = queues::choose();
    // SAFETY: any thread may initialise the driver, any number of times.
    let started = unsafe { sys::cuInit(0) };
    if started != CUresult::CUDA_SUCCESS {
        return Err(none(
            &format!("the NVIDIA driver does not start: {}", name_of(started)),
            "nvidia-smi shows the driver's state; --device cpu needs no GPU",
        ));
    }
    let mut count = 0;
    // SAFETY: the count's place is ours.
    check("count the GPUs", unsafe {
        sys::cuDeviceGetCount(&raw mut count)
    })?;
    queues::count(said, count)?;
    match u32::try_from(count) {
        Ok(count) if count > 0 => Ok(count),
        _ => Err(none(
            "the NVIDIA driver sees no GPU",
            "CUDA_VISIBLE_DEVICES may hide them; --device cpu needs none",
        )),
    }
}
