use crate::prelude::*;

/// y = all_gather(x) · wᵀ: copy engines fetch my peers' rows while the tensor cores start on mine.
///
/// Use it when a rank's rows are more than about 4 MiB: copy engines use the link best and need no SM. The nearest
/// neighbour comes first, and at any time every rank pulls from a different peer.
///
/// ```
/// # use counterflow::{Communicator, prelude::bf16, schedules::AgGemmPullOp};
/// # Communicator::each(&Communicator::emulated(2)?, |rank| {
/// # rank.reserve(2 << 20)?;
/// let op = rank.op_of::<AgGemmPullOp>().up_to(64, 32, 16).build()?;
/// let x = rank.allocate::<bf16>("x", [64, 16])?; // all rows; half of them are this rank's own
/// let (w, mut y) = (rank.zeros::<bf16>([32, 16])?, rank.zeros::<bf16>([64, 32])?);
/// op.on(rank).x(&x).w(&w).y(&mut y).launch()?.wait()
/// # })?;
/// # Ok::<(), counterflow::Error>(())
/// ```
#[schedule]
pub fn ag_gemm_pull(x: Gathered<bf16>, w: Local<bf16>, y: Out<bf16>) {
    let chunks = x.chunks(rows = tune(1024, 512, 2048));
    let tiles = y.tiles(tune(
        (128, 256),
        (256, 128),
        (128, 224),
        (128, 192),
        (128, 160),
        (128, 128),
    ));
    let arrived = counters(chunks);

    #[copy_engine]
    for peer in ranks().after_me() {
        for c in chunks.of(peer) {
            x[c] = x.on(peer)[c];
            arrived[c].add(1);
        }
    }
    #[gemm(ping_pong = tune(false, true))]
    for shard in ranks().from_me() {
        for t in tiles.of(shard).grouped() {
            arrived[t.rows()].wait();
            y[t] = dot(x[t], w[t]);
        }
    }
}
