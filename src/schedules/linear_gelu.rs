use crate::prelude::*;

/// y = gelu(x · wᵀ + bias): the first half of an MLP, on each rank alone.
///
/// Use it if a bias and an activation follow the product: they need no extra pass over memory.
///
/// ```
/// # use counterflow::{Communicator, prelude::bf16, schedules::LinearGeluOp};
/// # let rank = &Communicator::emulated(1)?[0];
/// let op = rank.op_of::<LinearGeluOp>().up_to(64, 32, 16).build()?;
/// let (x, w) = (rank.zeros::<bf16>([64, 16])?, rank.zeros::<bf16>([32, 16])?);
/// let (bias, mut y) = (rank.zeros::<bf16>([32])?, rank.zeros::<bf16>([64, 32])?);
/// op.on(rank).x(&x).w(&w).bias(&bias).y(&mut y).launch()?.wait()?;
/// # Ok::<(), counterflow::Error>(())
/// ```
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
