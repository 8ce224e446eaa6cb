//! Products whose columns the ranks divide. Each bad one is one edit away from `fsdp_gemm`: `EDIT` marks it, `was` says what
//! stood there.

use counterflow::prelude::*;

/// Nobody waits for the shards.
#[schedule]
pub fn shards_not_awaited(x: Local<bf16>, w: Gathered<bf16>, y: Out<bf16>) {
    let chunks = w.chunks(rows = 3);
    let tiles = y.tiles((4, 8));
    #[comm(ctas = 2)]
    for peer in ranks().before_me() {
        for c in chunks.of(me()) {
            w.on(peer)[c] = w[c];
        }
    }
    #[gemm]
    for shard in ranks().from_me() {
        for t in tiles.of(shard).grouped(8) {
            y[t] = dot(x[t], w[t]); // EDIT, was: after arrived[t.columns()].wait()
        }
    }
}

/// Each tile waits for the same part of another shard.
#[schedule]
pub fn another_shard_awaited(x: Local<bf16>, w: Gathered<bf16>, y: Out<bf16>) {
    let chunks = w.chunks(rows = 3);
    let tiles = y.tiles((4, 8));
    let arrived = counters(world());
    #[comm(ctas = 2)]
    for peer in ranks().before_me() {
        for c in chunks.of(me()) {
            w.on(peer)[c] = w[c];
            arrived.on(peer)[me()].add(1);
        }
    }
    #[gemm]
    for shard in ranks().from_me() {
        for t in tiles.of(shard).grouped(8) {
            arrived[(shard + 1) % world()].wait(); // EDIT, was: [shard]
            y[t] = dot(x[t], w[t]);
        }
    }
}

/// My own columns are never multiplied.
#[schedule]
pub fn without_my_shard(x: Local<bf16>, w: Gathered<bf16>, y: Out<bf16>) {
    let chunks = w.chunks(rows = 3);
    let tiles = y.tiles((4, 8));
    let arrived = counters(chunks);
    #[comm(ctas = 2)]
    for peer in ranks().before_me() {
        for c in chunks.of(me()) {
            w.on(peer)[c] = w[c];
            arrived.on(peer)[c].add(1);
        }
    }
    #[gemm]
    for shard in ranks().after_me() {
        // EDIT, was: from_me()
        for t in tiles.of(shard).grouped(8) {
            arrived[t.columns()].wait();
            y[t] = dot(x[t], w[t]);
        }
    }
}

/// Shards are sent to one peer too few.
#[schedule]
pub fn a_shard_never_sent(x: Local<bf16>, w: Gathered<bf16>, y: Out<bf16>) {
    let chunks = w.chunks(rows = 3);
    let tiles = y.tiles((4, 8));
    let arrived = counters(chunks);
    #[comm(ctas = 2)]
    for peer in ranks().before_me().but_last(1) {
        // EDIT, was: before_me()
        for c in chunks.of(me()) {
            w.on(peer)[c] = w[c];
            arrived.on(peer)[c].add(1);
        }
    }
    #[gemm]
    for shard in ranks().from_me() {
        for t in tiles.of(shard).grouped(8) {
            if shard != me() {
                arrived[t.columns()].wait_at_least(1);
            }
            y[t] = dot(x[t], w[t]);
        }
    }
}
