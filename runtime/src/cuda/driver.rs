//! The driver itself: whether it is there, and what its answers mean.

use super::queues;
use crate::device::Device;
use crate::error::Error;
use cudarc::driver::sys::{self, CUresult};
use std::ffi::CStr;
use std::fmt;
use std::sync::OnceLock;

/// What we call, beyond what every driver has: a missing one would be a panic at its first use.
const NEEDED: [&CStr; 16] = [
    c"cuMemAddressReserve",
    c"cuMemCreate",
    c"cuMemMap",
    c"cuMemSetAccess",
    c"cuTensorMapEncodeTiled",
    c"cuLaunchKernelEx",
    c"cuFuncGetParamInfo",
    c"cuFuncLoad",
    c"cuDeviceGetDefaultMemPool",
    c"cuMemPoolSetAttribute",
    c"cuDevicePrimaryCtxRetain",
    c"cuDevicePrimaryCtxGetState",
    c"cuCtxCreate_v4",
    c"cuStreamBatchMemOp_v2",
    c"cuMemcpyBatchAsync_v2",
    c"cuMemcpy3DBatchAsync_v2",
];

/// How many GPUs there are, with a driver that can do what we need.
///
/// # Errors
/// [`Error::NoDevice`], with what is missing and what to do.
pub(super) fn open() -> Result<u32, Error> {
    static PRESENT: OnceLock<bool> = OnceLock::new();
    // SAFETY: it loads the driver's library, which runs no code of ours, and looks whether that worked.
    if !PRESENT.get_or_init(|| unsafe { sys::is_culib_present() }) {
        return Err(none(
            "no NVIDIA driver: libcuda.so.1 does not load",
            "install driver 580 or later, or use --device cpu: the emulator runs the same checked plan",
        ));
    }
    for name in NEEDED {
        // SAFETY: the library is there, and the symbol is only asked for, not called.
        let found = unsafe { sys::culib().get::<*const ()>(name.to_bytes_with_nul()) };
        if found.is_err() {
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
            "nvidia-smi shows what it sees; --device cpu needs no GPU",
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

pub(super) fn none(why: &str, help: &str) -> Error {
    Error::NoDevice {
        device: Device::Cuda,
        why: why.into(),
        help: help.into(),
    }
}

fn name_of(code: CUresult) -> String {
    format!("{code:?}")
        .trim_start_matches("CUDA_ERROR_")
        .to_lowercase()
        .replace('_', " ")
}

/// The answer of a call, with what was wanted of it: written down only if it was refused.
pub(super) fn check(what: impl fmt::Display, code: CUresult) -> Result<(), Error> {
    if code == CUresult::CUDA_SUCCESS {
        return Ok(());
    }
    Err(Error::Driver {
        what: what.to_string(),
        code: name_of(code),
        help: help(code).into(),
    })
}

/// The same for a call that cudarc made.
pub(super) fn checked<T>(
    what: impl fmt::Display,
    result: Result<T, cudarc::driver::DriverError>,
) -> Result<T, Error> {
    result.map_err(|error| Error::Driver {
        what: what.to_string(),
        code: name_of(error.0),
        help: help(error.0).into(),
    })
}

fn help(code: CUresult) -> &'static str {
    match code {
        CUresult::CUDA_ERROR_OUT_OF_MEMORY => {
            "the GPU's memory is full: reserve less, or end what else uses it (nvidia-smi lists it)"
        }
        CUresult::CUDA_ERROR_NO_BINARY_FOR_GPU | CUresult::CUDA_ERROR_INVALID_SOURCE => {
            "the kernel is made for another GPU: this version knows Hopper (H100, H200)"
        }
        CUresult::CUDA_ERROR_LAUNCH_FAILED
        | CUresult::CUDA_ERROR_ILLEGAL_ADDRESS
        | CUresult::CUDA_ERROR_ILLEGAL_INSTRUCTION
        | CUresult::CUDA_ERROR_MISALIGNED_ADDRESS => {
            "the kernel died and took the GPU's context with it: start a new process; `compute-sanitizer` names the line"
        }
        CUresult::CUDA_ERROR_INVALID_VALUE => "a size, address or shape does not fit this GPU",
        CUresult::CUDA_ERROR_PEER_ACCESS_UNSUPPORTED | CUresult::CUDA_ERROR_NOT_SUPPORTED => {
            "these GPUs cannot do that; ranks need GPUs that reach each other's memory (nvidia-smi topo -p2p r)"
        }
        _ => "nvidia-smi shows the GPU's state; the driver's manual explains the code",
    }
}
