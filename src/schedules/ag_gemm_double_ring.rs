use crate::prelude::*;

/// y = all_gather(x) · wᵀ over two rings: half of the chunks go to the next ranks, half to the ranks before.
///
/// Use it where [`ag_gemm_ring`](super::ag_gemm_ring) is right and links work both ways at once: chunks arrive in half as many
/// steps, by turns from both sides.
#[schedule]
pub fn ag_gemm_double_ring(x: Gathered<bf16>, w: Local<bf16>, y: Out<bf16>) {
    let pieces = x.pieces(rows = tune(128, 256));
    let tiles = y.tiles(tune(
        (128, 256),
        (256, 128),
        (128, 224),
        (128, 192),
        (128, 160),
        (128, 128),
    ));
    let arrived = counters(pieces);
    let next = (me() + 1) % world();
    let before = (me() - 1) % world();

    #[comm(ctas = tune(8, 4, 2))]
    for step in ranks() {
        if step < world() / 2 {
            for p in pieces.of((me() - step) % world()) {
                arrived[p].wait();
                x.on(next)[p] = x[p];
                arrived.on(next)[p].add(1);
            }
        }
        if step < (world() - 1) / 2 {
            for p in pieces.of((me() + step) % world()) {
                arrived[p].wait();
                x.on(before)[p] = x[p];
                arrived.on(before)[p].add(1);
            }
        }
    }
    #[gemm(ping_pong = tune(false, true))]
    for chunk in ranks().by(from_both_sides) {
        for t in tiles.of(chunk).grouped() {
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
