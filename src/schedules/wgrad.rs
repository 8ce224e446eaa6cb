use crate::prelude::*;

/// grad = before + dyᵀ · x: a weight's gradient, added in f32 to the one so far; operands as they lie after the forward
/// pass, so lower it in layout tn.
///
/// Use it for gradient accumulation: `before` and `grad` may be the same memory, since each tile is read before it is
/// stored. Products and sum are in f32, rounded once.
#[schedule]
pub fn wgrad(dy: Local<bf16>, x: Local<bf16>, before: Local<f32>, grad: Out<f32>) {
    let tiles = grad.tiles(tune(
        (128, 256),
        (128, 192),
        (128, 160),
        (128, 128),
        (256, 128),
    ));

    #[gemm]
    for t in tiles.grouped() {
        grad[t] = dot(dy[t], x[t]).residual(before[t]);
    }
}
