use crate::prelude::*;

/// y = x · wᵀ on each rank by itself.
///
/// Use it where nothing has to be communicated, and as the yardstick for the others.
#[schedule]
pub fn gemm(x: Local<bf16>, w: Local<bf16>, y: Out<bf16>) {
    let tiles = y.tiles(tune(
        (128, 256),
        (128, 224),
        (128, 192),
        (128, 176),
        (128, 160),
        (128, 144),
        (128, 128),
        (128, 112),
        (256, 128),
        (64, 64),
        (64, 32),
        (64, 128),
    ));

    #[gemm(ping_pong = tune(false, true))]
    for t in tiles.grouped() {
        y[t] = dot(x[t], w[t]);
    }
}
