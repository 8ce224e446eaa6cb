use crate::prelude::*;

/// y = all_gather(x · wᵀ): each rank computes its rows of y, and every tile goes straight to all peers.
///
/// Use it where ranks divide the rows of a layer that all of them need whole behind it, and its output is smaller than its
/// input. (If its input is smaller, gather that: [`ag_gemm`](super::ag_gemm).) Of `x` a rank reads only its own rows.
///
/// ```
/// # use counterflow::{Communicator, prelude::bf16, schedules::GemmAgOp};
/// # Communicator::each(&Communicator::emulated(2)?, |rank| {
/// # rank.reserve(2 << 20)?;
/// let op = rank.op_of::<GemmAgOp>().up_to(64, 32, 16).build()?;
/// let (x, w) = (rank.zeros::<bf16>([64, 16])?, rank.zeros::<bf16>([32, 16])?);
/// let mut y = rank.allocate::<bf16>("y", [64, 32])?; // all rows; this rank computes half of them
/// op.on(rank).x(&x).w(&w).y(&mut y).launch()?.wait()
/// # })?;
/// # Ok::<(), counterflow::Error>(())
/// ```
#[schedule]
pub fn gemm_ag(x: Local<bf16>, w: Local<bf16>, y: Gathered<bf16>) {
    let tiles = y.tiles(tune(
        (128, 256),
        (256, 128),
        (128, 192),
        (128, 160),
        (128, 128),
    ));
    let arrived = counters(tiles);

    #[gemm]
    for t in tiles.of(me()).grouped() {
        let tile = dot(x[t], w[t]);
        y[t] = tile;
        for peer in ranks().after_me() {
            y.on(peer)[t] = tile;
            arrived.on(peer)[t].add(1);
        }
    }
    #[gemm]
    for owner in ranks().after_me() {
        for t in tiles.of(owner) {
            arrived[t].wait();
        }
    }
}
