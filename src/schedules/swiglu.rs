use crate::prelude::*;

/// y = silu(x · gateᵀ) · (x · upᵀ) on each rank alone: the gated activation of an MLP, with one load of x for both products.
///
/// Use it instead of two products and a kernel that reads and writes their results once more.
///
/// ```
/// # use counterflow::{Communicator, prelude::bf16, schedules::SwigluOp};
/// # let rank = &Communicator::emulated(1)?[0];
/// let op = rank.op_of::<SwigluOp>().first_options().up_to(64, 32, 16).build()?;
/// let (x, mut y) = (rank.zeros::<bf16>([64, 16])?, rank.zeros::<bf16>([64, 32])?);
/// let (gate, up) = (rank.zeros::<bf16>([32, 16])?, rank.zeros::<bf16>([32, 16])?);
/// op.on(rank).x(&x).gate(&gate).up(&up).y(&mut y).launch()?.wait()?;
/// # Ok::<(), counterflow::Error>(())
/// ```
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
