use crate::prelude::*;

/// y = all_gather(x) · wᵀ for few rows: tiles of all ranks' rows at once, so that `w` is read once for all of them.
///
/// Use it in decode and short prefill, where the rows of one rank do not fill a tile: [`ag_gemm`](super::ag_gemm()) reads `w` once for
/// each rank. A tile waits for the chunks that it has rows of, of whichever ranks, so none starts before their rows are here. It
/// needs operands with contiguous K, and scales of whole tensors or rows.
///
/// ```
/// # use counterflow::{Communicator, prelude::bf16, schedules::AgGemmAcrossOp};
/// # Communicator::each(&Communicator::emulated(2)?, |rank| {
/// # rank.reserve(2 << 20)?;
/// let op = rank.op_of::<AgGemmAcrossOp>().up_to(64, 32, 16).build()?;
/// let x = rank.allocate::<bf16>("x", [64, 16])?; // all rows; half of them are this rank's own
/// let (w, mut y) = (rank.zeros::<bf16>([32, 16])?, rank.zeros::<bf16>([64, 32])?);
/// for rows in [1, 16, 64] {
///     op.on(rank).x(&x).w(&w).y(&mut y).rows(rows).launch()?.wait()?;
/// }
/// # Ok(())
/// # })?;
/// # Ok::<(), counterflow::Error>(())
/// ```
#[schedule]
pub fn ag_gemm_across(x: Gathered<bf16>, w: Local<bf16>, y: Out<bf16>) {
    let chunks = x.chunks(rows = tune(128, 32, 64, 256));
    let tiles = y.tiles_across(tune(
        (128, 256),
        (128, 224),
        (128, 128),
        (128, 64),
        (128, 48),
        (16, 128),
        (16, 64),
        (256, 128),
    ));
    let arrived = counters(chunks);

    #[comm(ctas = tune(8, 4, 2))]
    for peer in ranks().before_me() {
        for c in chunks.of(me()) {
            x.on(peer)[c] = x[c];
            arrived.on(peer)[c].add(1);
        }
    }
    #[gemm]
    for t in tiles.grouped() {
        arrived[t.rows()].wait();
        y[t] = dot(x[t], w[t]);
    }
}
