use crate::prelude::*;

/// y = reduce_scatter(x · wᵀ): the owner stores its own tile first, and the others add theirs in its memory.
///
/// Use it if [`gemm_rs`](super::gemm_rs) needs too much scratch. Every add rounds to y's type, and their order is
/// not fixed: two runs may differ in the last bits.
///
/// ```
/// # use counterflow::{Communicator, prelude::bf16, schedules::GemmRsAddOp};
/// # Communicator::each(&Communicator::emulated(2)?, |rank| {
/// # rank.reserve(2 << 20)?;
/// let op = rank.op_of::<GemmRsAddOp>().up_to(64, 32, 16).build()?;
/// let (x, w) = (rank.zeros::<bf16>([64, 16])?, rank.zeros::<bf16>([32, 16])?);
/// let mut y = rank.allocate::<bf16>("y", [32, 32])?; // this rank's half of the sum's 64 rows
/// op.on(rank).x(&x).w(&w).y(&mut y).launch()?.wait()
/// # })?;
/// # Ok::<(), counterflow::Error>(())
/// ```
#[schedule]
pub fn gemm_rs_add(x: Local<bf16>, w: Local<bf16>, y: ReduceScattered<bf16>) {
    let tiles = y.tiles(tune(
        (128, 256),
        (256, 128),
        (128, 192),
        (128, 160),
        (128, 128),
    ));
    let begun = counters(tiles);
    let landed = counters(world(), tiles);

    #[gemm]
    for t in tiles.of(me()).grouped() {
        y[t] = dot(x[t], w[t]);
        for peer in ranks().after_me() {
            begun.on(peer)[t].add(1);
        }
    }
    #[gemm]
    for owner in ranks().after_me() {
        for t in tiles.of(owner).grouped() {
            let partial = dot(x[t], w[t]);
            begun[t].wait();
            y.on(owner)[t] += partial;
            landed.on(owner)[me()][t].add(1);
        }
    }
    #[gemm]
    for t in tiles.of(me()) {
        landed[others()][t].wait();
    }
}
