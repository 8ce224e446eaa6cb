//! A reference of your own: `run` compares what the schedule makes with what you say it should, element by element.
//!
//! Without one it compares sums over ranks with what their types promise, and everything else with the schedule's own
//! statements in f64. That finds what a kernel does wrong, but not what the schedule itself gets wrong. Here the cap is
//! 20 in both: change one of them, and see.
//!
//! `cargo run --release --example own_reference -- run --m 500`

use counterflow::given::{Given, Matrix};
use counterflow::prelude::*;

/// Values far from zero come no further than 20.
#[epilogue]
fn capped(x: f32) -> f32 {
    20.0 * (x / 20.0).tanh()
}

/// y = capped(x · wᵀ)
#[schedule]
pub fn logits(x: Local<bf16>, w: Local<bf16>, y: Out<bf16>) {
    let tiles = y.tiles(tune((128, 256), (128, 128)));
    #[gemm(k = 64)]
    for t in tiles.grouped(8) {
        y[t] = dot(x[t], w[t]).map(capped);
    }
}

/// The rows that a rank holds of an output, or why nothing can be said of it.
fn reference(given: &Given<'_>) -> Result<Matrix, String> {
    let x = given.input("x", given.rank())?;
    let w = given.input("w", given.rank())?;
    Ok(x.times(&w).map(|sum| 20.0 * (sum / 20.0).tanh()))
}

fn main() -> std::process::ExitCode {
    counterflow_workbench::main(&[|| logits().reference(reference)])
}
