use crate::prelude::*;

/// y = gelu(x · wᵀ + bias): the first half of an MLP, on each rank alone.
///
/// Use it if a bias and an activation follow the product: they need no extra pass over memory.
#[schedule]
pub fn linear_gelu(x: Local<bf16>, w: Local<bf16>, bias: Vector<bf16>, y: Out<bf16>) {
    let tiles = y.tiles(tune(
        (128, 256),
        (128, 192),
        (128, 160),
        (128, 128),
        (256, 128),
    ));

    #[gemm(ping_pong = tune(false, true))]
    for t in tiles.grouped() {
        y[t] = dot(x[t], w[t]).bias(bias).gelu();
    }
}
