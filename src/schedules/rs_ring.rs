use crate::prelude::*;

/// y = reduce_scatter(x · wᵀ) around a ring: each rank adds its product to what came from the rank before it, and sends that on.
///
/// Use it where a rank reaches only its neighbours at full speed, or where scratch must not grow with the ranks: it needs one
/// slot. Partial sums are rounded to bf16 at every step, and a tile arrives after as many steps as there are ranks;
/// [`gemm_rs`](super::gemm_rs) does neither.
///
/// ```
/// # use counterflow::{Communicator, prelude::bf16, schedules::RsRingOp};
/// # Communicator::each(&Communicator::emulated(2)?, |rank| {
/// # rank.reserve(2 << 20)?;
/// let op = rank.op_of::<RsRingOp>().up_to(64, 32, 16).build()?;
/// let (x, w) = (rank.zeros::<bf16>([64, 16])?, rank.zeros::<bf16>([32, 16])?);
/// let mut y = rank.zeros::<bf16>([32, 32])?; // this rank's half of the sum's 64 rows
/// op.on(rank).x(&x).w(&w).y(&mut y).launch()?.wait()
/// # })?;
/// # Ok::<(), counterflow::Error>(())
/// ```
#[schedule]
pub fn rs_ring(x: Local<bf16>, w: Local<bf16>, y: ReduceScattered<bf16>) {
    let tiles = y.tiles(tune((128, 256), (128, 160), (128, 128)));
    let came = symmetric::<bf16>(y.whole(), slots = 1);
    let landed = counters(tiles);
    let next = (me() + 1) % world();

    #[gemm]
    for owner in ranks().before_me() {
        for t in tiles.of(owner).grouped() {
            let mine = dot(x[t], w[t]);
            if owner == (me() - 1) % world() {
                came.on(next)[0][t] = mine; // the first to send it
            } else {
                landed[t].wait();
                came.on(next)[0][t] = mine + came[0][t];
            }
            landed.on(next)[t].add(1);
        }
    }
    #[gemm]
    for t in tiles.of(me()).grouped() {
        let mine = dot(x[t], w[t]);
        if world() == 1 {
            y[t] = mine;
        } else {
            landed[t].wait();
            y[t] = mine + came[0][t];
        }
    }
}
