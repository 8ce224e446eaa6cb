use crate::prelude::*;

/// y = x · all_gather(w)ᵀ: push my shard of the weight to my peers while the tensor cores start on the shards already here.
///
/// Use it where every rank keeps a part of each weight's rows and all of its own batch, as fully sharded data parallel
/// training does. A rank's product needs every shard, and a tile waits only for the part of `w` that has its columns.
///
/// ```
/// # use counterflow::{Communicator, prelude::bf16, schedules::FsdpGemmOp};
/// # Communicator::each(&Communicator::emulated(2)?, |rank| {
/// # rank.reserve(2 << 20)?;
/// let op = rank.op_of::<FsdpGemmOp>().up_to(64, 32, 16).build()?;
/// let w = rank.allocate::<bf16>("w", [32, 16])?; // all rows; half of them are this rank's shard
/// let (x, mut y) = (rank.zeros::<bf16>([64, 16])?, rank.zeros::<bf16>([64, 32])?);
/// op.on(rank).x(&x).w(&w).y(&mut y).launch()?.wait()
/// # })?;
/// # Ok::<(), counterflow::Error>(())
/// ```
#[schedule]
pub fn fsdp_gemm(x: Local<bf16>, w: Gathered<bf16>, y: Out<bf16>) {
    let chunks = w.chunks(rows = tune(128, 256));
    let tiles = y.tiles(tune(
        (128, 256),
        (256, 128),
        (128, 192),
        (128, 160),
        (128, 128),
    ));
    let arrived = counters(chunks);

    #[comm(ctas = tune(8, 4, 2))]
    for peer in ranks().before_me() {
        for c in chunks.of(me()) {
            w.on(peer)[c] = w[c];
            arrived.on(peer)[c].add(1);
        }
    }
    #[gemm(ping_pong = tune(false, true))]
    for shard in ranks().from_me() {
        for t in tiles.of(shard).grouped() {
            arrived[t.columns()].wait();
            y[t] = dot(x[t], w[t]);
        }
    }
}
