//! Gathers of what ranks compute: each bad one is one edit away from a good one, `EDIT` marks it, `was` says what stood
//! there. And good ones.

use counterflow::prelude::*;

/// A tile is stored on every peer, and no peer is told.
#[schedule]
pub fn gathered_untold(x: Local<bf16>, w: Local<bf16>, y: Gathered<bf16>) {
    let tiles = y.tiles((4, 8));
    let arrived = counters(tiles);
    #[gemm]
    for t in tiles.of(me()) {
        let tile = dot(x[t], w[t]);
        y[t] = tile;
        arrived[t].add(1); // EDIT, was: in the loop, arrived.on(peer)[t]
        for peer in ranks().after_me() {
            y.on(peer)[t] = tile;
        }
    }
    #[gemm]
    for t in tiles.of(me()) {
        // EDIT, was: of all owners after me
        arrived[t].wait();
    }
}

/// A peer is told before its tile is there.
#[schedule]
pub fn gathered_told_early(x: Local<bf16>, w: Local<bf16>, y: Gathered<bf16>) {
    let tiles = y.tiles((4, 8));
    let arrived = counters(tiles);
    #[gemm]
    for t in tiles.of(me()) {
        let tile = dot(x[t], w[t]);
        y[t] = tile;
        for peer in ranks().after_me() {
            arrived.on(peer)[t].add(1); // EDIT, was: behind the store
            y.on(peer)[t] = tile;
        }
    }
    #[gemm]
    for owner in ranks().after_me() {
        for t in tiles.of(owner) {
            arrived[t].wait();
        }
    }
}

