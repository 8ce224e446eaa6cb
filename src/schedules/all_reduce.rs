use crate::prelude::*;

/// y = all_reduce(g), two shots on the same tiles: rows go to their owner, and the sum goes to everyone.
///
/// Use it behind a product whose tiles would be nearly empty if ranks divided them: a few rows. Terms are added in f32 in
/// the order of ranks, as [`gemm_ar`](super::gemm_ar) adds them.
///
/// ```
/// # use counterflow::{Communicator, prelude::bf16, schedules::AllReduceOp};
/// # Communicator::each(&Communicator::emulated(2)?, |rank| {
/// # rank.reserve(2 << 20)?;
/// let op = rank.op_of::<AllReduceOp>().up_to(64, 32, 32).build()?; // rows of the depth, 32
/// let g = rank.zeros::<bf16>([64, 32])?;
/// let mut y = rank.allocate::<bf16>("y", [64, 32])?; // the sum, on every rank
/// op.on(rank).g(&g).y(&mut y).launch()?.wait()
/// # })?;
/// # Ok::<(), counterflow::Error>(())
/// ```
#[schedule]
pub fn all_reduce(g: Local<bf16>, y: AllReduced<bf16>) {
    let tiles = y.tiles(tune((128, 128), (128, 64), (128, 256)));
    let partial = symmetric::<bf16>(y.shard(), slots = world());
    let landed = counters(world(), tiles);
    let done = counters(tiles);

    #[comm(ctas = tune(32, 64, 16, 128))]
    {
        for owner in ranks().after_me() {
            for t in tiles.of(owner) {
                let part = g[t];
                partial.on(owner)[me()][t] = part;
                landed.on(owner)[me()][t].add(1);
            }
        }
        for t in tiles.of(me()) {
            let sum = g[t] + partial[others()][t].wait(landed).sum();
            y[t] = sum;
            for peer in ranks().after_me() {
                y.on(peer)[t] = sum;
                done.on(peer)[t].add(1);
            }
        }
        for owner in ranks().after_me() {
            for t in tiles.of(owner) {
                done[t].wait();
            }
        }
    }
}
