//! Quantisers on a GPU, bit for bit against the twin: every kind of scale, type, convention and layout, with NaN,
//! infinities, numbers that are too large and too small, rows of zeros and ragged sizes; histories over steps; graphs.
//!
//! Without a GPU emulated ranks run the same bodies, and the rest says that it was skipped; with `REQUIRE_GPU=n` a machine
//! of fewer GPUs fails instead. On a machine without Rust the built binary runs alone: `.ci/pack` makes a folder that has
//! it, with its kernels.

#[path = "../../../runtime/tests/common/mod.rs"]
mod nvidia;
#[path = "../../../codegen/tests/fixtures/wide.rs"]
mod wide;

mod all_reduce_norm;
mod cases;
mod computed_scales;
mod pieces;
mod prebuilt;
mod refused;
mod right;
mod shards;
mod speed;
mod steps;
mod sums;
mod trained;

use counterflow_runtime::cuda::Gpu;
use counterflow_runtime::{Communicator, Error};
use std::ops::Deref;
use std::sync::{PoisonError, RwLock, RwLockReadGuard};

fn fine<T>(result: Result<T, Error>) -> T {
    result.unwrap_or_else(|error| panic!("{error}\n{}", error.help().unwrap_or_default()))
}

/// Kernels of ranks that wait for each other have the GPU for themselves: what allocates beside them may wait for all of them.
static GPU: RwLock<()> = RwLock::new(());

/// A rank alone on a GPU that it shares with other tests.
struct OnGpu {
    rank: Communicator,
    _others: RwLockReadGuard<'static, ()>,
}

impl Deref for OnGpu {
    type Target = Communicator;

    fn deref(&self) -> &Communicator {
        &self.rank
    }
}

/// A rank alone on a GPU; nothing without one.
fn on_gpu() -> Option<OnGpu> {
    has_gpu().then(|| OnGpu {
        // A test that failed does not stop the others.
        _others: GPU.read().unwrap_or_else(PoisonError::into_inner),
        rank: fine(Communicator::local(1)).remove(0),
    })
}

/// Whether there is a GPU. None is told and skips the test, or fails it where `REQUIRE_GPU` asks for one.
fn has_gpu() -> bool {
    let required = std::env::var("REQUIRE_GPU").unwrap_or_default();
    let required = !matches!(&required[..], "" | "0");
    match Gpu::count().and_then(|_| Gpu::open(0)?.must_be_hopper()) {
        Ok(()) => true,
        Err(error) if required => panic!("{error}, but REQUIRE_GPU asks for a GPU"),
        Err(error) => {
            nvidia::skipped(&error.to_string());
            false
        }
    }
}

/// An emulated rank.
fn emulated() -> Communicator {
    fine(Communicator::emulated(1)).remove(0)
}
