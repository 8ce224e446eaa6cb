use crate::prelude::*;

/// y = x · wᵀ + bias + residual: the second half of an MLP or of attention, on each rank alone.
///
/// Use it if a layer's input is added to its output. The sum is rounded once.
#[schedule]
pub fn linear_residual(
    x: Local<bf16>,
    w: Local<bf16>,
    bias: Vector<bf16>,
    residual: Local<bf16>,
    y: Out<bf16>,
) {
    let tiles = y.tiles(tune(
        (128, 256),
        (128, 192),
        (128, 160),
        (128, 128),
        (256, 128),
    ));

    #[gemm]
    for t in tiles.grouped() {
        y[t] = dot(x[t], w[t]).bias(bias).residual(residual[t]);
    }
}
