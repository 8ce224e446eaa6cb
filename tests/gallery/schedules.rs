//! Broken schedules, each one edit away from one of the library. `EDIT` marks it; `was` says what stood there.

use counterflow::prelude::*;

// ---- progress ----

/// The ring is walked the wrong way: each rank first waits for the chunk that reaches it last.
#[schedule]
pub fn ring_backwards(x: Gathered<bf16>, w: Local<bf16>, y: Out<bf16>) {
    let pieces = x.pieces(rows = 3);
    let tiles = y.tiles((4, 8));
    let arrived = counters(pieces);
    let next = (me() + 1) % world();
    #[comm(ctas = 2)]
    for chunk in ring(-1).but_last(1) {
        // EDIT, was: ring(1)
        for p in pieces.of(chunk) {
            arrived[p].wait();
            x.on(next)[p] = x[p];
            arrived.on(next)[p].add(1);
        }
    }
    #[gemm]
    for chunk in ring(1) {
        for t in tiles.of(chunk).grouped(8) {
            arrived[t.rows()].wait();
            y[t] = dot(x[t], w[t]);
        }
    }
}

/// One arrival a piece, but two are waited for.
#[schedule]
pub fn wants_two(x: Gathered<bf16>, w: Local<bf16>, y: Out<bf16>) {
    let pieces = x.pieces(rows = 3);
    let tiles = y.tiles((4, 8));
    let arrived = counters(pieces);
    #[comm(ctas = 2)]
    for peer in ranks().before_me() {
        for p in pieces.of(me()) {
            x.on(peer)[p] = x[p];
            arrived.on(peer)[p].add(1);
        }
    }
    #[gemm]
    for chunk in ranks().from_me() {
        for t in tiles.of(chunk).grouped(8) {
            arrived[t.rows()].wait_at_least(2); // EDIT, was: wait()
            y[t] = dot(x[t], w[t]);
        }
    }
}

/// A chunk counts as here with its first piece: right where a chunk has one piece, and wrong beyond.
#[schedule]
pub fn first_piece_will_do(x: Gathered<bf16>, w: Local<bf16>, y: Out<bf16>) {
    let pieces = x.pieces(rows = 3);
    let tiles = y.tiles((4, 8));
    let arrived = counters(world());
    #[comm(ctas = 2)]
    for peer in ranks().before_me() {
        for p in pieces.of(me()) {
            x.on(peer)[p] = x[p];
            arrived.on(peer)[me()].add(1);
        }
    }
    #[gemm]
    for chunk in ranks().from_me() {
        for t in tiles.of(chunk).grouped(8) {
            if chunk != me() {
                arrived[chunk].wait_at_least(1);
            }
            y[t] = dot(x[t], w[t]);
        }
    }
}

