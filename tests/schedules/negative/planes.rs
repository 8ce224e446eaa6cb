//! Ways to lose a scale: gathers of FP8 rows whose scales do not come with them. Each bad one is one edit away from
//! `scales_apart`, `EDIT` marks it, `was` says what stood there.

use counterflow::prelude::*;

/// Elements and their scales by copies of their own, and one counter for both.
#[schedule]
pub fn scales_apart(x: Gathered<bf16>, w: Local<bf16>, y: Out<bf16>) {
    let pieces = x.pieces(rows = tune(3, 128));
    let tiles = y.tiles(tune((4, 8), (128, 128)));
    let arrived = counters(pieces);
    #[comm(ctas = 2)]
    for peer in ranks().before_me() {
        for p in pieces.of(me()) {
            x.on(peer).data()[p] = x.data()[p];
            x.on(peer).scales()[p] = x.scales()[p];
            arrived.on(peer)[p].add(1);
        }
    }
    #[gemm]
    for chunk in ranks().from_me() {
        for t in tiles.of(chunk) {
            arrived[t.rows()].wait();
            y[t] = dot(x[t], w[t]);
        }
    }
}

/// Scales first, with a counter of their own.
#[schedule]
pub fn scales_with_a_counter(x: Gathered<bf16>, w: Local<bf16>, y: Out<bf16>) {
    let pieces = x.pieces(rows = tune(3, 128));
    let tiles = y.tiles(tune((4, 8), (128, 128)));
    let arrived = counters(pieces);
    let scaled = counters(pieces);
    #[comm(ctas = 2)]
    for peer in ranks().before_me() {
        for p in pieces.of(me()) {
            x.on(peer).scales()[p] = x.scales()[p];
            scaled.on(peer)[p].add(1);
        }
        for p in pieces.of(me()) {
            x.on(peer).data()[p] = x.data()[p];
            arrived.on(peer)[p].add(1);
        }
    }
    #[gemm]
    for chunk in ranks().from_me() {
        for t in tiles.of(chunk) {
            arrived[t.rows()].wait();
            scaled[t.rows()].wait();
            y[t] = dot(x[t], w[t]);
        }
    }
}

/// Nobody sends them.
#[schedule]
pub fn scales_not_sent(x: Gathered<bf16>, w: Local<bf16>, y: Out<bf16>) {
    let pieces = x.pieces(rows = tune(3, 128));
    let tiles = y.tiles(tune((4, 8), (128, 128)));
    let arrived = counters(pieces);
    #[comm(ctas = 2)]
    for peer in ranks().before_me() {
        for p in pieces.of(me()) {
            x.on(peer).data()[p] = x.data()[p];
            arrived.on(peer)[p].add(1); // EDIT, was: behind a copy of the scales
        }
    }
    #[gemm]
    for chunk in ranks().from_me() {
        for t in tiles.of(chunk) {
            arrived[t.rows()].wait();
            y[t] = dot(x[t], w[t]);
        }
    }
}

/// A peer is told when the elements are there, and the scales come after that.
#[schedule]
pub fn scales_behind_the_signal(x: Gathered<bf16>, w: Local<bf16>, y: Out<bf16>) {
    let pieces = x.pieces(rows = tune(3, 128));
    let tiles = y.tiles(tune((4, 8), (128, 128)));
    let arrived = counters(pieces);
    #[comm(ctas = 2)]
    for peer in ranks().before_me() {
        for p in pieces.of(me()) {
            x.on(peer).data()[p] = x.data()[p];
            arrived.on(peer)[p].add(1); // EDIT, was: behind the scales
            x.on(peer).scales()[p] = x.scales()[p];
        }
    }
    #[gemm]
    for chunk in ranks().from_me() {
        for t in tiles.of(chunk) {
            arrived[t.rows()].wait();
            y[t] = dot(x[t], w[t]);
        }
    }
}

/// Scales have a counter of their own, for which nobody who multiplies waits.
#[schedule]
pub fn scales_not_awaited(x: Gathered<bf16>, w: Local<bf16>, y: Out<bf16>) {
    let pieces = x.pieces(rows = tune(3, 128));
    let tiles = y.tiles(tune((4, 8), (128, 128)));
    let arrived = counters(pieces);
    let scaled = counters(pieces);
    #[comm(ctas = 2)]
    {
        for peer in ranks().before_me() {
            for p in pieces.of(me()) {
                x.on(peer).data()[p] = x.data()[p];
                arrived.on(peer)[p].add(1);
                x.on(peer).scales()[p] = x.scales()[p];
                scaled.on(peer)[p].add(1);
            }
        }
        for chunk in ranks().after_me() {
            for p in pieces.of(chunk) {
                scaled[p].wait(); // EDIT, was: with the wait below
            }
        }
    }
    #[gemm]
    for chunk in ranks().from_me() {
        for t in tiles.of(chunk) {
            arrived[t.rows()].wait();
            y[t] = dot(x[t], w[t]);
        }
    }
}

/// Each rank sends the scales of another one's rows, as it has them.
#[schedule]
pub fn scales_of_other_rows(x: Gathered<bf16>, w: Local<bf16>, y: Out<bf16>) {
    let pieces = x.pieces(rows = tune(3, 128));
    let tiles = y.tiles(tune((4, 8), (128, 128)));
    let arrived = counters(pieces);
    let scaled = counters(pieces);
    #[comm(ctas = 2)]
    for peer in ranks().before_me() {
        for p in pieces.of(me()) {
            x.on(peer).data()[p] = x.data()[p];
            arrived.on(peer)[p].add(1);
        }
        for p in pieces.of((me() + 1) % world()) {
            // EDIT, was: pieces.of(me())
            x.on(peer).scales()[p] = x.scales()[p];
            scaled.on(peer)[p].add(1);
        }
    }
    #[gemm]
    for chunk in ranks().from_me() {
        for t in tiles.of(chunk) {
            arrived[t.rows()].wait();
            scaled[t.rows()].wait();
            y[t] = dot(x[t], w[t]);
        }
    }
}

/// Scales come with the elements, and once more.
#[schedule]
pub fn scales_sent_twice(x: Gathered<bf16>, w: Local<bf16>, y: Out<bf16>) {
    let pieces = x.pieces(rows = tune(3, 128));
    let tiles = y.tiles(tune((4, 8), (128, 128)));
    let arrived = counters(pieces);
    #[comm(ctas = 2)]
    for peer in ranks().before_me() {
        for p in pieces.of(me()) {
            x.on(peer)[p] = x[p]; // EDIT, was: x.data() on both sides
            x.on(peer).scales()[p] = x.scales()[p];
            arrived.on(peer)[p].add(1);
        }
    }
    #[gemm]
    for chunk in ranks().from_me() {
        for t in tiles.of(chunk) {
            arrived[t.rows()].wait();
            y[t] = dot(x[t], w[t]);
        }
    }
}
