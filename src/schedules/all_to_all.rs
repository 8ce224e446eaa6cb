use crate::prelude::*;

/// y = all_to_all(x · wᵀ): tiles go straight to the rank that owns their rows, each into its sender's slot.
///
/// Use it where a product is redistributed and not summed: the last product of an expert, whose tokens go back to their
/// ranks, with as many rows for each rank. No tile waits for another, and nothing is stored twice.
///
/// ```
/// # use counterflow::{Communicator, prelude::bf16, schedules::AllToAllOp};
/// # Communicator::each(&Communicator::emulated(2)?, |rank| {
/// # rank.reserve(2 << 20)?;
/// let op = rank.op_of::<AllToAllOp>().up_to(64, 32, 16).build()?;
/// let (x, w) = (rank.zeros::<bf16>([64, 16])?, rank.zeros::<bf16>([32, 16])?);
/// let mut y = rank.allocate::<bf16>("y", [2 * 32, 32])?; // this rank's half of each rank's 64 rows
/// op.on(rank).x(&x).w(&w).y(&mut y).launch()?.wait()
/// # })?;
/// # Ok::<(), counterflow::Error>(())
/// ```
#[schedule]
pub fn all_to_all(x: Local<bf16>, w: Local<bf16>, y: AllToAll<bf16>) {
    let tiles = y.tiles(tune(
        (128, 256),
        (256, 128),
        (128, 192),
        (128, 160),
        (128, 128),
    ));
    let landed = counters(world(), tiles);

    #[gemm]
    for owner in ranks().after_me() {
        for t in tiles.of(owner).grouped() {
            y.on(owner)[me()][t] = dot(x[t], w[t]);
            landed.on(owner)[me()][t].add(1);
        }
    }
    #[gemm]
    for t in tiles.of(me()).grouped() {
        y[me()][t] = dot(x[t], w[t]);
    }
    #[gemm]
    for t in tiles.of(me()) {
        landed[others()][t].wait();
    }
}
