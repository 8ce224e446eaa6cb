use crate::prelude::*;

/// y = x · wᵀ and v = u · zᵀ: two experts with tensors of their own, each with rows, columns and a depth of its own, in one
/// launch.
///
/// Use it where the experts of a rank have weights that lie apart, and so do their tokens. Tiles of the second fill the SMs
/// that the first leaves free. More experts are more loops of the same kind.
///
/// ```
/// # use counterflow::{Communicator, Shape, prelude::bf16, schedules::ExpertsOp};
/// # let rank = &Communicator::emulated(1)?[0];
/// let most = Shape::new(64, 32, 16).dim("u.rows", 40).dim("v.columns", 24); // both have 16 columns to multiply
/// let op = rank.op_of::<ExpertsOp>().shape(most).build()?;
/// let (x, w, mut y) = (rank.zeros::<bf16>([64, 16])?, rank.zeros::<bf16>([32, 16])?, rank.zeros::<bf16>([64, 32])?);
/// let (u, z, mut v) = (rank.zeros::<bf16>([40, 16])?, rank.zeros::<bf16>([24, 16])?, rank.zeros::<bf16>([40, 24])?);
/// op.on(rank).x(&x).w(&w).y(&mut y).u(&u).z(&z).v(&mut v).launch()?.wait()?;
/// # Ok::<(), counterflow::Error>(())
/// ```
#[schedule]
pub fn experts(
    x: Local<bf16>,
    w: Local<bf16>,
    y: Out<bf16>,
    u: Local<bf16>,
    z: Local<bf16>,
    v: Out<bf16>,
) {
    let tiles = y.tiles(tune(
        (128, 256),
        (256, 128),
        (128, 192),
        (128, 160),
        (128, 128),
    ));
    let more_tiles = v.tiles(tune(
        (128, 256),
        (256, 128),
        (128, 192),
        (128, 160),
        (128, 128),
    ));

    #[gemm]
    for t in tiles.grouped() {
        y[t] = dot(x[t], w[t]);
    }
    #[gemm]
    for t in more_tiles.grouped() {
        v[t] = dot(u[t], z[t]);
    }
}
