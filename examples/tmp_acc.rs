//! Trial.
#![allow(missing_docs, clippy::all)]
use counterflow::prelude::*;

#[schedule]
pub fn wgrad_added(dy: Local<bf16>, x: Local<bf16>, grad: Accumulated<f32>) {
    let tiles = grad.tiles(tune(
        (128, 256),
        (128, 192),
        (256, 128),
        (256, 144),
        (192, 192),
        (208, 128),
    ));
    #[gemm(cluster = tune((1, 1), (2, 1), (1, 2)), ping_pong = tune(false, true))]
    for t in tiles.grouped() {
        grad[t] += dot(dy[t], x[t]);
    }
}
#[schedule]
pub fn wgrad_k32(dy: Local<bf16>, x: Local<bf16>, grad: Accumulated<f32>) {
    let tiles = grad.tiles(tune((128, 256), (128, 192)));
    #[gemm(k = 32, cluster = tune((1, 1), (2, 1), (1, 2)), ping_pong = tune(false, true))]
    for t in tiles.grouped() {
        grad[t] += dot(dy[t], x[t]);
    }
}
fn main() -> std::process::ExitCode {
    counterflow_workbench::main(&[wgrad_added, wgrad_k32])
}
