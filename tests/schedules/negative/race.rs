//! Accesses that nothing orders. Each is one edit away from a schedule of the library: `EDIT` marks it, `was` says what stood
//! there.

use counterflow::prelude::*;

/// Tiles do not wait for the chunks they read.
#[schedule]
pub fn no_wait(x: Gathered<bf16>, w: Local<bf16>, y: Out<bf16>) {
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
            if shard == me() {
                // EDIT, was: always
                arrived[t.rows()].wait();
            }
            y[t] = dot(x[t], w[t]);
        }
    }
}

/// Tiles wait, but only after they have read.
#[schedule]
pub fn wait_after_dot(x: Gathered<bf16>, w: Local<bf16>, y: Out<bf16>) {
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
            y[t] = dot(x[t], w[t]);
            arrived[t.rows()].wait(); // EDIT, was: before the dot
        }
    }
}

/// The signal overtakes the data.
#[schedule]
pub fn signal_first(x: Gathered<bf16>, w: Local<bf16>, y: Out<bf16>) {
    let chunks = x.chunks(rows = 3);
    let tiles = y.tiles((4, 8));
    let arrived = counters(chunks);
    #[comm(ctas = 2)]
    for peer in ranks().before_me() {
        for c in chunks.of(me()) {
            arrived.on(peer)[c].add(1); // EDIT, was: after the copy
            x.on(peer)[c] = x[c];
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

/// The copy engine's signal overtakes its copy.
#[schedule]
pub fn pull_signal_first(x: Gathered<bf16>, w: Local<bf16>, y: Out<bf16>) {
    let chunks = x.chunks(rows = 3);
    let tiles = y.tiles((4, 8));
    let arrived = counters(chunks);
    #[copy_engine]
    for peer in ranks().after_me() {
        for c in chunks.of(peer) {
            arrived[c].add(1); // EDIT, was: after the copy
            x[c] = x.on(peer)[c];
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

/// Copies and signals stand in two loops: another CTA may run the second one.
#[schedule]
pub fn signals_apart(x: Gathered<bf16>, w: Local<bf16>, y: Out<bf16>) {
    let chunks = x.chunks(rows = 3);
    let tiles = y.tiles((4, 8));
    let arrived = counters(chunks);
    #[comm(ctas = 2)]
    for peer in ranks().before_me() {
        for c in chunks.of(me()) {
            x.on(peer)[c] = x[c];
        }
        for c in chunks.of(me()) {
            // EDIT, was: the same loop
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

/// A shard is passed on before it has come.
#[schedule]
pub fn ring_no_wait(x: Gathered<bf16>, w: Local<bf16>, y: Out<bf16>) {
    let chunks = x.chunks(rows = 3);
    let tiles = y.tiles((4, 8));
    let arrived = counters(chunks);
    let next = (me() + 1) % world();
    #[comm(ctas = 2)]
    for shard in ring(1).but_last(1) {
        for c in chunks.of(shard) {
            x.on(next)[c] = x[c]; // EDIT, was: after arrived[c].wait()
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

/// The last shard of the ring is never passed on.
#[schedule]
pub fn ring_too_short(x: Gathered<bf16>, w: Local<bf16>, y: Out<bf16>) {
    let chunks = x.chunks(rows = 3);
    let tiles = y.tiles((4, 8));
    let arrived = counters(chunks);
    let next = (me() + 1) % world();
    #[comm(ctas = 2)]
    for shard in ring(1).but_last(2) {
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

/// Partials are summed without waiting for them.
#[schedule]
pub fn sum_no_wait(x: Local<bf16>, w: Local<bf16>, y: ReduceScattered<bf16>) {
    let tiles = y.tiles((4, 8));
    let partial = symmetric::<bf16>(y, slots = world());
    let landed = counters(world(), tiles);
    #[gemm]
    for owner in ranks().after_me() {
        for t in tiles.of(owner) {
            partial.on(owner)[me()][t] = dot(x[t], w[t]);
            landed.on(owner)[me()][t].add(1);
        }
    }
    #[gemm]
    for t in tiles.of(me()) {
        let sum = dot(x[t], w[t]) + partial[others()][t].sum(); // EDIT, was: .wait(landed).sum()
        landed[others()][t].wait();
        y[t] = sum;
    }
}

/// All ranks write their partial to one slot.
#[schedule]
pub fn one_slot(x: Local<bf16>, w: Local<bf16>, y: ReduceScattered<bf16>) {
    let tiles = y.tiles((4, 8));
    let partial = symmetric::<bf16>(y, slots = world());
    let landed = counters(world(), tiles);
    #[gemm]
    for owner in ranks().after_me() {
        for t in tiles.of(owner) {
            partial.on(owner)[owner][t] = dot(x[t], w[t]); // EDIT, was: [me()]
            landed.on(owner)[me()][t].add(1);
        }
    }
    #[gemm]
    for t in tiles.of(me()) {
        y[t] = dot(x[t], w[t]) + partial[others()][t].wait(landed).sum();
    }
}

/// The owner also sums its own slot, which nobody writes.
#[schedule]
pub fn sum_everyone(x: Local<bf16>, w: Local<bf16>, y: ReduceScattered<bf16>) {
    let tiles = y.tiles((4, 8));
    let partial = symmetric::<bf16>(y, slots = world());
    let landed = counters(world(), tiles);
    #[gemm]
    for owner in ranks().after_me() {
        for t in tiles.of(owner) {
            partial.on(owner)[me()][t] = dot(x[t], w[t]);
            landed.on(owner)[me()][t].add(1);
        }
    }
    #[gemm]
    for t in tiles.of(me()) {
        y[t] = dot(x[t], w[t]) + partial[everyone()][t].wait(landed).sum(); // EDIT, was: others()
    }
}

/// Partials are added to a tile that its owner may not have stored yet.
#[schedule]
pub fn add_no_wait(x: Local<bf16>, w: Local<bf16>, y: ReduceScattered<bf16>) {
    let tiles = y.tiles((4, 8));
    let begun = counters(tiles);
    let landed = counters(world(), tiles);
    #[gemm]
    for t in tiles.of(me()) {
        y[t] = dot(x[t], w[t]);
        for peer in ranks().after_me() {
            begun.on(peer)[t].add(1);
        }
    }
    #[gemm]
    for owner in ranks().after_me() {
        for t in tiles.of(owner) {
            y.on(owner)[t] += dot(x[t], w[t]);
            begun[t].wait(); // EDIT, was: before the add
            landed.on(owner)[me()][t].add(1);
        }
    }
    #[gemm]
    for t in tiles.of(me()) {
        landed[others()][t].wait();
    }
}

/// Partials replace what is there instead of being added.
#[schedule]
pub fn replaces(x: Local<bf16>, w: Local<bf16>, y: ReduceScattered<bf16>) {
    let tiles = y.tiles((4, 8));
    let begun = counters(tiles);
    let landed = counters(world(), tiles);
    #[gemm]
    for t in tiles.of(me()) {
        y[t] = dot(x[t], w[t]);
        for peer in ranks().after_me() {
            begun.on(peer)[t].add(1);
        }
    }
    #[gemm]
    for owner in ranks().after_me() {
        for t in tiles.of(owner) {
            let partial = dot(x[t], w[t]);
            begun[t].wait();
            y.on(owner)[t] = partial; // EDIT, was: +=
            landed.on(owner)[me()][t].add(1);
        }
    }
    #[gemm]
    for t in tiles.of(me()) {
        landed[others()][t].wait();
    }
}

/// The halves of two orders are not the halves of one.
#[schedule]
pub fn halves_of_two_orders(x: Local<bf16>, w: Local<bf16>, y: Out<bf16>) {
    let tiles = y.tiles((4, 8));
    #[gemm]
    {
        for t in tiles.column_major().first_half() {
            // EDIT, was: row_major()
            y[t] = dot(x[t], w[t]);
        }
        for t in tiles.row_major().second_half() {
            y[t] = dot(x[t], w[t]).relu();
        }
    }
}
