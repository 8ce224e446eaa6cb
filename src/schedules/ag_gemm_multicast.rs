use crate::prelude::*;

/// y = all_gather(x) · wᵀ, where a chunk goes to every rank at once: it leaves this rank once, not once for each peer.
///
/// For GPUs whose heap has a multicast view; nothing chooses it by itself. It was compiled and proved, and has not run on a GPU.
///
/// ```
/// # use counterflow::{Communicator, prelude::bf16, schedules::AgGemmMulticastOp};
/// # Communicator::each(&Communicator::emulated(2)?, |rank| {
/// # rank.reserve(2 << 20)?;
/// let op = rank.op_of::<AgGemmMulticastOp>().up_to(64, 32, 16).build()?;
/// let x = rank.allocate::<bf16>("x", [64, 16])?; // all rows; half of them are this rank's own
/// let (w, mut y) = (rank.zeros::<bf16>([32, 16])?, rank.zeros::<bf16>([64, 32])?);
/// op.on(rank).x(&x).w(&w).y(&mut y).launch()?.wait()
/// # })?;
/// # Ok::<(), counterflow::Error>(())
/// ```
#[schedule]
pub fn ag_gemm_multicast(x: Gathered<bf16>, w: Local<bf16>, y: Out<bf16>) {
    let chunks = x.chunks(rows = tune(128, 256));
    let tiles = y.tiles(tune((128, 256), (256, 128), (128, 128)));
    let arrived = counters(chunks);

    #[comm(ctas = tune(8, 4, 16))]
    for c in chunks.of(me()) {
        x.everywhere()[c] = x[c];
        arrived.everywhere()[c].add(1); // one instruction
    }
    #[gemm]
    for shard in ranks().from_me() {
        for t in tiles.of(shard).grouped() {
            arrived[t.rows()].wait();
            y[t] = dot(x[t], w[t]);
        }
    }
}
