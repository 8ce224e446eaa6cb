use crate::prelude::*;

/// y = all_gather(x) · wᵀ: every rank forwards what it has received to the next rank.
///
/// Use it if each rank has fast links only to its neighbours. Over a switch, [`ag_gemm`](super::ag_gemm) moves the same
/// bytes in one ring step instead of up to `world - 1`.
///
/// ```
/// # use counterflow::{Communicator, prelude::bf16, schedules::AgGemmRingOp};
/// # Communicator::each(&Communicator::emulated(2)?, |rank| {
/// # rank.reserve(2 << 20)?;
/// let op = rank.op_of::<AgGemmRingOp>().up_to(64, 32, 16).build()?;
/// let x = rank.allocate::<bf16>("x", [64, 16])?; // all rows; half of them are this rank's own
/// let (w, mut y) = (rank.zeros::<bf16>([32, 16])?, rank.zeros::<bf16>([64, 32])?);
/// op.on(rank).x(&x).w(&w).y(&mut y).launch()?.wait()
/// # })?;
/// # Ok::<(), counterflow::Error>(())
/// ```
#[schedule]
pub fn ag_gemm_ring(x: Gathered<bf16>, w: Local<bf16>, y: Out<bf16>) {
    let chunks = x.chunks(rows = tune(128, 256));
    let tiles = y.tiles(tune(
        (128, 256),
        (256, 128),
        (128, 224),
        (128, 192),
        (128, 160),
        (128, 128),
    ));
    let arrived = counters(chunks);
    let next = (me() + 1) % world();

    #[comm(ctas = tune(8, 4, 2))]
    for shard in ring(1).but_last(1) {
        for c in chunks.of(shard) {
            arrived[c].wait();
            x.on(next)[c] = x[c];
            arrived.on(next)[c].add(1);
        }
    }
    #[gemm(ping_pong = tune(false, true))]
    for shard in ring(1) {
        for t in tiles.of(shard).grouped() {
            arrived[t.rows()].wait();
            y[t] = dot(x[t], w[t]);
        }
    }
}
