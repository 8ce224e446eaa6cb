//! Gathers in slabs of rows and K that miss one of them. `EDIT` marks it, `was` says what stood there.

use counterflow::prelude::*;

/// Tiles wait for one slab of their rows less than there are.
#[schedule]
pub fn one_slab_fewer(x: Gathered<bf16>, w: Local<bf16>, y: Out<bf16>) {
    let slabs = x.tiles((4, 8));
    let rows = x.chunks(rows = 4);
    let tiles = y.tiles((4, 8));
    let arrived = counters(rows);
    #[comm(ctas = 2)]
    for peer in ranks().before_me() {
        for c in slabs.of(me()) {
            x.on(peer)[c] = x[c];
            arrived.on(peer)[c.rows()].add(1);
        }
    }
    #[gemm]
    {
        for t in tiles.of(me()) {
            y[t] = dot(x[t], w[t]);
        }
        for shard in ranks().after_me() {
            for t in tiles.of(shard) {
                arrived[t.rows()].wait_at_least(1); // EDIT, was: wait()
                y[t] = dot(x[t], w[t]);
            }
        }
    }
}

/// A cell for each slab of a row is waited for, and the last slab never leaves.
#[schedule]
pub fn slab_left_behind(x: Gathered<bf16>, w: Local<bf16>, y: Out<bf16>) {
    let slabs = x.tiles((4, 8));
    let tiles = y.tiles((4, 8));
    let arrived = counters(slabs);
    #[comm(ctas = 2)]
    for peer in ranks().after_me() {
        for c in slabs.of(peer).column_major().take(2) {
            // EDIT, was: all
            x[c] = x.on(peer)[c];
            arrived[c].add(1);
        }
    }
    #[gemm]
    for shard in ranks().from_me() {
        for t in tiles.of(shard) {
            arrived[t.rows()].wait();
            y[t] = dot(x[t], w[t]);
        }
    }
}

/// A slab that never leaves, of which no cell tells a product that waits slab by slab.
#[schedule]
pub fn slab_left_behind_within(x: Gathered<bf16>, w: Local<bf16>, y: Out<bf16>) {
    let slabs = x.tiles((4, 8));
    let tiles = y.tiles((4, 8));
    let arrived = counters(slabs);
    #[comm(ctas = 2)]
    for peer in ranks().before_me() {
        for c in slabs.of(me()).column_major().take(2) {
            // EDIT, was: all
            x.on(peer)[c] = x[c];
            arrived.on(peer)[c].add(1);
        }
    }
    #[gemm]
    for shard in ranks().from_me() {
        for t in tiles.of(shard) {
            y[t] = dot(x[t].wait(arrived[t.rows()]), w[t]);
        }
    }
}

/// A slab is announced before it is sent.
#[schedule]
pub fn slab_announced_early(x: Gathered<bf16>, w: Local<bf16>, y: Out<bf16>) {
    let slabs = x.tiles((4, 8));
    let tiles = y.tiles((4, 8));
    let arrived = counters(slabs);
    #[comm(ctas = 2)]
    for peer in ranks().before_me() {
        for c in slabs.of(me()) {
            arrived.on(peer)[c].add(1); // EDIT, was: behind the copy
            x.on(peer)[c] = x[c];
        }
    }
    #[gemm]
    for shard in ranks().from_me() {
        for t in tiles.of(shard) {
            y[t] = dot(x[t].wait(arrived[t.rows()]), w[t]);
        }
    }
}

/// The wait stands behind the product that reads the slabs, in another one.
#[schedule]
pub fn slabs_awaited_late(x: Gathered<bf16>, w: Local<bf16>, v: Local<bf16>, y: Out<bf16>) {
    let slabs = x.tiles((4, 8));
    let tiles = y.tiles((4, 8));
    let arrived = counters(slabs);
    #[comm(ctas = 2)]
    for peer in ranks().before_me() {
        for c in slabs.of(me()) {
            x.on(peer)[c] = x[c];
            arrived.on(peer)[c].add(1);
        }
    }
    #[gemm]
    for shard in ranks().from_me() {
        for t in tiles.of(shard) {
            // EDIT, was: the wait in the first product
            y[t] = dot(x[t], w[t]) + dot(x[t].wait(arrived[t.rows()]), v[t]);
        }
    }
}

/// A product waits for the slabs of another tensor than it reads.
#[schedule]
pub fn slabs_of_another(x: Gathered<bf16>, z: Gathered<bf16>, w: Local<bf16>, y: Out<bf16>) {
    let slabs = x.tiles((4, 8));
    let others = z.tiles((4, 8));
    let tiles = y.tiles((4, 8));
    let arrived = counters(slabs);
    let came = counters(others);
    #[comm(ctas = 2)]
    for peer in ranks().before_me() {
        for c in slabs.of(me()) {
            x.on(peer)[c] = x[c];
            arrived.on(peer)[c].add(1);
        }
        for c in others.of(me()) {
            z.on(peer)[c] = z[c];
            came.on(peer)[c].add(1);
        }
    }
    #[gemm]
    for shard in ranks().from_me() {
        for t in tiles.of(shard) {
            // EDIT, was: came in the second
            let first = dot(x[t].wait(arrived[t.rows()]), w[t]);
            y[t] = first + dot(z[t].wait(arrived[t.rows()]), w[t]);
            came[t.rows()].wait();
        }
    }
}
