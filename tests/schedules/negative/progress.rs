//! Schedules that wait for what never comes. Each is one edit away from a schedule of the library: `EDIT` marks it, `was` says what stood
//! there.

use counterflow::prelude::*;

/// The ring is walked the wrong way: each rank first waits for the shard that reaches it last.
#[schedule]
pub fn ring_backwards(x: Gathered<bf16>, w: Local<bf16>, y: Out<bf16>) {
    let chunks = x.chunks(rows = 3);
    let tiles = y.tiles((4, 8));
    let arrived = counters(chunks);
    let next = (me() + 1) % world();
    #[comm(ctas = 2)]
    for shard in ring(-1).but_last(1) {
        // EDIT, was: ring(1)
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

/// One arrival a chunk, but two are waited for.
#[schedule]
pub fn wants_two(x: Gathered<bf16>, w: Local<bf16>, y: Out<bf16>) {
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
    for shard in ranks().from_me() {
        for t in tiles.of(shard).grouped(8) {
            arrived[t.rows()].wait_at_least(2); // EDIT, was: wait()
            y[t] = dot(x[t], w[t]);
        }
    }
}

/// A shard counts as here with its first chunk: right where a shard has one chunk, and wrong beyond.
#[schedule]
pub fn first_chunk_will_do(x: Gathered<bf16>, w: Local<bf16>, y: Out<bf16>) {
    let chunks = x.chunks(rows = 3);
    let tiles = y.tiles((4, 8));
    let arrived = counters(world());
    #[comm(ctas = 2)]
    for peer in ranks().before_me() {
        for c in chunks.of(me()) {
            x.on(peer)[c] = x[c];
            arrived.on(peer)[me()].add(1);
        }
    }
    #[gemm]
    for shard in ranks().from_me() {
        for t in tiles.of(shard).grouped(8) {
            if shard != me() {
                arrived[shard].wait_at_least(1);
            }
            y[t] = dot(x[t], w[t]);
        }
    }
}

/// Every owner first waits for partials that the others only compute after theirs.
#[schedule]
pub fn mine_first(x: Local<bf16>, w: Local<bf16>, y: ReduceScattered<bf16>) {
    let tiles = y.tiles((4, 8));
    let partial = symmetric::<bf16>(y, slots = world());
    let landed = counters(world(), tiles);
    #[gemm] // EDIT, was: after the next loop
    for t in tiles.of(me()) {
        y[t] = dot(x[t], w[t]) + partial[others()][t].wait(landed).sum();
    }
    #[gemm]
    for owner in ranks().after_me() {
        for t in tiles.of(owner) {
            partial.on(owner)[me()][t] = dot(x[t], w[t]);
            landed.on(owner)[me()][t].add(1);
        }
    }
}

/// Every rank waits for the others' sums before it makes its own.
#[schedule]
pub fn done_before_sum(x: Local<bf16>, w: Local<bf16>, y: AllReduced<bf16>) {
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
    #[gemm] // EDIT, was: after the next loop
    for owner in ranks().after_me() {
        for t in tiles.of(owner) {
            done[t].wait();
        }
    }
    #[gemm]
    for t in tiles.of(me()) {
        let sum = dot(x[t], w[t]) + partial[others()][t].wait(landed).sum();
        y[t] = sum;
        for peer in ranks().after_me() {
            y.on(peer)[t] = sum;
            done.on(peer)[t].add(1);
        }
    }
}

/// Every rank waits for the owner's tile before it has stored the tiles it owns itself.
#[schedule]
pub fn adds_before_own(x: Local<bf16>, w: Local<bf16>, y: ReduceScattered<bf16>) {
    let tiles = y.tiles((4, 8));
    let begun = counters(tiles);
    let landed = counters(world(), tiles);
    #[gemm] // EDIT, was: after the next loop
    for owner in ranks().after_me() {
        for t in tiles.of(owner) {
            let partial = dot(x[t], w[t]);
            begun[t].wait();
            y.on(owner)[t] += partial;
            landed.on(owner)[me()][t].add(1);
        }
    }
    #[gemm]
    for t in tiles.of(me()) {
        y[t] = dot(x[t], w[t]);
        for peer in ranks().after_me() {
            begun.on(peer)[t].add(1);
        }
    }
    #[gemm]
    for t in tiles.of(me()) {
        landed[others()][t].wait();
    }
}
