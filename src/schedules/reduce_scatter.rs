use crate::prelude::*;

/// y = reduce_scatter(g): rows go to their owner, which adds all in rank order.
///
/// Use it behind a product whose tiles would be nearly empty if ranks divided them: a few rows. Terms are added in f32 in
/// the order of ranks, as [`gemm_rs`](super::gemm_rs) adds them. It needs one slot of scratch per rank.
///
/// ```
/// # use counterflow::{Communicator, prelude::bf16, schedules::ReduceScatterOp};
/// # Communicator::each(&Communicator::emulated(2)?, |rank| {
/// # rank.reserve(2 << 20)?;
/// let op = rank.op_of::<ReduceScatterOp>().up_to(64, 32, 32).build()?; // rows of the depth, 32
/// let g = rank.zeros::<bf16>([64, 32])?;
/// let mut y = rank.zeros::<bf16>([32, 32])?; // this rank's half of the sum's 64 rows
/// op.on(rank).g(&g).y(&mut y).launch()?.wait()
/// # })?;
/// # Ok::<(), counterflow::Error>(())
/// ```
#[schedule]
pub fn reduce_scatter(g: Local<bf16>, y: ReduceScattered<bf16>) {
    let tiles = y.tiles(tune((128, 128), (128, 64), (128, 256)));
    let partial = symmetric::<bf16>(y, slots = world());
    let landed = counters(world(), tiles);

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
            y[t] = g[t] + partial[others()][t].wait(landed).sum();
        }
    }
}
