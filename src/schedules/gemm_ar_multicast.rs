use crate::prelude::*;

/// y = all_reduce(x · wᵀ), summed in the switch: partials stay where they are computed, the owner of a tile reads the sum of
/// every rank's copy, and sends it to every rank at once. A rank sends
/// (1 + 1/world) of all tiles and receives as many, whatever the number of ranks.
///
/// The switch adds in an order of its own: the same inputs may give other bits. For GPUs whose heap has a multicast view; nothing
/// chooses it by itself. It was compiled and proved, and has not run on a GPU.
///
/// ```
/// # use counterflow::{Communicator, prelude::bf16, schedules::GemmArMulticastOp};
/// # Communicator::each(&Communicator::emulated(2)?, |rank| {
/// # rank.reserve(2 << 20)?;
/// let op = rank.op_of::<GemmArMulticastOp>().up_to(64, 32, 16).build()?;
/// let (x, w) = (rank.zeros::<bf16>([64, 16])?, rank.zeros::<bf16>([32, 16])?);
/// let mut y = rank.allocate::<bf16>("y", [64, 32])?; // the sum, on every rank
/// op.on(rank).x(&x).w(&w).y(&mut y).launch()?.wait()
/// # })?;
/// # Ok::<(), counterflow::Error>(())
/// ```
#[schedule]
pub fn gemm_ar_multicast(x: Local<bf16>, w: Local<bf16>, y: AllReduced<bf16>) {
    let tiles = y.tiles(tune((128, 256), (128, 128)));
    let partial = symmetric::<bf16>(y.whole(), slots = 1);
    let ready = counters(world(), tiles);
    let done = counters(tiles);

    #[gemm]
    for owner in ranks().from_me() {
        for t in tiles.of(owner).grouped() {
            partial[t] = dot(x[t], w[t]);
            ready.on(owner)[me()][t].add(1);
        }
    }
    #[gemm]
    for t in tiles.of(me()).grouped() {
        ready[everyone()][t].wait();
        y.everywhere()[t] = partial.everywhere()[t].sum();
        done.everywhere()[t].add(1);
    }
    #[gemm]
    for owner in ranks().after_me() {
        for t in tiles.of(owner) {
            done[t].wait();
        }
    }
}
