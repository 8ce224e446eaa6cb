use crate::prelude::*;

/// y = all_reduce(g), summed in the switch: the owner of a tile reads the sum of every rank's copy, and sends it to every rank
/// at once.
///
/// The switch adds in an order of its own: the same inputs may give other bits. For GPUs whose heap has a multicast view; nothing
/// chooses it by itself. It was compiled and proved, and has not run on a GPU.
///
/// ```
/// # use counterflow::{Communicator, prelude::bf16, schedules::AllReduceMulticastOp};
/// # Communicator::each(&Communicator::emulated(2)?, |rank| {
/// # rank.reserve(2 << 20)?;
/// let op = rank.op_of::<AllReduceMulticastOp>().up_to(64, 32, 32).build()?; // rows of the depth, 32
/// let g = rank.zeros::<bf16>([64, 32])?;
/// let mut y = rank.allocate::<bf16>("y", [64, 32])?; // the sum, on every rank
/// op.on(rank).g(&g).y(&mut y).launch()?.wait()
/// # })?;
/// # Ok::<(), counterflow::Error>(())
/// ```
#[schedule]
pub fn all_reduce_multicast(g: Local<bf16>, y: AllReduced<bf16>) {
    let tiles = y.tiles(tune((128, 128), (128, 256)));
    let part = symmetric::<bf16>(y.whole(), slots = 1); // where the switch can read it
    let ready = counters(world(), tiles);
    let done = counters(tiles);

    #[comm(ctas = tune(32, 16, 64))]
    {
        for owner in ranks().from_me() {
            for t in tiles.of(owner) {
                let mine = g[t];
                part[t] = mine;
                ready.on(owner)[me()][t].add(1);
            }
        }
        for t in tiles.of(me()) {
            ready[everyone()][t].wait();
            y.everywhere()[t] = part.everywhere()[t].sum();
            done.everywhere()[t].add(1);
        }
        for owner in ranks().after_me() {
            for t in tiles.of(owner) {
                done[t].wait();
            }
        }
    }
}
