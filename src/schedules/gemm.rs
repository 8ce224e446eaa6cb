use crate::prelude::*;

/// y = x · wᵀ on each rank alone.
///
/// Use it without communication, and as the baseline for the others.
///
/// ```
/// # use counterflow::{Communicator, prelude::bf16, schedules::GemmOp};
/// # let rank = &Communicator::emulated(1)?[0];
/// let op = rank.op_of::<GemmOp>().first_options().up_to(64, 32, 16).build()?;
/// let (x, w) = (rank.zeros::<bf16>([64, 16])?, rank.zeros::<bf16>([32, 16])?);
/// let mut y = rank.zeros::<bf16>([64, 32])?;
/// op.on(rank).x(&x).w(&w).y(&mut y).launch()?.wait()?;
/// # Ok::<(), counterflow::Error>(())
/// ```
#[schedule]
pub fn gemm(x: Local<bf16>, w: Local<bf16>, y: Out<bf16>) {
    // Of tiles that the model cannot tell apart the first is taken. So those of few rows come first: rows outside the tensor cost time.
    let tiles = y.tiles(tune(
        (128, 256),
        (16, 64),
        (8, 64),
        (64, 64),
        (64, 112),
        (64, 128),
        (80, 64),
        (104, 64),
        (80, 128),
        (104, 128),
        (256, 144),
        (256, 192),
        (256, 128),
        (200, 256),
        (128, 224),
        (128, 192),
        (128, 160),
        (128, 144),
        (128, 128),
        (128, 112),
        (128, 96),
        (128, 80),
        (128, 64),
        (144, 128),
        (96, 192),
        (176, 128),
        (208, 128),
    ));

    #[gemm(
        cluster = tune((1, 1), (2, 1), (1, 2)),
        split = tune(1, 2, 3, 4),
        ping_pong = tune(false, true)
    )]
    for t in tiles.grouped(tune(8, 4, 16, 1)) {
        y[t] = dot(x[t], w[t]);
    }
}
