use crate::prelude::*;

/// grad += dyᵀ · x: a weight's gradient, added in place in f32. The operands have the layout of the forward pass, so
/// lower it in layout tn.
///
/// Use it for gradient accumulation. Build it once for the most rows of a batch: each launch says how many it has, by
/// `depth`. Products are summed in f32 and added with one more rounding, once per launch, so
/// the bits are the same in every run. TMA adds, and may flush f32 subnormals to zero.
///
/// ```
/// # use counterflow::{Communicator, Layout, prelude::bf16, schedules::WgradOp};
/// # let rank = &Communicator::emulated(1)?[0];
/// let op = rank.op_of::<WgradOp>().layout(Layout::Tn).up_to(64, 32, 16).build()?;
/// let (dy, x) = (rank.zeros::<bf16>([16, 64])?, rank.zeros::<bf16>([16, 32])?); // 16 rows of a batch
/// let mut grad = rank.zeros::<f32>([64, 32])?; // what it has by now counts
/// op.on(rank).dy(&dy).x(&x).grad(&mut grad).launch()?.wait()?;
/// # Ok::<(), counterflow::Error>(())
/// ```
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
