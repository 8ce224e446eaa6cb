use crate::prelude::*;

/// y = x · wᵀ + bias + residual: the second half of an MLP or of attention, on each rank alone.
///
/// Use it if a layer's input is added to its output. The sum is rounded once.
///
/// ```
/// # use counterflow::{Communicator, prelude::bf16, schedules::LinearResidualOp};
/// # let rank = &Communicator::emulated(1)?[0];
/// let op = rank.op_of::<LinearResidualOp>().up_to(64, 32, 16).build()?;
/// let (x, w) = (rank.zeros::<bf16>([64, 16])?, rank.zeros::<bf16>([32, 16])?);
/// let (bias, residual) = (rank.zeros::<bf16>([32])?, rank.zeros::<bf16>([64, 32])?);
/// let mut y = rank.zeros::<bf16>([64, 32])?;
/// op.on(rank).x(&x).w(&w).bias(&bias).residual(&residual).y(&mut y).launch()?.wait()?;
/// # Ok::<(), counterflow::Error>(())
/// ```
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
