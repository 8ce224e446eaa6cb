//! Communication without a product, for layers that do not overlap it.

use counterflow::prelude::*;

/// x = all_gather(x): each rank pushes its rows to its peers and waits for theirs.
#[schedule]
pub fn all_gather(x: Gathered<bf16>) {
    let pieces = x.pieces(rows = tune(64, 8, 128, 2));
    let arrived = counters(pieces);

    #[comm(ctas = tune(16, 32, 64, 128))]
    {
        for peer in ranks().before_me() {
            for p in pieces.of(me()) {
                x.on(peer)[p] = x[p];
                arrived.on(peer)[p].add(1);
            }
        }
        for chunk in ranks().after_me() {
            for p in pieces.of(chunk) {
                arrived[p].wait();
            }
        }
    }
}

/// y = reduce_scatter(g): rows go to their owner, which adds all in f32 in the order of ranks.
#[schedule]
pub fn reduce_scatter(g: Local<bf16>, y: Scattered<bf16>) {
    let tiles = y.tiles(tune((128, 128), (128, 64), (128, 256)));
    let partial = symmetric::<bf16>(y, slots = world());
    let landed = counters(world(), tiles);

    #[comm(ctas = tune(32, 64, 16, 128))]
    {
        for owner in ranks().after_me() {
            for t in tiles.of(owner) {
                let part = g[t]; // a tile that is stored, not a copy of rows
                partial.on(owner)[me()][t] = part;
                landed.on(owner)[me()][t].add(1);
            }
        }
        for t in tiles.of(me()) {
            y[t] = g[t] + partial[others()][t].wait(landed).sum();
        }
    }
}
