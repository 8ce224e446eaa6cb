use crate::prelude::*;

/// y = reduce_scatter(x · wᵀ) for few rows: tiles of all ranks' rows at once, whose parts go to the ranks that own their rows.
///
/// Use it in decode and short prefill, where the rows of one rank do not fill a tile: [`gemm_rs`](super::gemm_rs()) reads `w` once for
/// each rank. `partial.on(owner)[me()][t]` has one shard of the rows, so it gets the rows of the tile that are in that. Each rank's
/// term is rounded to bf16, and terms are added in f32 in the order of ranks: a row has the same bits in launches of any number
/// of rows.
///
/// ```
/// # use counterflow::{Communicator, prelude::bf16, schedules::GemmRsAcrossOp};
/// # Communicator::each(&Communicator::emulated(2)?, |rank| {
/// # rank.reserve(2 << 20)?;
/// let op = rank.op_of::<GemmRsAcrossOp>().up_to(64, 32, 16).build()?;
/// let (x, w) = (rank.zeros::<bf16>([64, 16])?, rank.zeros::<bf16>([32, 16])?);
/// let mut y = rank.zeros::<bf16>([32, 32])?; // this rank's half of the sum's 64 rows
/// for rows in [1, 16, 64] {
///     op.on(rank).x(&x).w(&w).y(&mut y).rows(rows).launch()?.wait()?;
/// }
/// # Ok(())
/// # })?;
/// # Ok::<(), counterflow::Error>(())
/// ```
#[schedule]
pub fn gemm_rs_across(x: Local<bf16>, w: Local<bf16>, y: ReduceScattered<bf16>) {
    let tiles = y.tiles_across(tune((128, 256), (128, 128), (128, 64), (16, 128)));
    let partial = symmetric::<bf16>(y, slots = world());
    let landed = counters(world(), tiles);

    #[gemm]
    for t in tiles.grouped() {
        let product = dot(x[t], w[t]);
        for owner in ranks().after_me() {
            partial.on(owner)[me()][t] = product;
            landed.on(owner)[me()][t].add(1);
        }
        y[t] = product + partial[others()][t].wait(landed).sum();
    }
}
