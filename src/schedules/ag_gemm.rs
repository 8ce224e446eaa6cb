use crate::prelude::*;

/// y = all_gather(x) · wᵀ: push my rows to my peers while the tensor cores start on the rows already here.
///
/// Use it for column-parallel layers (QKV, gate and up, fc1) when a rank's rows are less than about 4 MiB, where a
/// copy engine's fixed cost matters, or when copies must not depend on the host. A few CTAs move data and join the GEMM
/// when they are done.
///
/// ```
/// # use counterflow::{Communicator, prelude::bf16, schedules::AgGemmOp};
/// # Communicator::each(&Communicator::emulated(2)?, |rank| {
/// # rank.reserve(2 << 20)?;
/// let op = rank.op_of::<AgGemmOp>().up_to(64, 32, 16).build()?;
/// let x = rank.allocate::<bf16>("x", [64, 16])?; // all rows; half of them are this rank's own
/// let (w, mut y) = (rank.zeros::<bf16>([32, 16])?, rank.zeros::<bf16>([64, 32])?);
/// op.on(rank).x(&x).w(&w).y(&mut y).launch()?.wait()
/// # })?;
/// # Ok::<(), counterflow::Error>(())
/// ```
#[schedule]
pub fn ag_gemm(x: Gathered<bf16>, w: Local<bf16>, y: Out<bf16>) {
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

    #[comm(ctas = tune(8, 4, 2))]
    for peer in ranks().before_me() {
        for c in chunks.of(me()) {
            x.on(peer)[c] = x[c];
            arrived.on(peer)[c].add(1);
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
