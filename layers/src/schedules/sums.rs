//! Sums of gradients, and rows of amaxes, over ranks.

use counterflow::prelude::*;

/// y = all_reduce(g) in f32, two shots on the same tiles: rows go to their owner, and the sum goes to everyone.
///
/// Use it for gradients of weights that are the same on every rank. Terms are added in the order of ranks.
#[schedule]
pub fn sum_gradients(g: Local<f32>, y: AllReduced<f32>) {
    let tiles = y.tiles(tune((128, 128), (128, 64)));
    let partial = symmetric::<f32>(y.shard(), slots = world());
    let landed = counters(world(), tiles);
    let done = counters(tiles);

    #[comm(ctas = tune(32, 16))]
    {
        for owner in ranks().after_me() {
            for t in tiles.of(owner) {
                let part = g[t];
                partial.on(owner)[me()][t] = part;
                landed.on(owner)[me()][t].add(1);
            }
        }
        for t in tiles.of(me()) {
            let sum = g[t] + partial[others()][t].wait(landed).sum();
            y[t] = sum;
            for peer in ranks().after_me() {
                y.on(peer)[t] = sum;
                done.on(peer)[t].add(1);
            }
        }
        for owner in ranks().after_me() {
            for t in tiles.of(owner) {
                done[t].wait();
            }
        }
    }
}

/// y = all_gather(x) of x that is not in the heap: of it a rank reads only its own rows.
///
/// Use it for a few numbers of each rank that kernels write in memory of the rank's own, such as amaxes.
#[schedule]
pub fn gather_rows(x: Local<f32>, y: Gathered<f32>) {
    let tiles = y.tiles(tune((128, 128), (128, 64)));
    let arrived = counters(tiles);

    #[comm(ctas = tune(16, 32))]
    {
        for t in tiles.of(me()) {
            let own = x[t];
            y[t] = own;
            for peer in ranks().after_me() {
                y.on(peer)[t] = own;
                arrived.on(peer)[t].add(1);
            }
        }
        for owner in ranks().after_me() {
            for t in tiles.of(owner) {
                arrived[t].wait();
            }
        }
    }
}