/// Every owner first waits for partials that the others only compute after theirs.
#[schedule]
pub fn mine_first(x: Local<bf16>, w: Local<bf16>, y: Scattered<bf16>) {
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
pub fn done_before_sum(x: Local<bf16>, w: Local<bf16>, y: Reduced<bf16>) {
    let tiles = y.tiles((4, 8));
    let partial = symmetric::<bf16>(y.chunk(), slots = world());
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
pub fn adds_before_own(x: Local<bf16>, w: Local<bf16>, y: Scattered<bf16>) {
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

// ---- race ----

/// Tiles do not wait for the pieces they read.
#[schedule]
pub fn no_wait(x: Gathered<bf16>, w: Local<bf16>, y: Out<bf16>) {
    let pieces = x.pieces(rows = 3);
    let tiles = y.tiles((4, 8));
    let arrived = counters(pieces);
    #[comm(ctas = 2)]
    for peer in ranks().before_me() {
        for p in pieces.of(me()) {
            x.on(peer)[p] = x[p];
            arrived.on(peer)[p].add(1);
        }
    }
    #[gemm]
    for chunk in ranks().from_me() {
        for t in tiles.of(chunk).grouped(8) {
            if chunk == me() {
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
    let pieces = x.pieces(rows = 3);
    let tiles = y.tiles((4, 8));
    let arrived = counters(pieces);
    #[comm(ctas = 2)]
    for peer in ranks().before_me() {
        for p in pieces.of(me()) {
            x.on(peer)[p] = x[p];
            arrived.on(peer)[p].add(1);
        }
    }
    #[gemm]
    for chunk in ranks().from_me() {
        for t in tiles.of(chunk).grouped(8) {
            y[t] = dot(x[t], w[t]);
            arrived[t.rows()].wait(); // EDIT, was: before the dot
        }
    }
}

/// The signal overtakes the data.
#[schedule]
pub fn signal_first(x: Gathered<bf16>, w: Local<bf16>, y: Out<bf16>) {
    let pieces = x.pieces(rows = 3);
    let tiles = y.tiles((4, 8));
    let arrived = counters(pieces);
    #[comm(ctas = 2)]
    for peer in ranks().before_me() {
        for p in pieces.of(me()) {
            arrived.on(peer)[p].add(1); // EDIT, was: after the copy
            x.on(peer)[p] = x[p];
        }
    }
    #[gemm]
    for chunk in ranks().from_me() {
        for t in tiles.of(chunk).grouped(8) {
            arrived[t.rows()].wait();
            y[t] = dot(x[t], w[t]);
        }
    }
}

/// The copy engine's signal overtakes its copy.
#[schedule]
pub fn pull_signal_first(x: Gathered<bf16>, w: Local<bf16>, y: Out<bf16>) {
    let pieces = x.pieces(rows = 3);
    let tiles = y.tiles((4, 8));
    let arrived = counters(pieces);
    #[copy_engine]
    for peer in ranks().after_me() {
        for p in pieces.of(peer) {
            arrived[p].add(1); // EDIT, was: after the copy
            x[p] = x.on(peer)[p];
        }
    }
    #[gemm]
    for chunk in ranks().from_me() {
        for t in tiles.of(chunk).grouped(8) {
            arrived[t.rows()].wait();
            y[t] = dot(x[t], w[t]);
        }
    }
}

/// Copies and signals stand in two loops: another CTA may run the second one.
#[schedule]
pub fn signals_apart(x: Gathered<bf16>, w: Local<bf16>, y: Out<bf16>) {
    let pieces = x.pieces(rows = 3);
    let tiles = y.tiles((4, 8));
    let arrived = counters(pieces);
    #[comm(ctas = 2)]
    for peer in ranks().before_me() {
        for p in pieces.of(me()) {
            x.on(peer)[p] = x[p];
        }
        for p in pieces.of(me()) {
            // EDIT, was: the same loop
            arrived.on(peer)[p].add(1);
        }
    }
    #[gemm]
    for chunk in ranks().from_me() {
        for t in tiles.of(chunk).grouped(8) {
            arrived[t.rows()].wait();
            y[t] = dot(x[t], w[t]);
        }
    }
}

/// A chunk is passed on before it has come.
#[schedule]
pub fn ring_no_wait(x: Gathered<bf16>, w: Local<bf16>, y: Out<bf16>) {
    let pieces = x.pieces(rows = 3);
    let tiles = y.tiles((4, 8));
    let arrived = counters(pieces);
    let next = (me() + 1) % world();
    #[comm(ctas = 2)]
    for chunk in ring(1).but_last(1) {
        for p in pieces.of(chunk) {
            x.on(next)[p] = x[p]; // EDIT, was: after arrived[p].wait()
            arrived.on(next)[p].add(1);
        }
    }
    #[gemm]
    for chunk in ring(1) {
        for t in tiles.of(chunk).grouped(8) {
            arrived[t.rows()].wait();
            y[t] = dot(x[t], w[t]);
        }
    }
}

/// The last chunk of the ring is never passed on.
#[schedule]
pub fn ring_too_short(x: Gathered<bf16>, w: Local<bf16>, y: Out<bf16>) {
    let pieces = x.pieces(rows = 3);
    let tiles = y.tiles((4, 8));
    let arrived = counters(pieces);
    let next = (me() + 1) % world();
    #[comm(ctas = 2)]
    for chunk in ring(1).but_last(2) {
        // EDIT, was: but_last(1)
        for p in pieces.of(chunk) {
            arrived[p].wait();
            x.on(next)[p] = x[p];
            arrived.on(next)[p].add(1);
        }
    }
    #[gemm]
    for chunk in ring(1) {
        for t in tiles.of(chunk).grouped(8) {
            arrived[t.rows()].wait();
            y[t] = dot(x[t], w[t]);
        }
    }
}

/// Partials are summed without waiting for them.
#[schedule]
pub fn sum_no_wait(x: Local<bf16>, w: Local<bf16>, y: Scattered<bf16>) {
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
pub fn one_slot(x: Local<bf16>, w: Local<bf16>, y: Scattered<bf16>) {
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
pub fn sum_everyone(x: Local<bf16>, w: Local<bf16>, y: Scattered<bf16>) {
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
pub fn add_no_wait(x: Local<bf16>, w: Local<bf16>, y: Scattered<bf16>) {
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
pub fn replaces(x: Local<bf16>, w: Local<bf16>, y: Scattered<bf16>) {
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

// ---- coverage ----

/// My own rows are never multiplied.
#[schedule]
pub fn without_mine(x: Gathered<bf16>, w: Local<bf16>, y: Out<bf16>) {
    let pieces = x.pieces(rows = 3);
    let tiles = y.tiles((4, 8));
    let arrived = counters(pieces);
    #[comm(ctas = 2)]
    for peer in ranks().before_me() {
        for p in pieces.of(me()) {
            x.on(peer)[p] = x[p];
            arrived.on(peer)[p].add(1);
        }
    }
    #[gemm]
    for chunk in ranks().after_me() {
        // EDIT, was: from_me()
        for t in tiles.of(chunk).grouped(8) {
            arrived[t.rows()].wait();
            y[t] = dot(x[t], w[t]);
        }
    }
}

/// Every tile is written twice.
#[schedule]
pub fn written_twice(x: Local<bf16>, w: Local<bf16>, y: Out<bf16>) {
    let tiles = y.tiles((4, 8));
    #[gemm]
    for t in tiles.grouped(8) {
        let product = dot(x[t], w[t]);
        y[t] = product;
        y[t] = product; // EDIT, was: absent
    }
}

/// The owner forgets its own product.
#[schedule]
pub fn without_own_product(x: Local<bf16>, w: Local<bf16>, y: Scattered<bf16>) {
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
        y[t] = partial[others()][t].wait(landed).sum(); // EDIT, was: dot(x[t], w[t]) + …
    }
}

/// The partials are summed twice.
#[schedule]
pub fn summed_twice(x: Local<bf16>, w: Local<bf16>, y: Scattered<bf16>) {
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
        let theirs = partial[others()][t].wait(landed).sum();
        y[t] = dot(x[t], w[t]) + theirs + partial[others()][t].sum(); // EDIT, was: + theirs
    }
}

/// The others' terms are taken away instead of added.
#[schedule]
pub fn subtracted(x: Local<bf16>, w: Local<bf16>, y: Scattered<bf16>) {
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
        y[t] = dot(x[t], w[t]) - partial[others()][t].wait(landed).sum(); // EDIT, was: +
    }
}

/// The activation is applied to every term instead of their sum.
#[schedule]
pub fn gelu_before_sum(x: Local<bf16>, w: Local<bf16>, y: Scattered<bf16>) {
    let tiles = y.tiles((4, 8));
    let partial = symmetric::<bf16>(y, slots = world());
    let landed = counters(world(), tiles);
    #[gemm]
    for owner in ranks().after_me() {
        for t in tiles.of(owner) {
            partial.on(owner)[me()][t] = dot(x[t], w[t]).gelu(); // EDIT, was: dot(x[t], w[t])
            landed.on(owner)[me()][t].add(1);
        }
    }
    #[gemm]
    for t in tiles.of(me()) {
        y[t] = dot(x[t], w[t]) + partial[others()][t].wait(landed).sum();
    }
}

/// One rank never gets the sum.
#[schedule]
pub fn one_left_out(x: Local<bf16>, w: Local<bf16>, y: Reduced<bf16>) {
    let tiles = y.tiles((4, 8));
    let partial = symmetric::<bf16>(y.chunk(), slots = world());
    let landed = counters(world(), tiles);
    let done = counters(tiles);
    #[gemm]
    for owner in ranks().after_me() {
        for t in tiles.of(owner) {
            partial.on(owner)[me()][t] = dot(x[t], w[t]);
            landed.on(owner)[me()][t].add(1);
        }
    }
    #[gemm]
    for t in tiles.of(me()) {
        let sum = dot(x[t], w[t]) + partial[others()][t].wait(landed).sum();
        y[t] = sum;
        for peer in ranks().after_me().but_last(1) {
            // EDIT, was: after_me()
            y.on(peer)[t] = sum;
            done.on(peer)[t].add(1);
        }
    }
    #[gemm]
    for owner in ranks().after_me() {
        for t in tiles.of(owner) {
            done[t].wait();
        }
    }
}

/// One rank's gather stays incomplete.
#[schedule]
pub fn bulk_one_left_out(x: Local<bf16>, w: Local<bf16>, y: Out<bf16>, z: Gathered<bf16>) {
    let pieces = z.pieces(rows = 3);
    let tiles = y.tiles((4, 8));
    let arrived = counters(pieces);
    #[comm(ctas = 2)]
    {
        for peer in ranks().before_me().but_last(1) {
            // EDIT, was: before_me()
            for p in pieces.of(me()) {
                z.on(peer)[p] = z[p];
                arrived.on(peer)[p].add(1);
            }
        }
        for chunk in ranks().after_me() {
            for p in pieces.of(chunk) {
                arrived[p].wait();
            }
        }
    }
    #[gemm]
    for t in tiles.grouped(8) {
        y[t] = dot(x[t], w[t]);
    }
}

// ---- reuse ----

/// The launch ends before the gathered rows have come: the next one's may be mixed with them.
#[schedule]
pub fn bulk_no_wait(x: Local<bf16>, w: Local<bf16>, y: Out<bf16>, z: Gathered<bf16>) {
    let pieces = z.pieces(rows = 3);
    let tiles = y.tiles((4, 8));
    let arrived = counters(pieces);
    #[comm(ctas = 2)]
    {
        for peer in ranks().before_me() {
            for p in pieces.of(me()) {
                z.on(peer)[p] = z[p];
                arrived.on(peer)[p].add(1);
            }
        }
        for chunk in ranks().after_me().but_last(1) {
            // EDIT, was: after_me()
            for p in pieces.of(chunk) {
                arrived[p].wait();
            }
        }
    }
    #[gemm]
    for t in tiles.grouped(8) {
        y[t] = dot(x[t], w[t]);
    }
}

/// The sum is announced before it is written.
#[schedule]
pub fn done_first(x: Local<bf16>, w: Local<bf16>, y: Reduced<bf16>) {
    let tiles = y.tiles((4, 8));
    let partial = symmetric::<bf16>(y.chunk(), slots = world());
    let landed = counters(world(), tiles);
    let done = counters(tiles);
    #[gemm]
    for owner in ranks().after_me() {
        for t in tiles.of(owner) {
            partial.on(owner)[me()][t] = dot(x[t], w[t]);
            landed.on(owner)[me()][t].add(1);
        }
    }
    #[gemm]
    for t in tiles.of(me()) {
        let sum = dot(x[t], w[t]) + partial[others()][t].wait(landed).sum();
        y[t] = sum;
        for peer in ranks().after_me() {
            done.on(peer)[t].add(1); // EDIT, was: after the store
            y.on(peer)[t] = sum;
        }
    }
    #[gemm]
    for owner in ranks().after_me() {
        for t in tiles.of(owner) {
            done[t].wait();
        }
    }
}

// ---- attribution ----

/// A common start: every rank has signalled every other before anyone multiplies. Sound; the next one is not.
#[schedule]
pub fn start_together(x: Local<bf16>, w: Local<bf16>, y: Out<bf16>) {
    let tiles = y.tiles((4, 8));
    let here = counters(world());
    #[comm(ctas = 1)]
    for peer in ranks().after_me() {
        here.on(peer)[me()].add(1);
    }
    #[gemm]
    for t in tiles.grouped(8) {
        here[others()].wait();
        y[t] = dot(x[t], w[t]);
    }
}

/// The same, counted in one cell: the second launch of a fast rank counts for the first of a slow one.
#[schedule]
pub fn start_counted_together(x: Local<bf16>, w: Local<bf16>, y: Out<bf16>) {
    let tiles = y.tiles((4, 8));
    let here = counters(); // EDIT, was: counters(world()), indexed by the signaller
    #[comm(ctas = 1)]
    for peer in ranks().after_me() {
        here.on(peer).add(1);
    }
    #[gemm]
    for t in tiles.grouped(8) {
        here.wait();
        y[t] = dot(x[t], w[t]);
    }
}

// ---- bounds ----

/// The last rank has no next one.
#[schedule]
pub fn ring_no_wrap(x: Gathered<bf16>, w: Local<bf16>, y: Out<bf16>) {
    let pieces = x.pieces(rows = 3);
    let tiles = y.tiles((4, 8));
    let arrived = counters(pieces);
    let next = me() + 1; // EDIT, was: (me() + 1) % world()
    #[comm(ctas = 2)]
    for chunk in ring(1).but_last(1) {
        for p in pieces.of(chunk) {
            arrived[p].wait();
            x.on(next)[p] = x[p];
            arrived.on(next)[p].add(1);
        }
    }
    #[gemm]
    for chunk in ring(1) {
        for t in tiles.of(chunk).grouped(8) {
            arrived[t.rows()].wait();
            y[t] = dot(x[t], w[t]);
        }
    }
}

/// A partner that an odd world does not have.
#[schedule]
pub fn no_partner(x: Gathered<bf16>, w: Local<bf16>, y: Out<bf16>) {
    let pieces = x.pieces(rows = 3);
    let tiles = y.tiles((4, 8));
    let arrived = counters(pieces);
    #[comm(ctas = 2)]
    for peer in ranks().before_me() {
        for p in pieces.of(me()) {
            x.on(peer)[p] = x[p];
            arrived.on(me() ^ 1)[p].add(1); // EDIT, was: on(peer)
        }
    }
    #[gemm]
    for chunk in ranks().from_me() {
        for t in tiles.of(chunk).grouped(8) {
            arrived[t.rows()].wait();
            y[t] = dot(x[t], w[t]);
        }
    }
}

/// An order that leaves the world.
#[schedule]
pub fn order_outside(x: Gathered<bf16>, w: Local<bf16>, y: Out<bf16>) {
    let pieces = x.pieces(rows = 3);
    let tiles = y.tiles((4, 8));
    let arrived = counters(pieces);
    #[comm(ctas = 2)]
    for peer in ranks().before_me() {
        for p in pieces.of(me()) {
            x.on(peer)[p] = x[p];
            arrived.on(peer)[p].add(1);
        }
    }
    #[gemm]
    for chunk in ranks().by(|me, step, _world| me + step) {
        // EDIT, was: from_me()
        for t in tiles.of(chunk).grouped(8) {
            arrived[t.rows()].wait();
            y[t] = dot(x[t], w[t]);
        }
    }
}

/// A partial is stored at home, where only my own chunk has room.
#[schedule]
pub fn partial_at_home(x: Local<bf16>, w: Local<bf16>, y: Scattered<bf16>) {
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
