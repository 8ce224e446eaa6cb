use crate::prelude::*;

/// y = all_gather(x) · wᵀ over two rings: half of the shards go to the next ranks, half to the ranks before.
///
/// Use it where [`ag_gemm_ring`](super::ag_gemm_ring) is right and links work both ways at once: shards arrive in half as many
/// steps, by turns from both sides.
///
/// ```
/// # use counterflow::{Communicator, prelude::bf16, schedules::AgGemmDoubleRingOp};
/// # Communicator::each(&Communicator::emulated(2)?, |rank| {
/// # rank.reserve(2 << 20)?;
/// let op = rank.op_of::<AgGemmDoubleRingOp>().up_to(64, 32, 16).build()?;
/// let x = rank.allocate::<bf16>("x", [64, 16])?; // all rows; half of them are this rank's own
/// let (w, mut y) = (rank.zeros::<bf16>([32, 16])?, rank.zeros::<bf16>([64, 32])?);
/// op.on(rank).x(&x).w(&w).y(&mut y).launch()?.wait()
/// # })?;
/// # Ok::<(), counterflow::Error>(())
/// ```
#[schedule]
pub fn ag_gemm_double_ring(x: Gathered<bf16>, w: Local<bf16>, y: Out<bf16>) {
    let chunks = x.chunks(rows = tune(128, 256));
    let tiles = y.tiles(tune(
        (128, 256),
        (256, 128),
        (128, 224),
        (128, 192),
        (128, 160),
        (128, 128),
    ));
    let arrived = counters(chunks);
    let next = (me() + 1) % world();
    let before = (me() - 1) % world();

    #[comm(ctas = tune(8, 4, 2))]
    for step in ranks() {
        if step < world() / 2 {
            for c in chunks.of((me() - step) % world()) {
                arrived[c].wait();
                x.on(next)[c] = x[c];
                arrived.on(next)[c].add(1);
            }
        }
        if step < (world() - 1) / 2 {
            for c in chunks.of((me() + step) % world()) {
                arrived[c].wait();
                x.on(before)[c] = x[c];
                arrived.on(before)[c].add(1);
            }
        }
    }
    #[gemm(ping_pong = tune(false, true))]
    for shard in ranks().by(from_both_sides) {
        for t in tiles.of(shard).grouped() {
            arrived[t.rows()].wait();
            y[t] = dot(x[t], w[t]);
        }
    }
}

/// Mine, then by turns from before me and after me: as they arrive.
fn from_both_sides(me: u32, step: u32, world: u32) -> u32 {
    let away = step.div_ceil(2);
    if step % 2 == 1 {
        (me + world - away) % world
    } else {
        (me + away) % world
    }
}
