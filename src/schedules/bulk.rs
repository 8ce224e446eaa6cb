use crate::prelude::*;

/// y = x · wᵀ beside an independent all_gather(z): no counter connects them.
///
/// Use it to hide a gather for a *later* layer (a gradient's operand, the next weight shard) behind a GEMM without
/// communication.
#[schedule]
pub fn bulk(x: Local<bf16>, w: Local<bf16>, y: Out<bf16>, z: Gathered<bf16>) {
    let pieces = z.pieces(rows = tune(128, 256));
    let tiles = y.tiles(tune(
        (128, 256),
        (256, 128),
        (128, 224),
        (128, 192),
        (128, 160),
        (128, 128),
    ));
    let arrived = counters(pieces);

    #[comm(ctas = tune(8, 4, 2))]
    {
        for peer in ranks().before_me() {
            for p in pieces.of(me()) {
                z.on(peer)[p] = z[p];
                arrived.on(peer)[p].add(1);
            }
        }
        for chunk in ranks().after_me() {
            for p in pieces.of(chunk) {
                arrived[p].wait();
            }
        }
    }
    #[gemm(ping_pong = tune(false, true))]
    for t in tiles.grouped() {
        y[t] = dot(x[t], w[t]);
    }
}
