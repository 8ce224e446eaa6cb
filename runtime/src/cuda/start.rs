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
            "install driver 580 or later, or emulate the ranks, which run the same checked plan: `Communicator::emulated`, or --device cpu of the tool",
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
            help(started),
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
            "CUDA_VISIBLE_DEVICES may hide them; emulated ranks need none: `Communicator::emulated`, or --device cpu of the tool",
        )),
    }
}

/// Advice where the driver does not start.
fn help(code: CUresult) -> &'static str {
    match code {
        CUresult::CUDA_ERROR_NO_DEVICE => {
            "CUDA_VISIBLE_DEVICES may hide the GPUs, and a container must be started with them (`--gpus all`); emulated ranks need no GPU: `Communicator::emulated`, or --device cpu of the tool"
        }
        CUresult::CUDA_ERROR_SYSTEM_NOT_READY => {
            "GPUs with an NVSwitch need NVIDIA's fabric manager: see `systemctl status nvidia-fabricmanager`, and start it; emulated ranks need no GPU: `Communicator::emulated`, or --device cpu of the tool"
        }
        CUresult::CUDA_ERROR_SYSTEM_DRIVER_MISMATCH => {
            "the driver's library and its kernel module have different versions: reboot after an update, or mount the host's library into the container"
        }
        CUresult::CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE => {
            "a library of CUDA's forward compatibility (cuda-compat) is found before the driver's own: take it out of LD_LIBRARY_PATH"
        }
        CUresult::CUDA_ERROR_UNKNOWN => {
            "often /dev/nvidia-uvm is missing: `nvidia-modprobe -u` makes it; else nvidia-smi and the kernel's log (`dmesg`) say more"
        }
        CUresult::CUDA_ERROR_STUB_LIBRARY => {
            "the toolkit's stub of libcuda is found before the driver's own: take its `stubs` folder out of LD_LIBRARY_PATH"
        }
        _ => {
            "nvidia-smi shows the driver's state; emulated ranks need no GPU: `Communicator::emulated`, or --device cpu of the tool"
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_driver_that_does_not_start_says_what_to_do() {
        for (code, word) in [
            (CUresult::CUDA_ERROR_NO_DEVICE, "CUDA_VISIBLE_DEVICES"),
            (CUresult::CUDA_ERROR_SYSTEM_NOT_READY, "fabricmanager"),
            (CUresult::CUDA_ERROR_SYSTEM_DRIVER_MISMATCH, "reboot"),
            (
                CUresult::CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE,
                "cuda-compat",
            ),
            (CUresult::CUDA_ERROR_UNKNOWN, "nvidia-uvm"),
            (CUresult::CUDA_ERROR_STUB_LIBRARY, "stubs"),
            (CUresult::CUDA_ERROR_OUT_OF_MEMORY, "nvidia-smi"),
        ] {
            assert!(help(code).contains(word), "{code:?}");
        }
    }
}
