//! Quantisers on a GPU, bit for bit against the twin: every kind of scale, type, convention and layout, with NaN,
//! infinities, numbers that are too large and too small, rows of zeros and ragged sizes; histories over steps; graphs.
//!
//! Without a GPU emulated ranks run the same bodies, and the rest says that it was skipped; with `REQUIRE_GPU=n` a machine
//! of fewer GPUs fails instead. On a machine without Rust the built binary runs alone: `.ci/pack` makes a folder that has
//! it, with its kernels.

#[path = "../../../runtime/tests/common/mod.rs"]
mod nvidia;

mod cases;
mod chunks;
mod prebuilt;
mod refused;
mod right;
mod speed;
mod steps;
mod sums;

use counterflow_runtime::cuda::Gpu;
use counterflow_runtime::{Communicator, Error};

fn fine<T>(result: Result<T, Error>) -> T {
    result.unwrap_or_else(|error| panic!("{error}\n{}", error.help().unwrap_or_default()))
}

/// A rank alone on a GPU. None is told and skips the test, or fails it where `REQUIRE_GPU` asks for one.
fn on_gpu() -> Option<Communicator> {
    let required = std::env::var("REQUIRE_GPU").unwrap_or_default();
    let required = !matches!(&required[..], "" | "0");
    match Gpu::count().and_then(|_| Gpu::open(0)?.must_be_hopper()) {
        Ok(()) => fine(Communicator::local(1)).pop(),
        Err(error) if required => panic!("{error}, but REQUIRE_GPU asks for a GPU"),
        Err(error) => {
            nvidia::skipped(&error.to_string());
            None
        }
    }
}

/// An emulated rank.
fn emulated() -> Communicator {
    fine(Communicator::emulated(1)).remove(0)
}
