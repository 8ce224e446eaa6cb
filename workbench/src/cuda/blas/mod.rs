//! cuBLASLt, the baseline GEMM: the fastest of the algorithms that its heuristic returns.

mod matmul;
mod problem;

pub use matmul::Matmul;
pub use problem::{Fused, Operands, Problem, Scaled};

use counterflow_runtime::driver::{Gpu, Local, Stream};
use counterflow_runtime::{Error, jit};
use cudarc::cublaslt::sys::{self, cublasStatus_t};
use std::ptr;
use std::time::Duration;

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

    /// Its version number.
    pub fn version(&self) -> usize {
        // SAFETY: the library is loaded.
        unsafe { sys::cublasLtGetVersion() }
    }

    /// The fastest algorithm for a product: each one that the heuristic returns is tried on these operands.
    ///
    /// # Errors
    /// [`Error::NotYet`] for types that are not compared; what the library rejects.
    pub fn product(&self, problem: Problem, operands: &[Operands]) -> Result<Matmul<'_>, Error> {
        let mut product = Matmul::new(self, problem)?;
        if let Some(first) = operands.first() {
            product.say_scales(first)?;
        }
        // Algorithms that are far behind in the first lap are dropped. The others run more laps, each lap starting with
        // the next algorithm, and the least sum wins, so a changing clock decides nothing. (Taking the least time of
        // three laps in one order is not enough: at 8192³, where the best two are 3 % ahead of the next, it made our
        // speed over it 0.99 or 1.025, depending on the run.)
        const BEHIND: f64 = 1.25;
        const LAPS: usize = 8;
        let mut near: Vec<(Duration, Duration, _)> = Vec::new();
        for answer in product.answers()? {
            product.algorithm = answer;
            match product.time(operands, None) {
                Ok(once) => near.push((once, Duration::ZERO, answer)),
                // The heuristic also returns algorithms that then do not run.
                Err(Error::Driver { code, .. })
                    if ["not supported", "invalid value"].contains(&&code[..]) => {}
                Err(error) => return Err(error),
            }
        }
        let tried = near.len();
        let least = near.iter().map(|(once, ..)| *once).min();
        let most = least.unwrap_or_default().mul_f64(BEHIND);
        near.retain(|(once, ..)| *once <= most);
        for _ in 0..LAPS {
            for (once, sum, answer) in &mut near {
                product.algorithm = *answer;
                *sum += product.time(operands, Some(*once))?;
            }
            let next = near.len().min(1);
            near.rotate_left(next);
        }
        let best = near.into_iter().min_by_key(|(_, sum, _)| *sum);
        let Some((.., algorithm)) = best else {
            return Err(Error::Toolkit {
                what: format!("cuBLASLt has no algorithm for {problem:?}"),
                help: "give another shape".into(),
            });
        };
        product.algorithm = algorithm;
        product.tried = tried;
        Ok(product)
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
