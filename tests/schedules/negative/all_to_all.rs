//! All-to-alls: each bad one is one edit away from a good one, `EDIT` marks it, `was` says what stood there. And good
//! ones, whose slots hold more than a product.

use counterflow::prelude::*;

/// Every rank sends into the slot of the next one.
#[schedule]
pub fn slots_turned(x: Local<bf16>, w: Local<bf16>, y: AllToAll<bf16>) {
    let tiles = y.tiles((4, 8));
    let landed = counters(world(), tiles);
    #[gemm]
    for owner in ranks().from_me() {
        for t in tiles.of(owner) {
            y.on(owner)[(me() + 1) % world()][t] = dot(x[t], w[t]); // EDIT, was: [me()]
            landed.on(owner)[me()][t].add(1);
        }
    }
    #[gemm]
    for t in tiles.of(me()) {
        landed[everyone()][t].wait();
    }
}

/// One rank is sent nothing.
#[schedule]
pub fn one_not_sent_to(x: Local<bf16>, w: Local<bf16>, y: AllToAll<bf16>) {
    let tiles = y.tiles((4, 8));
    let landed = counters(world(), tiles);
    #[gemm]
    for owner in ranks().from_me().but_last(1) {
        // EDIT, was: from_me()
        for t in tiles.of(owner) {
            y.on(owner)[me()][t] = dot(x[t], w[t]);
            landed.on(owner)[me()][t].add(1);
        }
    }
    #[gemm]
    for t in tiles.of(me()) {
        landed[everyone()][t].wait();
    }
}

/// All ranks send into one slot.
#[schedule]
pub fn one_slot_for_all(x: Local<bf16>, w: Local<bf16>, y: AllToAll<bf16>) {
    let tiles = y.tiles((4, 8));
    let landed = counters(world(), tiles);
    #[gemm]
    for owner in ranks().from_me() {
        for t in tiles.of(owner) {
            y.on(owner)[owner][t] = dot(x[t], w[t]); // EDIT, was: [me()]
            landed.on(owner)[me()][t].add(1);
        }
    }
    #[gemm]
    for t in tiles.of(me()) {
        landed[everyone()][t].wait();
    }
}

/// The launch ends before all has come.
#[schedule]
pub fn exchange_not_awaited(x: Local<bf16>, w: Local<bf16>, y: AllToAll<bf16>) {
    let tiles = y.tiles((4, 8));
    let landed = counters(world(), tiles);
    #[gemm]
    for owner in ranks().from_me() {
        for t in tiles.of(owner) {
            y.on(owner)[me()][t] = dot(x[t], w[t]);
            landed.on(owner)[me()][t].add(1);
        }
    }
    #[gemm]
    for t in tiles.of(me()) {
        landed[me()][t].wait(); // EDIT, was: [everyone()]
    }
}

/// What one rank computes is sent by another, which adds its own.
#[schedule]
pub fn sent_with_mine(x: Local<bf16>, w: Local<bf16>, y: AllToAll<bf16>) {
    let tiles = y.tiles((4, 8));
    let relay = symmetric::<bf16>(y.whole(), slots = 1);
    let passed = counters(tiles);
    let landed = counters(world(), tiles);
    let next = (me() + 1) % world();
    let before = (me() - 1) % world();
    #[gemm]
    for owner in ranks().from_me() {
        for t in tiles.of(owner) {
            relay.on(next)[0][t] = dot(x[t], w[t]);
            passed.on(next)[t].add(1);
        }
    }
    #[gemm]
    for owner in ranks().from_me() {
        for t in tiles.of(owner) {
            let mine = dot(x[t], w[t]);
            passed[t].wait();
            y.on(owner)[before][t] = mine + relay[0][t]; // EDIT, was: relay[0][t]
            landed.on(owner)[before][t].add(1);
        }
    }
    #[gemm]
    for t in tiles.of(me()) {
        landed[everyone()][t].wait();
    }
}

/// What one rank computes is sent by another, into its slot. Good.
#[schedule]
pub fn sent_by_the_next(x: Local<bf16>, w: Local<bf16>, y: AllToAll<bf16>) {
    let tiles = y.tiles((4, 8));
    let relay = symmetric::<bf16>(y.whole(), slots = 1);
    let passed = counters(tiles);
    let landed = counters(world(), tiles);
    let next = (me() + 1) % world();
    let before = (me() - 1) % world();
    #[gemm]
    for owner in ranks().from_me() {
        for t in tiles.of(owner) {
            relay.on(next)[0][t] = dot(x[t], w[t]);
            passed.on(next)[t].add(1);
        }
    }
    #[gemm]
    for owner in ranks().from_me() {
        for t in tiles.of(owner) {
            passed[t].wait();
            y.on(owner)[before][t] = relay[0][t];
            landed.on(owner)[before][t].add(1);
        }
    }
    #[gemm]
    for t in tiles.of(me()) {
        landed[everyone()][t].wait();
    }
}

/// A function of a product, a bias and gathered rows, which are everybody's. Good.
#[schedule]
pub fn sends_a_function(
    x: Local<bf16>,
    w: Local<bf16>,
    bias: Vector<bf16>,
    g: Gathered<bf16>,
    y: AllToAll<bf16>,
) {
    let chunks = g.chunks(rows = 3);
    let tiles = y.tiles((4, 8));
    let arrived = counters(chunks);
    let landed = counters(world(), tiles);
    #[comm(ctas = 2)]
    for peer in ranks().before_me() {
        for c in chunks.of(me()) {
            g.on(peer)[c] = g[c];
            arrived.on(peer)[c].add(1);
        }
    }
    #[gemm]
    for owner in ranks().from_me() {
        for t in tiles.of(owner) {
            arrived[t.rows()].wait();
            y.on(owner)[me()][t] = dot(x[t], w[t]).bias(bias).gelu() + g[t];
            landed.on(owner)[me()][t].add(1);
        }
    }
    #[gemm]
    for t in tiles.of(me()) {
        landed[everyone()][t].wait();
    }
}

/// Rows, by CTAs that move data. Good.
#[schedule]
pub fn sends_rows(x: Local<bf16>, w: Local<bf16>, v: Local<bf16>, y: AllToAll<bf16>, z: Out<bf16>) {
    let chunks = y.chunks(rows = 3);
    let tiles = z.tiles((4, 8));
    let landed = counters(world(), chunks);
    #[comm(ctas = 2)]
    {
        for owner in ranks().after_me() {
            for c in chunks.of(owner) {
                y.on(owner)[me()][c] = v[c];
                landed.on(owner)[me()][c].add(1);
            }
        }
        for c in chunks.of(me()) {
            y[me()][c] = v[c];
            landed[others()][c].wait();
        }
    }
    #[gemm]
    for t in tiles {
        z[t] = dot(x[t], w[t]);
    }
}
