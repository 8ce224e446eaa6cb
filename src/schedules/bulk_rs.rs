use crate::prelude::*;

/// y = x · wᵀ beside an independent r = reduce_scatter(g): no counter connects them.
///
/// Use it to hide the reduction of an *earlier* layer's result (a gradient, the output of a row-parallel layer) behind a
/// GEMM without communication. Sums are in f32 and in the order of ranks. The tiles of both have the same shape.
///
/// ```
/// # use counterflow::{Communicator, prelude::bf16, schedules::BulkRsOp};
/// # Communicator::each(&Communicator::emulated(2)?, |rank| {
/// # rank.reserve(2 << 20)?;
/// let op = rank.op_of::<BulkRsOp>().up_to(64, 32, 16).build()?;
/// let (x, w) = (rank.zeros::<bf16>([64, 16])?, rank.zeros::<bf16>([32, 16])?);
/// let (mut y, g) = (rank.zeros::<bf16>([64, 32])?, rank.zeros::<bf16>([64, 16])?);
/// let mut r = rank.zeros::<bf16>([32, 16])?;
/// op.on(rank).x(&x).w(&w).y(&mut y).g(&g).r(&mut r).launch()?.wait()
/// # })?;
/// # Ok::<(), counterflow::Error>(())
/// ```
#[schedule]
pub fn bulk_rs(
    x: Local<bf16>,
    w: Local<bf16>,
    y: Out<bf16>,
    g: Local<bf16>,
    r: ReduceScattered<bf16>,
) {
    let chunks = r.chunks(rows = tune(128, 256));
    let tiles = y.tiles(tune((128, 256), (128, 160), (128, 128)));
    let sums = r.tiles(tiles);
    let partial = symmetric::<bf16>(r, slots = world());
    let landed = counters(world(), chunks);

    #[comm(ctas = tune(8, 16, 4))]
    {
        for owner in ranks().after_me() {
            for c in chunks.of(owner) {
                partial.on(owner)[me()][c] = g[c];
                landed.on(owner)[me()][c].add(1);
            }
        }
        for t in sums.of(me()) {
            landed[others()][t.rows()].wait();
            r[t] = g[t] + partial[others()][t].sum();
        }
    }
    #[gemm]
    for t in tiles.grouped() {
        y[t] = dot(x[t], w[t]);
    }
}
