use crate::prelude::*;

/// y = all_gather(x) · wᵀ: every rank forwards what it has received to the next rank.
///
/// Use it if each rank has fast links only to its neighbours. Over a switch, [`ag_gemm`](super::ag_gemm) moves the same
/// bytes in one ring step instead of up to `world - 1`.
#[schedule]
pub fn ag_gemm_ring(x: Gathered<bf16>, w: Local<bf16>, y: Out<bf16>) {
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

    #[comm(ctas = tune(8, 4, 2))]
    for chunk in ring(1).but_last(1) {
        for p in pieces.of(chunk) {
            arrived[p].wait();
            x.on(next)[p] = x[p];
            arrived.on(next)[p].add(1);
        }
    }
    #[gemm(ping_pong = tune(false, true))]
    for chunk in ring(1) {
        for t in tiles.of(chunk).grouped() {
            arrived[t.rows()].wait();
            y[t] = dot(x[t], w[t]);
        }
    }
}
