use crate::prelude::*;

/// grad += dyᵀ · x: a weight's gradient, added in place in f32. The operands have the layout of the forward pass, so
/// lower it in layout tn.
///
/// Use it for gradient accumulation. Products are summed in f32 and added with one more rounding, once per launch, so
/// the bits are the same in every run. TMA adds, and may flush f32 subnormals to zero.
#[schedule]
pub fn wgrad(dy: Local<bf16>, x: Local<bf16>, grad: Accumulated<f32>) {
    let tiles = grad.tiles(tune(
        (128, 256),
        (128, 192),
        (128, 160),
        (128, 144),
        (128, 128),
        (256, 128),
    ));

    #[gemm(ping_pong = tune(false, true))]
    for t in tiles.grouped() {
        grad[t] += dot(dy[t], x[t]);
    }
}
