use crate::prelude::*;

/// y = silu(x · gateᵀ) · (x · upᵀ) on each rank alone: the gated activation of an MLP, with one load of x for both products.
///
/// Use it instead of two products and a kernel that reads and writes their results once more.
#[schedule]
pub fn swiglu(x: Local<bf16>, gate: Local<bf16>, up: Local<bf16>, y: Out<bf16>) {
    let tiles = y.tiles(tune(
        (128, 128),
        (128, 112),
        (128, 96),
        (128, 80),
        (128, 64),
        (256, 80),
        (64, 128),
        (80, 128),
        (104, 64),
        (16, 64),
    ));

    #[gemm(cluster = tune((1, 1), (2, 1), (1, 2)), ping_pong = tune(false, true))]
    for t in tiles.grouped(tune(8, 4, 16, 1)) {
        y[t] = dot(x[t], gate[t]).silu() * dot(x[t], up[t]);
    }
}
