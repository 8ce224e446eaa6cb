//! The driver's status codes as errors.

use super::relaxed::relaxed;
use crate::device::Device;
use crate::error::Error;
use cudarc::driver::CudaContext;
use cudarc::driver::result::ctx;
use cudarc::driver::sys::{self, CUresult};
use std::{fmt, ptr};

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

/// Checks a call that cudarc made.
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

/// Asks something of a GPU. Afterwards the thread's current context is what it was: a launch that asks how far other GPUs
/// are relies on its own.
pub(super) fn on<T>(context: &CudaContext, ask: impl FnOnce() -> T) -> Result<T, Error> {
    const WHAT: &str = "select the GPU";
    let before = Before::now(WHAT)?;
    if before.0 == context.cu_ctx() {
        // Nothing is to be selected again. But a strict capture of any thread's forbids the question.
        std::mem::forget(before);
        return Ok(relaxed(ask));
    }
    // SAFETY: whoever asks has it, so it is alive.
    checked(WHAT, unsafe { ctx::set_current(context.cu_ctx()) })?;
    Ok(relaxed(ask))
}

/// Acts, and drops what it acts on. Afterwards the thread's current context is what it was, whatever that selected.
pub(crate) fn aside<T>(act: impl FnOnce() -> T) -> T {
    let _before = Before::now("ask which GPU is selected");
    act()
}

/// The thread's current context until this is dropped, if there was one: then it is current again, after a panic too.
struct Before(sys::CUcontext);

impl Before {
    fn now(what: &str) -> Result<Before, Error> {
        let now = checked(what, ctx::get_current())?;
        Ok(Before(now.unwrap_or(ptr::null_mut())))
    }
}

impl Drop for Before {
    fn drop(&mut self) {
        let now = ctx::get_current().map(|now| now.unwrap_or(ptr::null_mut()));
        if now == Ok(self.0) {
            return;
        }
        // SAFETY: it was current until now, and whoever made it so keeps it; null is none.
        if unsafe { ctx::set_current(self.0) }.is_err() {
            // What relies on it is refused then, and not done on another GPU. The answer was given all the same.
            // SAFETY: null is none.
            let _ = unsafe { ctx::set_current(ptr::null_mut()) };
        }
    }
}

/// Codes that a context ends with: nothing of it runs any more.
const DEAD: [CUresult; 16] = [
    CUresult::CUDA_ERROR_DEINITIALIZED,
    CUresult::CUDA_ERROR_CONTEXT_IS_DESTROYED,
    CUresult::CUDA_ERROR_INVALID_CONTEXT,
    CUresult::CUDA_ERROR_ILLEGAL_ADDRESS,
    CUresult::CUDA_ERROR_ILLEGAL_INSTRUCTION,
    CUresult::CUDA_ERROR_MISALIGNED_ADDRESS,
    CUresult::CUDA_ERROR_INVALID_ADDRESS_SPACE,
    CUresult::CUDA_ERROR_INVALID_PC,
    CUresult::CUDA_ERROR_HARDWARE_STACK_ERROR,
    CUresult::CUDA_ERROR_ASSERT,
    CUresult::CUDA_ERROR_LAUNCH_FAILED,
    CUresult::CUDA_ERROR_LAUNCH_TIMEOUT,
    CUresult::CUDA_ERROR_ECC_UNCORRECTABLE,
    CUresult::CUDA_ERROR_NVLINK_UNCORRECTABLE,
    CUresult::CUDA_ERROR_EXTERNAL_DEVICE,
    CUresult::CUDA_ERROR_UNKNOWN,
];

/// True if an error is that a context is dead. Others, such as that it could not be selected or that something records a
/// graph, say nothing of what runs there.
pub(crate) fn is_dead(error: &Error) -> bool {
    let Error::Driver { code, .. } = error else {
        return false;
    };
    DEAD.iter().any(|dead| name_of(*dead) == *code)
}

/// True if a GPU came past a point, by the code of a query for it.
pub(super) fn passed(code: CUresult) -> Result<bool, Error> {
    match code {
        CUresult::CUDA_ERROR_NOT_READY => Ok(false),
        code => check("ask the GPU how far it is", code).map(|()| true),
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_dead_context_has_come_past_everything() {
        let dead = |code| is_dead(&check("ask the GPU how far it is", code).expect_err("refused"));
        assert!(dead(CUresult::CUDA_ERROR_DEINITIALIZED));
        assert!(dead(CUresult::CUDA_ERROR_ILLEGAL_ADDRESS));
        for lives in [
            CUresult::CUDA_ERROR_OUT_OF_MEMORY,
            CUresult::CUDA_ERROR_INVALID_VALUE,
            CUresult::CUDA_ERROR_STREAM_CAPTURE_IMPLICIT,
            CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
        ] {
            assert!(!dead(lives), "{lives:?}");
        }
    }
}
