//! Launches that touch what the launch before still uses. Each is one edit away from a schedule of the library: `EDIT` marks it, `was` says what stood
//! there.

use counterflow::prelude::*;

/// The launch ends before the gathered rows have come: the next one's may be mixed with them.
#[schedule]
pub fn bulk_no_wait(x: Local<bf16>, w: Local<bf16>, y: Out<bf16>, z: Gathered<bf16>) {
    let chunks = z.chunks(rows = 3);
    let tiles = y.tiles((4, 8));
    let arrived = counters(chunks);
    #[comm(ctas = 2)]
    {
        for peer in ranks().before_me() {
            for c in chunks.of(me()) {
                z.on(peer)[c] = z[c];
                arrived.on(peer)[c].add(1);
            }
        }
        for shard in ranks().after_me().but_last(1) {
            // EDIT, was: after_me()
            for c in chunks.of(shard) {
                arrived[c].wait();
            }
        }
    }
    #[gemm]
    for t in tiles.grouped(8) {
        y[t] = dot(x[t], w[t]);
    }
}

/// The sum is announced before it is written.
#[schedule]
pub fn done_first(x: Local<bf16>, w: Local<bf16>, y: AllReduced<bf16>) {
    let tiles = y.tiles((4, 8));
    let partial = symmetric::<bf16>(y.shard(), slots = world());
    let landed = counters(world(), tiles);
    let done = counters(tiles);
    #[gemm]
    for owner in ranks().after_me() {
        for t in tiles.of(owner) {
            partial.on(owner)[me()][t] = dot(x[t], w[t]);
            landed.on(owner)[me()][t].add(1);
        }
    }
    #[gemm]
    for t in tiles.of(me()) {
        let sum = dot(x[t], w[t]) + partial[others()][t].wait(landed).sum();
        y[t] = sum;
        for peer in ranks().after_me() {
            done.on(peer)[t].add(1); // EDIT, was: after the store
            y.on(peer)[t] = sum;
        }
    }
    #[gemm]
    for owner in ranks().after_me() {
        for t in tiles.of(owner) {
            done[t].wait();
        }
    }
}
