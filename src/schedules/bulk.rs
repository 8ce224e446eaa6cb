use crate::prelude::*;

/// y = x · wᵀ beside an independent all_gather(z): no counter connects them.
///
/// Use it to hide a gather for a *later* layer (a gradient's operand, the next weight shard) behind a GEMM without
/// communication.
///
/// ```
/// # use counterflow::{Communicator, prelude::bf16, schedules::BulkOp};
/// # Communicator::each(&Communicator::emulated(2)?, |rank| {
/// # rank.reserve(2 << 20)?;
/// let op = rank.op_of::<BulkOp>().up_to(64, 32, 16).build()?;
/// let (x, w) = (rank.zeros::<bf16>([64, 16])?, rank.zeros::<bf16>([32, 16])?);
/// let (mut y, z) = (rank.zeros::<bf16>([64, 32])?, rank.allocate::<bf16>("z", [64, 16])?);
/// op.on(rank).x(&x).w(&w).y(&mut y).z(&z).launch()?.wait()
/// # })?;
/// # Ok::<(), counterflow::Error>(())
/// ```
#[schedule]
pub fn bulk(x: Local<bf16>, w: Local<bf16>, y: Out<bf16>, z: Gathered<bf16>) {
    let chunks = z.chunks(rows = tune(128, 256));
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
    {
        for peer in ranks().before_me() {
            for c in chunks.of(me()) {
                z.on(peer)[c] = z[c];
                arrived.on(peer)[c].add(1);
            }
        }
        for shard in ranks().after_me() {
            for c in chunks.of(shard) {
                arrived[c].wait();
            }
        }
    }
    #[gemm(ping_pong = tune(false, true))]
    for t in tiles.grouped() {
        y[t] = dot(x[t], w[t]);
    }
}