/// One peer gets no tile, but is told.
#[schedule]
pub fn gathered_by_all_but_one(x: Local<bf16>, w: Local<bf16>, y: Gathered<bf16>) {
    let tiles = y.tiles((4, 8));
    let arrived = counters(tiles);
    #[gemm]
    for t in tiles.of(me()) {
        let tile = dot(x[t], w[t]);
        y[t] = tile;
        for peer in ranks().after_me() {
            if peer != (me() + 2) % world() {
                // EDIT, was: no condition
                y.on(peer)[t] = tile;
            }
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

/// The launch ends before all has come.
#[schedule]
pub fn gather_not_awaited(x: Local<bf16>, w: Local<bf16>, y: Gathered<bf16>) {
    let tiles = y.tiles((4, 8));
    let arrived = counters(tiles);
    #[gemm]
    for t in tiles.of(me()) {
        let tile = dot(x[t], w[t]);
        y[t] = tile;
        for peer in ranks().after_me() {
            y.on(peer)[t] = tile;
            arrived.on(peer)[t].add(1);
        }
    }
    #[gemm]
    for owner in ranks().after_me().but_last(1) {
        // EDIT, was: after_me()
        for t in tiles.of(owner) {
            arrived[t].wait();
        }
    }
}

/// Every rank computes the rows of the next one.
#[schedule]
pub fn gathers_anothers_rows(x: Local<bf16>, w: Local<bf16>, y: Gathered<bf16>) {
    let tiles = y.tiles((4, 8));
    let arrived = counters(tiles);
    #[gemm]
    for t in tiles.of((me() + 1) % world()) {
        // EDIT, was: of(me())
        let tile = dot(x[t], w[t]);
        y[t] = tile;
        for peer in ranks().after_me() {
            y.on(peer)[t] = tile;
            arrived.on(peer)[t].add(1);
        }
    }
    #[gemm]
    for t in tiles {
        arrived[t].wait();
    }
}

/// Peers get what the owner does not keep.
#[schedule]
pub fn gathers_before_the_function(x: Local<bf16>, w: Local<bf16>, y: Gathered<bf16>) {
    let tiles = y.tiles((4, 8));
    let arrived = counters(tiles);
    #[gemm]
    for t in tiles.of(me()) {
        let tile = dot(x[t], w[t]);
        y[t] = tile.gelu();
        for peer in ranks().after_me() {
            y.on(peer)[t] = tile; // EDIT, was: tile.gelu()
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

/// Peers get another constant.
#[schedule]
pub fn gathers_another_constant(x: Local<bf16>, w: Local<bf16>, y: Gathered<bf16>) {
    let tiles = y.tiles((4, 8));
    let arrived = counters(tiles);
    #[gemm]
    for t in tiles.of(me()) {
        let tile = dot(x[t], w[t]);
        y[t] = tile + 1.0;
        for peer in ranks().after_me() {
            y.on(peer)[t] = tile + 2.0; // EDIT, was: tile + 1.0
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

/// A gathered tensor that a statement stores to is an output: it holds nothing at the start.
#[schedule]
pub fn gathered_read_at_the_start(x: Gathered<bf16>, w: Local<bf16>, y: Out<bf16>) {
    let tiles = y.tiles((4, 8));
    let copies = x.tiles((4, 8));
    let arrived = counters(copies);
    #[gemm]
    for t in tiles.of(me()) {
        y[t] = dot(x[t], w[t]);
    }
    #[gemm]
    for t in copies.of(me()) {
        let old = x[t].scale(1.0);
        for peer in ranks().after_me() {
            x.on(peer)[t] = old; // EDIT, was: a copy, which makes no output of it
            arrived.on(peer)[t].add(1);
        }
    }
    #[gemm]
    for owner in ranks().after_me() {
        for t in tiles.of(owner) {
            y[t] = dot(x[t], w[t]);
        }
    }
    #[gemm]
    for owner in ranks().after_me() {
        for t in copies.of(owner) {
            arrived[t].wait();
        }
    }
}

/// The next layer reads a row block before it has come.
#[schedule]
pub fn gathered_used_unawaited(
    x: Local<bf16>,
    w: Local<bf16>,
    y: Gathered<bf16>,
    v: Local<bf16>,
    z: Out<bf16>,
) {
    let tiles = y.tiles((4, 8));
    let used = z.tiles((4, 8));
    let blocks = y.chunks(rows = 4);
    let arrived = counters(blocks);
    #[gemm]
    for t in tiles.of(me()) {
        let tile = dot(x[t], w[t]);
        for peer in ranks().from_me() {
            y.on(peer)[t] = tile;
            arrived.on(peer)[t.rows()].add(1);
        }
    }
    #[gemm]
    for t in tiles {
        arrived[t.rows()].wait();
    }
    #[gemm]
    for owner in ranks().from_me() {
        for t in used.of(owner) {
            // EDIT, was: arrived[t.rows()].wait();
            z[t] = dot(y[t], v[t]);
        }
    }
}

/// The next layer waits for the row block of another rank.
#[schedule]
pub fn gathered_used_by_another_wait(
    x: Local<bf16>,
    w: Local<bf16>,
    y: Gathered<bf16>,
    v: Local<bf16>,
    z: Out<bf16>,
) {
    let tiles = y.tiles((4, 8));
    let used = z.tiles((4, 8));
    let arrived = counters(world());
    #[gemm]
    for t in tiles.of(me()) {
        let tile = dot(x[t], w[t]);
        for peer in ranks().from_me() {
            y.on(peer)[t] = tile;
            arrived.on(peer)[me()].add(1);
        }
    }
    #[gemm]
    for owner in ranks().from_me() {
        for t in used.of(owner) {
            arrived[(owner + 1) % world()].wait(); // EDIT, was: arrived[owner]
            z[t] = dot(y[t], v[t]);
        }
    }
}

/// Rows are sent before they are computed.
#[schedule]
pub fn gathered_sent_unready(x: Local<bf16>, w: Local<bf16>, y: Gathered<bf16>) {
    let tiles = y.tiles((4, 8));
    let chunks = y.chunks(rows = 8);
    let arrived = counters(chunks);
    #[gemm]
    for t in tiles.of(me()) {
        y[t] = dot(x[t], w[t]);
    }
    #[comm(ctas = 2)]
    {
        for c in chunks.of(me()) {
            // EDIT, was: ready[c].wait(), a counter that the product adds to
            for peer in ranks().after_me() {
                y.on(peer)[c] = y[c];
                arrived.on(peer)[c].add(1);
            }
        }
        for owner in ranks().after_me() {
            for c in chunks.of(owner) {
                arrived[c].wait();
            }
        }
    }
}

/// A ring passes rows on before they have come.
#[schedule]
pub fn gathered_passed_on_early(x: Local<bf16>, w: Local<bf16>, y: Gathered<bf16>) {
    let tiles = y.tiles((4, 8));
    let chunks = y.chunks(rows = 8);
    let ready = counters(chunks);
    let arrived = counters(chunks);
    let next = (me() + 1) % world();
    #[gemm]
    for t in tiles.of(me()) {
        y[t] = dot(x[t], w[t]);
        ready[t.rows()].add(1);
    }
    #[comm(ctas = 2)]
    {
        for c in chunks.of(me()) {
            ready[c].wait();
            y.on(next)[c] = y[c];
            arrived.on(next)[c].add(1);
        }
        for owner in ranks().before_me() {
            for c in chunks.of(owner) {
                if owner != next {
                    y.on(next)[c] = y[c];
                    arrived.on(next)[c].add(1);
                }
                arrived[c].wait(); // EDIT, was: before the copy
            }
        }
    }
}

/// A tile is stored on each peer twice.
#[schedule]
pub fn gathered_twice(x: Local<bf16>, w: Local<bf16>, y: Gathered<bf16>) {
    let tiles = y.tiles((4, 8));
    let arrived = counters(tiles);
    #[gemm]
    for t in tiles.of(me()) {
        let tile = dot(x[t], w[t]);
        y[t] = tile;
        for peer in ranks().after_me() {
            y.on(peer)[t] = tile;
            y.on(peer)[t] = tile; // EDIT, was: once
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

/// A rank sends its tiles, and keeps none.
#[schedule]
pub fn gathered_by_others_only(x: Local<bf16>, w: Local<bf16>, y: Gathered<bf16>) {
    let tiles = y.tiles((4, 8));
    let arrived = counters(tiles);
    #[gemm]
    for t in tiles.of(me()) {
        let tile = dot(x[t], w[t]);
        // EDIT, was: y[t] = tile;
        for peer in ranks().after_me() {
            y.on(peer)[t] = tile;
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

/// A function of a product, a bias, a residual and a constant; written twice, the same. Good.
#[schedule]
pub fn gathers_a_function(
    x: Local<bf16>,
    w: Local<bf16>,
    bias: Vector<bf16>,
    r: Local<bf16>,
    y: Gathered<bf16>,
) {
    let tiles = y.tiles((4, 8));
    let arrived = counters(tiles);
    #[gemm]
    for t in tiles.of(me()) {
        let product = dot(x[t], w[t]).bias(bias);
        let old = r[t];
        y[t] = product.gelu() + old + 0.5;
        for peer in ranks().after_me() {
            y.on(peer)[t] = product.gelu() + old + 0.5;
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

/// The product's CTAs compute my rows, CTAs that move data send them by larger chunks. Good.
#[schedule]
pub fn gathers_by_comm(x: Local<bf16>, w: Local<bf16>, y: Gathered<bf16>) {
    let tiles = y.tiles((4, 8));
    let chunks = y.chunks(rows = 8);
    let ready = counters(chunks);
    let arrived = counters(chunks);
    #[gemm]
    for t in tiles.of(me()) {
        y[t] = dot(x[t], w[t]);
        ready[t.rows()].add(1);
    }
    #[comm(ctas = 2)]
    {
        for c in chunks.of(me()) {
            ready[c].wait();
            for peer in ranks().after_me() {
                y.on(peer)[c] = y[c];
                arrived.on(peer)[c].add(1);
            }
        }
        for owner in ranks().after_me() {
            for c in chunks.of(owner) {
                arrived[c].wait();
            }
        }
    }
}

/// Rows go around a ring. Good.
#[schedule]
pub fn gathers_around_a_ring(x: Local<bf16>, w: Local<bf16>, y: Gathered<bf16>) {
    let tiles = y.tiles((4, 8));
    let chunks = y.chunks(rows = 8);
    let ready = counters(chunks);
    let arrived = counters(chunks);
    let next = (me() + 1) % world();
    #[gemm]
    for t in tiles.of(me()) {
        y[t] = dot(x[t], w[t]);
        ready[t.rows()].add(1);
    }
    #[comm(ctas = 2)]
    {
        for c in chunks.of(me()) {
            ready[c].wait();
            if world() > 1 {
                y.on(next)[c] = y[c];
                arrived.on(next)[c].add(1);
            }
        }
        for owner in ranks().before_me() {
            for c in chunks.of(owner) {
                arrived[c].wait();
                if owner != next {
                    y.on(next)[c] = y[c];
                    arrived.on(next)[c].add(1);
                }
            }
        }
    }
}
