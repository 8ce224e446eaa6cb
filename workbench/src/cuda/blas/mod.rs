//! cuBLASLt, the baseline GEMM.

mod choose;
mod matmul;
mod problem;

pub use matmul::Matmul;
pub use problem::{Fused, Operands, Problem, Scaled};

use counterflow_runtime::driver::{Gpu, Local, Stream};
use counterflow_runtime::{Error, jit};
use cudarc::cublaslt::sys::{self, cublasStatus_t};
use std::ptr;

/// Bytes of an algorithm's workspace: twice what cuBLASLt's guide recommends for Hopper.
const WORKSPACE: usize = 64 << 20;
/// The library's major version that our bindings are written for.
const FILE: &str = "libcublasLt.so.13";

/// cuBLASLt on one GPU, with memory to work in.
#[derive(Debug)]
pub struct Blas {
    handle: sys::cublasLtHandle_t,
    workspace: Local<u8>,
    stream: Stream,
}

// SAFETY: a handle may be used from any thread, one call at a time: calls take `&self` of a value that one rank owns.
unsafe impl Send for Blas {}
// SAFETY: cuBLASLt's calls are thread-safe for one handle; the workspace is used in the order of one stream.
unsafe impl Sync for Blas {}

impl Blas {
    /// Loads the library for that GPU. Products run in the order of `stream`.
    ///
    /// # Errors
    /// [`Error::Toolkit`] if the library is missing; what it rejects.
    pub fn open(gpu: &Gpu, stream: &Stream) -> Result<Blas, Error> {
        jit::preload(FILE)?;
        // SAFETY: it loads the library, which runs no code of ours, and looks whether that worked.
        if !unsafe { sys::is_culib_present() } {
            return Err(Error::Toolkit {
                what: format!("there is no cuBLASLt ({FILE}) to compare with"),
                help: "install CUDA 13's libcublas, or `pip install nvidia-cublas` and put its folder on LD_LIBRARY_PATH".into(),
            });
        }
        gpu.cuda()?.bind()?;
        let mut handle = ptr::null_mut();
        // SAFETY: the handle's place is ours, and the GPU is the thread's current one.
        check("start cuBLASLt", unsafe {
            sys::cublasLtCreate(&raw mut handle)
        })?;
        Ok(Blas {
            handle,
            workspace: Local::zeros(stream, WORKSPACE)?,
            stream: stream.clone(),
        })
    }

    /// Version number of the library.
    pub fn version(&self) -> usize {
        // SAFETY: the library is loaded.
        unsafe { sys::cublasLtGetVersion() }
    }
}

impl Drop for Blas {
    fn drop(&mut self) {
        // SAFETY: products borrow the handle, so none is left.
        unsafe { sys::cublasLtDestroy(self.handle) };
    }
}

fn check(what: &str, status: cublasStatus_t) -> Result<(), Error> {
    if status == cublasStatus_t::CUBLAS_STATUS_SUCCESS {
        return Ok(());
    }
    Err(Error::Driver {
        what: what.into(),
        code: format!("{status:?}")
            .trim_start_matches("CUBLAS_STATUS_")
            .to_lowercase()
            .replace('_', " "),
        help: "cuBLASLt's manual explains it; rows of all matrices are multiples of 16 bytes"
            .into(),
    })
}
