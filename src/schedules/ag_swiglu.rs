use crate::prelude::*;

/// y = silu(a · gateᵀ) · (a · upᵀ) of a = all_gather(x): as [`ag_gemm`](super::ag_gemm), for a column-parallel gated MLP.
///
/// Use it where gate and up are column-parallel: rows move once, and what leaves is the activation.
///
/// ```
/// # use counterflow::{Communicator, prelude::bf16, schedules::AgSwigluOp};
/// # Communicator::each(&Communicator::emulated(2)?, |rank| {
/// # rank.reserve(2 << 20)?;
/// let op = rank.op_of::<AgSwigluOp>().up_to(64, 32, 16).build()?;
/// let x = rank.allocate::<bf16>("x", [64, 16])?; // all rows; half of them are this rank's own
/// let (gate, up) = (rank.zeros::<bf16>([32, 16])?, rank.zeros::<bf16>([32, 16])?);
/// let mut y = rank.zeros::<bf16>([64, 32])?;
/// op.on(rank).x(&x).gate(&gate).up(&up).y(&mut y).launch()?.wait()
/// # })?;
/// # Ok::<(), counterflow::Error>(())
/// ```
#[schedule]
pub fn ag_swiglu(x: Gathered<bf16>, gate: Local<bf16>, up: Local<bf16>, y: Out<bf16>) {
    let chunks = x.chunks(rows = tune(128, 256));
    let tiles = y.tiles(tune(
        (128, 128),
        (128, 112),
        (128, 96),
        (128, 80),
        (128, 64),
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
            y[t] = dot(x[t], gate[t]).silu() * dot(x[t], up[t]);
        }
    }
}
