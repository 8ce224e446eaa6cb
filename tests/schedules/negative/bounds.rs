//! Ranks and slots that do not exist. Each is one edit away from a schedule of the library: `EDIT` marks it, `was` says what stood
//! there.

use counterflow::prelude::*;

/// The last rank has no next one.
#[schedule]
pub fn ring_no_wrap(x: Gathered<bf16>, w: Local<bf16>, y: Out<bf16>) {
    let chunks = x.chunks(rows = 3);
    let tiles = y.tiles((4, 8));
    let arrived = counters(chunks);
    let next = me() + 1; // EDIT, was: (me() + 1) % world()
    #[comm(ctas = 2)]
    for shard in ring(1).but_last(1) {
        for c in chunks.of(shard) {
            arrived[c].wait();
            x.on(next)[c] = x[c];
            arrived.on(next)[c].add(1);
        }
    }
    #[gemm]
    for shard in ring(1) {
        for t in tiles.of(shard).grouped(8) {
            arrived[t.rows()].wait();
            y[t] = dot(x[t], w[t]);
        }
    }
}

/// Rank 0 would leave out one rank fewer than none.
#[schedule]
pub fn fewer_than_none(x: Gathered<bf16>, w: Local<bf16>, y: Out<bf16>) {
    let chunks = x.chunks(rows = 3);
    let tiles = y.tiles((4, 8));
    let arrived = counters(chunks);
    let next = (me() + 1) % world();
    #[comm(ctas = 2)]
    for shard in ring(1).but_last(me() - 1) {
        // EDIT, was: but_last(1)
        for c in chunks.of(shard) {
            arrived[c].wait();
            x.on(next)[c] = x[c];
            arrived.on(next)[c].add(1);
        }
    }
    #[gemm]
    for shard in ring(1) {
        for t in tiles.of(shard).grouped(8) {
            arrived[t.rows()].wait();
            y[t] = dot(x[t], w[t]);
        }
    }
}

/// Rank 0 would take steps of no item.
#[schedule]
pub fn step_of_nothing(x: Gathered<bf16>, w: Local<bf16>, y: Out<bf16>) {
    let chunks = x.chunks(rows = 3);
    let tiles = y.tiles((4, 8));
    let arrived = counters(chunks);
    #[comm(ctas = 2)]
    for peer in ranks().before_me() {
        for c in chunks.of(me()).step_by(me()) {
            // EDIT, was: without step_by
            x.on(peer)[c] = x[c];
            arrived.on(peer)[c].add(1);
        }
    }
    #[gemm]
    for shard in ranks().from_me() {
        for t in tiles.of(shard).grouped(8) {
            arrived[t.rows()].wait();
            y[t] = dot(x[t], w[t]);
        }
    }
}

/// A partner that an odd world does not have.
#[schedule]
pub fn no_partner(x: Gathered<bf16>, w: Local<bf16>, y: Out<bf16>) {
    let chunks = x.chunks(rows = 3);
    let tiles = y.tiles((4, 8));
    let arrived = counters(chunks);
    #[comm(ctas = 2)]
    for peer in ranks().before_me() {
        for c in chunks.of(me()) {
            x.on(peer)[c] = x[c];
            arrived.on(me() ^ 1)[c].add(1); // EDIT, was: on(peer)
        }
    }
    #[gemm]
    for shard in ranks().from_me() {
        for t in tiles.of(shard).grouped(8) {
            arrived[t.rows()].wait();
            y[t] = dot(x[t], w[t]);
        }
    }
}

/// An order that leaves the world.
#[schedule]
pub fn order_outside(x: Gathered<bf16>, w: Local<bf16>, y: Out<bf16>) {
    let chunks = x.chunks(rows = 3);
    let tiles = y.tiles((4, 8));
    let arrived = counters(chunks);
    #[comm(ctas = 2)]
    for peer in ranks().before_me() {
        for c in chunks.of(me()) {
            x.on(peer)[c] = x[c];
            arrived.on(peer)[c].add(1);
        }
    }
    #[gemm]
    for shard in ranks().by(|me, step, _world| me + step) {
        // EDIT, was: from_me()
        for t in tiles.of(shard).grouped(8) {
            arrived[t.rows()].wait();
            y[t] = dot(x[t], w[t]);
        }
    }
}

/// A partial is stored at home, where only my own shard has room.
#[schedule]
pub fn partial_at_home(x: Local<bf16>, w: Local<bf16>, y: ReduceScattered<bf16>) {
    let tiles = y.tiles((4, 8));
    let partial = symmetric::<bf16>(y, slots = world());
    let landed = counters(world(), tiles);
    #[gemm]
    for owner in ranks().after_me() {
        for t in tiles.of(owner) {
            partial[me()][t] = dot(x[t], w[t]); // EDIT, was: partial.on(owner)[me()][t]
            landed.on(owner)[me()][t].add(1);
        }
    }
    #[gemm]
    for t in tiles.of(me()) {
        y[t] = dot(x[t], w[t]) + partial[others()][t].wait(landed).sum();
    }
}
