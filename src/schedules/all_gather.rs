use crate::prelude::*;

/// x = all_gather(x): push my rows to my peers, and wait for theirs.
///
/// Use it before launches that need all rows, where no product can start on some of them: a few rows, whose tiles would
/// be nearly empty, or several products of the same input.
///
/// ```
/// # use counterflow::{Communicator, prelude::bf16, schedules::AllGatherOp};
/// # Communicator::each(&Communicator::emulated(2)?, |rank| {
/// # rank.reserve(2 << 20)?;
/// let op = rank.op_of::<AllGatherOp>().up_to(64, 32, 16).build()?; // rows of the depth, 16
/// let x = rank.allocate::<bf16>("x", [64, 16])?; // all rows; half of them are this rank's own
/// op.on(rank).x(&x).launch()?.wait()
/// # })?;
/// # Ok::<(), counterflow::Error>(())
/// ```
#[schedule]
pub fn all_gather(x: Gathered<bf16>) {
    let chunks = x.chunks(rows = tune(64, 128));
    let arrived = counters(chunks);

    #[comm(ctas = tune(16, 32, 64))]
    {
        for peer in ranks().before_me() {
            for c in chunks.of(me()) {
                x.on(peer)[c] = x[c];
                arrived.on(peer)[c].add(1);
            }
        }
        for shard in ranks().after_me() {
            for c in chunks.of(shard) {
                arrived[c].wait();
            }
        }
    }
}
