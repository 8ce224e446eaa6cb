//! Ways to lose a scale: gathers of FP8 rows whose scales do not come with them. Each bad one is one edit away from
//! `scales_apart`, `EDIT` marks it, `was` says what stood there.

use counterflow::prelude::*;

/// Elements and their scales by copies of their own, and one counter for both.
#[schedule]
pub fn scales_apart(x: Gathered<bf16>, w: Local<bf16>, y: Out<bf16>) {
    let chunks = x.chunks(rows = tune(3, 128));
    let tiles = y.tiles(tune((4, 8), (128, 128)));
    let arrived = counters(chunks);
    #[comm(ctas = 2)]
    for peer in ranks().before_me() {
        for c in chunks.of(me()) {
            x.on(peer).data()[c] = x.data()[c];
            x.on(peer).scales()[c] = x.scales()[c];
            arrived.on(peer)[c].add(1);
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

/// Scales first, with a counter of their own.
#[schedule]
pub fn scales_with_a_counter(x: Gathered<bf16>, w: Local<bf16>, y: Out<bf16>) {
    let chunks = x.chunks(rows = tune(3, 128));
    let tiles = y.tiles(tune((4, 8), (128, 128)));
    let arrived = counters(chunks);
    let scaled = counters(chunks);
    #[comm(ctas = 2)]
    for peer in ranks().before_me() {
        for c in chunks.of(me()) {
            x.on(peer).scales()[c] = x.scales()[c];
            scaled.on(peer)[c].add(1);
        }
        for c in chunks.of(me()) {
            x.on(peer).data()[c] = x.data()[c];
            arrived.on(peer)[c].add(1);
        }
    }
    #[gemm]
    for shard in ranks().from_me() {
        for t in tiles.of(shard) {
            arrived[t.rows()].wait();
            scaled[t.rows()].wait();
            y[t] = dot(x[t], w[t]);
        }
    }
}

/// Nobody sends them.
#[schedule]
pub fn scales_not_sent(x: Gathered<bf16>, w: Local<bf16>, y: Out<bf16>) {
    let chunks = x.chunks(rows = tune(3, 128));
    let tiles = y.tiles(tune((4, 8), (128, 128)));
    let arrived = counters(chunks);
    #[comm(ctas = 2)]
    for peer in ranks().before_me() {
        for c in chunks.of(me()) {
            x.on(peer).data()[c] = x.data()[c];
            arrived.on(peer)[c].add(1); // EDIT, was: behind a copy of the scales
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

/// A peer is told when the elements are there, and the scales come after that.
#[schedule]
pub fn scales_behind_the_signal(x: Gathered<bf16>, w: Local<bf16>, y: Out<bf16>) {
    let chunks = x.chunks(rows = tune(3, 128));
    let tiles = y.tiles(tune((4, 8), (128, 128)));
    let arrived = counters(chunks);
    #[comm(ctas = 2)]
    for peer in ranks().before_me() {
        for c in chunks.of(me()) {
            x.on(peer).data()[c] = x.data()[c];
            arrived.on(peer)[c].add(1); // EDIT, was: behind the scales
            x.on(peer).scales()[c] = x.scales()[c];
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

/// Scales have a counter of their own, for which nobody who multiplies waits.
#[schedule]
pub fn scales_not_awaited(x: Gathered<bf16>, w: Local<bf16>, y: Out<bf16>) {
    let chunks = x.chunks(rows = tune(3, 128));
    let tiles = y.tiles(tune((4, 8), (128, 128)));
    let arrived = counters(chunks);
    let scaled = counters(chunks);
    #[comm(ctas = 2)]
    {
        for peer in ranks().before_me() {
            for c in chunks.of(me()) {
                x.on(peer).data()[c] = x.data()[c];
                arrived.on(peer)[c].add(1);
                x.on(peer).scales()[c] = x.scales()[c];
                scaled.on(peer)[c].add(1);
            }
        }
        for shard in ranks().after_me() {
            for c in chunks.of(shard) {
                scaled[c].wait(); // EDIT, was: with the wait below
            }
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

/// Each rank sends the scales of another one's rows, as it has them.
#[schedule]
pub fn scales_of_other_rows(x: Gathered<bf16>, w: Local<bf16>, y: Out<bf16>) {
    let chunks = x.chunks(rows = tune(3, 128));
    let tiles = y.tiles(tune((4, 8), (128, 128)));
    let arrived = counters(chunks);
    let scaled = counters(chunks);
    #[comm(ctas = 2)]
    for peer in ranks().before_me() {
        for c in chunks.of(me()) {
            x.on(peer).data()[c] = x.data()[c];
            arrived.on(peer)[c].add(1);
        }
        for c in chunks.of((me() + 1) % world()) {
            // EDIT, was: chunks.of(me())
            x.on(peer).scales()[c] = x.scales()[c];
            scaled.on(peer)[c].add(1);
        }
    }
    #[gemm]
    for shard in ranks().from_me() {
        for t in tiles.of(shard) {
            arrived[t.rows()].wait();
            scaled[t.rows()].wait();
            y[t] = dot(x[t], w[t]);
        }
    }
}

/// Scales come with the elements, and once more.
#[schedule]
pub fn scales_sent_twice(x: Gathered<bf16>, w: Local<bf16>, y: Out<bf16>) {
    let chunks = x.chunks(rows = tune(3, 128));
    let tiles = y.tiles(tune((4, 8), (128, 128)));
    let arrived = counters(chunks);
    #[comm(ctas = 2)]
    for peer in ranks().before_me() {
        for c in chunks.of(me()) {
            x.on(peer)[c] = x[c]; // EDIT, was: x.data() on both sides
            x.on(peer).scales()[c] = x.scales()[c];
            arrived.on(peer)[c].add(1);
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
