use crate::prelude::*;

/// y = all_gather(x) · wᵀ in slabs of K: a tile waits for each slab when it comes to it, and so begins with the first.
///
/// Use it where a rank has few rows of many columns, so that there is little to multiply before they arrive. [`ag_gemm`](super::ag_gemm())
/// waits for all columns of a tile's rows. It needs elements without scales of rows or blocks.
///
/// ```
/// # use counterflow::{Communicator, prelude::bf16, schedules::AgGemmSlabsOp};
/// # Communicator::each(&Communicator::emulated(2)?, |rank| {
/// # rank.reserve(2 << 20)?;
/// let op = rank.op_of::<AgGemmSlabsOp>().up_to(64, 32, 16).build()?;
/// let x = rank.allocate::<bf16>("x", [64, 16])?; // all rows; half of them are this rank's own
/// let (w, mut y) = (rank.zeros::<bf16>([32, 16])?, rank.zeros::<bf16>([64, 32])?);
/// op.on(rank).x(&x).w(&w).y(&mut y).launch()?.wait()
/// # })?;
/// # Ok::<(), counterflow::Error>(())
/// ```
#[schedule]
pub fn ag_gemm_slabs(x: Gathered<bf16>, w: Local<bf16>, y: Out<bf16>) {
    let slabs = x.tiles(tune((128, 512), (128, 1024), (128, 256)));
    let tiles = y.tiles(tune(
        (128, 256),
        (256, 128),
        (128, 224),
        (128, 192),
        (128, 160),
        (128, 128),
    ));
    let arrived = counters(slabs);

    #[comm(ctas = tune(8, 4, 2))]
    for peer in ranks().before_me() {
        // The first slab of all rows, then the next one.
        for c in slabs.of(me()).column_major() {
            x.on(peer)[c] = x[c];
            arrived.on(peer)[c].add(1);
        }
    }
    #[gemm]
    {
        // Nobody sends a rank its own rows.
        for t in tiles.of(me()).grouped(8) {
            y[t] = dot(x[t], w[t]);
        }
        for shard in ranks().after_me() {
            for t in tiles.of(shard).grouped() {
                y[t] = dot(x[t].wait(arrived[t.rows()]), w[t]);
            }
        }
    }
}
