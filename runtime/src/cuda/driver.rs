//! The driver's status codes as errors.

use crate::device::Device;
use crate::error::Error;
use cudarc::driver::sys::CUresult;
use std::fmt;

pub(super) fn none(why: &str, help: &str) -> Error {
    Error::NoDevice {
        device: Device::Cuda,
        why: why.into(),
        help: help.into(),
    }
}

pub(super) fn name_of(code: CUresult) -> String {
    format!("{code:?}")
        .trim_start_matches("CUDA_ERROR_")
        .to_lowercase()
        .replace('_', " ")
}

/// The result of a call. `what` says what it was for, and is formatted only on failure.
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
            "the GPU's memory is full: reserve less, or end other programs that use it (nvidia-smi lists them)"
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
