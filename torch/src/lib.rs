//! PyTorch's tensors in a product that ranks share, fused with its communication: a Python module.
//!
//! `y = all_gather(x) · wᵀ`, the first half of a layer in Megatron's way with sequence parallelism, for bfloat16 and float16.
//! Tensors come by DLPack, so any library that speaks it will do. On GPUs they are used where they are, in the order of the
//! stream that is given; only `x` is copied, into the symmetric heap that peers read. Tensors of the host go to emulated ranks,
//! for tests. `two_ranks.py` is a program under torchrun.

mod layer;
mod tensor;

use counterflow::prelude::{bf16, f16};
use counterflow::{Communicator, Dtype, Error};
use layer::Layer;
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use std::sync::Arc;
use tensor::{Elements, Given};

/// An error of ours, with what to do about it.
fn python(error: Error) -> PyErr {
    let help = error.help().map(|help| format!("\n  help: {help}"));
    let told = format!("{error}{}", help.unwrap_or_default());
    match error.kind() {
        "usage" => PyValueError::new_err(told),
        _ => PyRuntimeError::new_err(told),
    }
}

/// This process's rank of the job that torchrun started.
#[pyclass(frozen)]
struct Rank(Arc<Communicator>);

#[pymethods]
impl Rank {
    /// Joins the other processes: on this process's GPU, or emulated. `heap` bytes are for what peers read.
    #[new]
    #[pyo3(signature = (heap, emulated = false))]
    fn new(py: Python<'_>, heap: u64, emulated: bool) -> PyResult<Rank> {
        let join = || {
            let rank = match emulated {
                true => Communicator::emulated_from_env()?,
                false => Communicator::from_env()?,
            };
            rank.reserve(heap)?;
            Ok(Rank(Arc::new(rank)))
        };
        py.detach(join).map_err(python)
    }

    /// Its number.
    #[getter]
    fn rank(&self) -> u32 {
        self.0.rank()
    }

    /// How many there are.
    #[getter]
    fn world(&self) -> u32 {
        self.0.world()
    }

    /// Which of `rows` rows are this rank's: the first, and the one after the last.
    fn shard(&self, rows: usize) -> (usize, usize) {
        let shard = self.0.shard(self.0.rank(), rows);
        (shard.start, shard.end)
    }

    /// Waits for all ranks.
    fn barrier(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| self.0.barrier()).map_err(python)
    }

    /// `all_gather(x) · wᵀ` for up to `rows` rows over all ranks, and `n` columns of depth `k` on each. Every rank makes the same:
    /// the schedule is proved and compiled here, and the ranks agree on it.
    fn all_gather_gemm(
        &self,
        py: Python<'_>,
        dtype: &str,
        rows: usize,
        n: usize,
        k: usize,
    ) -> PyResult<AllGatherGemm> {
        let (rank, sizes) = (&self.0, [rows, n, k]);
        let made = || match dtype {
            "bfloat16" => Layer::new(rank, Dtype::Bf16, sizes).map(Kind::Bf16),
            "float16" => Layer::new(rank, Dtype::F16, sizes).map(Kind::F16),
            other => Err(Error::Usage {
                what: format!("elements of {other:?}"),
                legal: "\"bfloat16\" or \"float16\"".into(),
            }),
        };
        py.detach(made).map(AllGatherGemm).map_err(python)
    }
}

/// `y = all_gather(x) · wᵀ`, ready to launch.
#[pyclass(frozen)]
struct AllGatherGemm(Kind);

enum Kind {
    Bf16(Layer<bf16>),
    F16(Layer<f16>),
}

#[pymethods]
impl AllGatherGemm {
    /// Writes all rows of this rank's columns to `y`, of this rank's shard of the rows and its `w`, `[n, k]`. On a GPU it is
    /// enqueued on `stream`, a handle of CUDA's, and the call returns; on the host it is done then. Every rank calls it with a `y`
    /// of as many rows.
    #[pyo3(signature = (x, w, y, stream = 0))]
    fn __call__(
        &self,
        py: Python<'_>,
        x: &Bound<'_, PyAny>,
        w: &Bound<'_, PyAny>,
        y: &Bound<'_, PyAny>,
        stream: usize,
    ) -> PyResult<()> {
        let [x, w, y] = [
            Given::take("x", x)?,
            Given::take("w", w)?,
            Given::take("y", y)?,
        ];
        match &self.0 {
            Kind::Bf16(layer) => layer.call(py, Elements::Bf16, [&x, &w, &y], stream),
            Kind::F16(layer) => layer.call(py, Elements::F16, [&x, &w, &y], stream),
        }
    }
}

/// See `two_ranks.py`.
#[pymodule]
fn counterflow_torch(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Rank>()?;
    module.add_class::<AllGatherGemm>()
}
