//! Gathered results of which ranks get other numbers, though every number is of the same products and inputs: each bad
//! one is one edit away from a good one, `EDIT` marks it, `was` says what stood there. And good ones.

use counterflow::prelude::*;

/// Peers get one of two slots, which hold other constants.
#[schedule]
pub fn gathers_two_constants_by_scratch(x: Local<bf16>, w: Local<bf16>, y: Gathered<bf16>) {
    let tiles = y.tiles((4, 8));
    let z = symmetric::<bf16>(y.shard(), slots = 2);
    let ready = counters(tiles);
    let arrived = counters(tiles);
    #[gemm]
    for t in tiles.of(me()) {
        let tile = dot(x[t], w[t]);
        z[0][t] = tile + 1.0;
        z[1][t] = tile + 2.0; // EDIT, was: tile + 1.0
        ready[t].add(1);
    }
    #[gemm]
    for r in ranks().from_me() {
        for t in tiles.of(me()) {
            ready[t].wait();
            y.on(r)[t] = z[r % 2][t].relu();
            arrived.on(r)[t].add(1);
        }
    }
    #[gemm]
    for t in tiles {
        arrived[t].wait();
    }
}

/// Peers get one of two slots, to which other constants were added.
#[schedule]
pub fn gathers_two_added_constants(
    x: Local<bf16>,
    w: Local<bf16>,
    r: Local<bf16>,
    y: Gathered<bf16>,
) {
    let tiles = y.tiles((4, 8));
    let z = symmetric::<bf16>(y.shard(), slots = 2);
    let ready = counters(tiles);
    let arrived = counters(tiles);
    #[gemm]
    for t in tiles.of(me()) {
        let tile = dot(x[t], w[t]);
        z[0][t] = tile;
        z[0][t] += r[t] + 1.0;
        z[1][t] = tile;
        z[1][t] += r[t] + 2.0; // EDIT, was: without `+=` to either
        ready[t].add(1);
    }
    #[gemm]
    for peer in ranks().from_me() {
        for t in tiles.of(me()) {
            ready[t].wait();
            y.on(peer)[t] = z[peer % 2][t].relu();
            arrived.on(peer)[t].add(1);
        }
    }
    #[gemm]
    for t in tiles {
        arrived[t].wait();
    }
}

/// Peers get products of rows that are other ones in every round.
#[schedule]
pub fn gathers_products_of_two_slots(x: Local<bf16>, w: Local<bf16>, y: Gathered<bf16>) {
    let tiles = y.tiles((4, 8));
    let z = symmetric::<bf16>(x, slots = 2);
    let h = symmetric::<bf16>(x, slots = 1);
    let parts = h.tiles((4, 8));
    let blocks = h.chunks(rows = 4);
    let ready = counters(world(), blocks);
    let done = counters(world(), blocks);
    let kept = counters(parts);
    let arrived = counters(tiles);
    #[gemm]
    for t in parts.of(me()) {
        z[0][t] = x[t] + 1.0;
        z[1][t] = x[t] + 2.0; // EDIT, was: x[t] + 1.0
        kept[t].add(1);
    }
    #[gemm]
    for r in ranks().from_me() {
        for t in parts.of(me()) {
            kept[t].wait();
            if r != me() {
                done[(r - 1) % world()][t.rows()].wait();
            }
            h[t] = z[r % 2][t].relu();
            ready[r][t.rows()].add(1);
        }
        for t in tiles.of(me()) {
            ready[r][t.rows()].wait();
            y.on(r)[t] = dot(h[t], w[t]);
            done[r][t.rows()].add(1);
            arrived.on(r)[t].add(1);
        }
    }
    #[gemm]
    for t in tiles {
        arrived[t].wait();
    }
}

/// Each peer gets another dot of the same rows: perhaps in another order of its terms. Not known to be the same.
#[schedule]
pub fn gathers_two_dots(x: Local<bf16>, w: Local<bf16>, y: Gathered<bf16>) {
    let tiles = y.tiles((4, 8));
    let arrived = counters(tiles);
    #[gemm]
    for t in tiles.of(me()) {
        y[t] = dot(x[t], w[t]);
        for peer in ranks().after_me() {
            y.on(peer)[t] = dot(x[t], w[t]);
            arrived.on(peer)[t].add(1);
        }
    }
    #[gemm]
    for owner in ranks().after_me() {
        for t in tiles.of(owner) {
            arrived[t].wait();
        }
    }
}

/// A residual is read twice, and added to the same product. Good.
#[schedule]
pub fn gathers_two_reads(x: Local<bf16>, w: Local<bf16>, r: Local<bf16>, y: Gathered<bf16>) {
    let tiles = y.tiles((4, 8));
    let arrived = counters(tiles);
    #[gemm]
    for t in tiles.of(me()) {
        let tile = dot(x[t], w[t]);
        y[t] = tile + r[t];
        for peer in ranks().after_me() {
            y.on(peer)[t] = tile + r[t];
            arrived.on(peer)[t].add(1);
        }
    }
    #[gemm]
    for owner in ranks().after_me() {
        for t in tiles.of(owner) {
            arrived[t].wait();
        }
    }
}

/// Peers get one of two slots, which hold the same. Good.
#[schedule]
pub fn gathers_two_slots(x: Local<bf16>, w: Local<bf16>, y: Gathered<bf16>) {
    let tiles = y.tiles((4, 8));
    let z = symmetric::<bf16>(y.shard(), slots = 2);
    let ready = counters(tiles);
    let arrived = counters(tiles);
    #[gemm]
    for t in tiles.of(me()) {
        let tile = dot(x[t], w[t]);
        z[0][t] = tile + 1.0;
        z[1][t] = tile + 1.0;
        ready[t].add(1);
    }
    #[gemm]
    for r in ranks().from_me() {
        for t in tiles.of(me()) {
            ready[t].wait();
            y.on(r)[t] = z[r % 2][t].relu();
            arrived.on(r)[t].add(1);
        }
    }
    #[gemm]
    for t in tiles {
        arrived[t].wait();
    }
}
