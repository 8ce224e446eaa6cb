use crate::prelude::*;

/// y = all_reduce(x · wᵀ) for few rows, in one shot: every tile goes to everybody, and each rank adds what comes.
///
/// Use it in decode and short prefill, where a hand-off takes longer than the bytes: [`gemm_ar`](super::gemm_ar()) has two of them.
/// Tiles are of all ranks' rows at once, so `w` is read once. It sends each row to every peer, and needs a slot of scratch of all
/// rows for each rank. Each rank's term is rounded to bf16, and terms are added in f32 in the order of ranks: the bits of a row
/// are the same on every rank, and in launches of any number of rows.
///
/// ```
/// # use counterflow::{Communicator, prelude::bf16, schedules::GemmArOneShotOp};
/// # Communicator::each(&Communicator::emulated(2)?, |rank| {
/// # rank.reserve(2 << 20)?;
/// let op = rank.op_of::<GemmArOneShotOp>().up_to(64, 32, 16).build()?;
/// let (x, w) = (rank.zeros::<bf16>([64, 16])?, rank.zeros::<bf16>([32, 16])?);
/// let mut y = rank.allocate::<bf16>("y", [64, 32])?; // the sum, on every rank
/// for rows in [1, 16, 64] {
///     op.on(rank).x(&x).w(&w).y(&mut y).rows(rows).launch()?.wait()?;
/// }
/// # Ok(())
/// # })?;
/// # Ok::<(), counterflow::Error>(())
/// ```
#[schedule]
pub fn gemm_ar_one_shot(x: Local<bf16>, w: Local<bf16>, y: AllReduced<bf16>) {
    let tiles = y.tiles_across(tune((128, 256), (128, 128), (128, 64), (16, 128)));
    let partial = symmetric::<bf16>(y.whole(), slots = world());
    let landed = counters(world(), tiles);

    #[gemm]
    for t in tiles.grouped() {
        let product = dot(x[t], w[t]);
        for peer in ranks().after_me() {
            partial.on(peer)[me()][t] = product;
            landed.on(peer)[me()][t].add(1);
        }
        y[t] = product + partial[others()][t].wait(landed).sum();
    }
}
