use crate::prelude::*;

/// y = all_gather(x) · wᵀ: copy engines fetch my peers' rows while the tensor cores start on mine.
///
/// Use it when a rank's rows are more than about 4 MiB: copy engines use the link best and need no SM. The nearest
/// neighbour comes first, and at any time every rank pulls from a different peer.
#[schedule]
pub fn ag_gemm_pull(x: Gathered<bf16>, w: Local<bf16>, y: Out<bf16>) {
    let pieces = x.pieces(rows = tune(1024, 512, 2048));
    let tiles = y.tiles(tune(
        (128, 256),
        (256, 128),
        (128, 224),
        (128, 192),
        (128, 160),
        (128, 128),
    ));
    let arrived = counters(pieces);

    #[copy_engine]
    for peer in ranks().after_me() {
        for p in pieces.of(peer) {
            x[p] = x.on(peer)[p];
            arrived[p].add(1);
        }
    }
    #[gemm(ping_pong = tune(false, true))]
    for chunk in ranks().from_me() {
        for t in tiles.of(chunk).grouped() {
            arrived[t.rows()].wait();
            y[t] = dot(x[t], w[t]);
        }
    }
}
