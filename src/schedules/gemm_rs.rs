use crate::prelude::*;

/// y = reduce_scatter(x · wᵀ): partial tiles go straight to their owner, which adds all in rank order.
///
/// Use it for row-parallel layers (o_proj, down, fc2). Each rank's term is rounded to bf16, and terms are added in f32 in the
/// order of ranks: a row has the same bits in every run, in launches of any number of rows. It needs one slot of scratch per
/// rank.
///
/// ```
/// # use counterflow::{Communicator, prelude::bf16, schedules::GemmRsOp};
/// # Communicator::each(&Communicator::emulated(2)?, |rank| {
/// # rank.reserve(2 << 20)?;
/// let op = rank.op_of::<GemmRsOp>().up_to(64, 32, 16).build()?;
/// let (x, w) = (rank.zeros::<bf16>([64, 16])?, rank.zeros::<bf16>([32, 16])?);
/// let mut y = rank.zeros::<bf16>([32, 32])?; // this rank's half of the sum's 64 rows
/// op.on(rank).x(&x).w(&w).y(&mut y).launch()?.wait()
/// # })?;
/// # Ok::<(), counterflow::Error>(())
/// ```
#[schedule]
pub fn gemm_rs(x: Local<bf16>, w: Local<bf16>, y: ReduceScattered<bf16>) {
    let tiles = y.tiles(tune((128, 256), (128, 160), (128, 128)));
    let partial = symmetric::<bf16>(y, slots = world());
    let landed = counters(world(), tiles);

    #[gemm]
    for owner in ranks().after_me() {
        for t in tiles.of(owner).grouped() {
            partial.on(owner)[me()][t] = dot(x[t], w[t]);
            landed.on(owner)[me()][t].add(1);
        }
    }
    #[gemm]
    for t in tiles.of(me()).grouped() {
        y[t] = dot(x[t], w[t]) + partial[others()][t].wait(landed).sum();
    }
}
