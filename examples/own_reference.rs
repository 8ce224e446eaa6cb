//! A reference of your own: `run` compares the schedule's results with it, element by element.
//!
//! Without one, `run` compares sums over ranks with the promise of their types, and everything else with the schedule's
//! own statements in f64. That finds errors of a kernel, but not errors of the schedule itself. Here the cap is 20 in
//! both: change one of them, and see.
//!
//! `cargo run --release --example own_reference -- run --m 500`

use counterflow::given::{Given, Matrix};
use counterflow::prelude::*;

/// Caps values smoothly at 20 in magnitude.
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

/// The rows of an output that a rank holds, or why there is no reference.
fn reference(given: &Given<'_>) -> Result<Matrix, String> {
    let x = given.input("x", given.rank())?;
    let w = given.input("w", given.rank())?;
    Ok(x.times(&w).map(|sum| 20.0 * (sum / 20.0).tanh()))
}

fn main() -> std::process::ExitCode {
    counterflow_workbench::main(&[|| logits().reference(reference)])
}
