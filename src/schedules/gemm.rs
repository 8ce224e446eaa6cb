use crate::prelude::*;

/// y = x · wᵀ on each rank by itself.
///
/// Use it where nothing has to be communicated, and as the yardstick for the others.
#[schedule]
pub fn gemm(x: Local<bf16>, w: Local<bf16>, y: Out<bf16>) {
    let tiles = y.tiles(tune((128, 256), (256, 128), (128, 128)));

    #[gemm]
    for t in tiles.grouped() {
        y[t] = dot(x[t], w[t]);
    }
}
