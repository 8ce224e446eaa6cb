use crate::prelude::*;

/// y = all_reduce(x · wᵀ), two shots on the same tiles: partials go to their owner, and the sum goes to everyone.
///
/// Use it for row-parallel layers if the next layer needs all rows (no sequence parallelism). It moves as many bytes as
/// a reduce-scatter and an all-gather, and a rank waits only for the tile it needs. Each rank's term is rounded to bf16, and
/// terms are added in f32 in the order of ranks: a row has the same bits in launches of any number of rows.
///
/// ```
/// # use counterflow::{Communicator, prelude::bf16, schedules::GemmArOp};
/// # Communicator::each(&Communicator::emulated(2)?, |rank| {
/// # rank.reserve(2 << 20)?;
/// let op = rank.op_of::<GemmArOp>().up_to(64, 32, 16).build()?;
/// let (x, w) = (rank.zeros::<bf16>([64, 16])?, rank.zeros::<bf16>([32, 16])?);
/// let mut y = rank.allocate::<bf16>("y", [64, 32])?; // the sum, on every rank
/// op.on(rank).x(&x).w(&w).y(&mut y).launch()?.wait()
/// # })?;
/// # Ok::<(), counterflow::Error>(())
/// ```
#[schedule]
pub fn gemm_ar(x: Local<bf16>, w: Local<bf16>, y: AllReduced<bf16>) {
    let tiles = y.tiles(tune((128, 256), (128, 160), (128, 128)));
    let partial = symmetric::<bf16>(y.shard(), slots = world());
    let landed = counters(world(), tiles);
    let done = counters(tiles);

    #[gemm]
    for owner in ranks().after_me() {
        for t in tiles.of(owner).grouped() {
            partial.on(owner)[me()][t] = dot(x[t], w[t]);
            landed.on(owner)[me()][t].add(1);
        }
    }
    #[gemm]
    for t in tiles.of(me()).grouped() {
        let sum = dot(x[t], w[t]) + partial[others()][t].wait(landed).sum();
        y[t] = sum;
        for peer in ranks().after_me() {
            y.on(peer)[t] = sum;
            done.on(peer)[t].add(1);
        }
    }
    #[gemm]
    for owner in ranks().after_me() {
        for t in tiles.of(owner) {
            done[t].wait();
        }
    }
}
