//! Outputs that are not written as they must be, or hold another sum than they promise. Each is one edit away from a schedule of the library: `EDIT` marks it, `was` says what stood
//! there.

use counterflow::prelude::*;

/// My own rows are never multiplied.
#[schedule]
pub fn without_mine(x: Gathered<bf16>, w: Local<bf16>, y: Out<bf16>) {
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
    for shard in ranks().after_me() {
        // EDIT, was: from_me()
        for t in tiles.of(shard).grouped(8) {
            arrived[t.rows()].wait();
            y[t] = dot(x[t], w[t]);
        }
    }
}

/// One of three tiles is never multiplied.
#[schedule]
pub fn every_third_left_out(x: Local<bf16>, w: Local<bf16>, y: Out<bf16>) {
    let tiles = y.tiles((4, 8));
    #[gemm]
    {
        for t in tiles.skip(1).step_by(3) {
            // EDIT, was: step_by(2)
            y[t] = dot(x[t], w[t]);
        }
        for t in tiles.step_by(3) {
            // EDIT, was: step_by(2)
            y[t] = dot(x[t], w[t]).relu();
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
pub fn without_own_product(x: Local<bf16>, w: Local<bf16>, y: ReduceScattered<bf16>) {
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
pub fn summed_twice(x: Local<bf16>, w: Local<bf16>, y: ReduceScattered<bf16>) {
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
pub fn subtracted(x: Local<bf16>, w: Local<bf16>, y: ReduceScattered<bf16>) {
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
pub fn gelu_before_sum(x: Local<bf16>, w: Local<bf16>, y: ReduceScattered<bf16>) {
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
pub fn one_left_out(x: Local<bf16>, w: Local<bf16>, y: AllReduced<bf16>) {
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
    let chunks = z.chunks(rows = 3);
    let tiles = y.tiles((4, 8));
    let arrived = counters(chunks);
    #[comm(ctas = 2)]
    {
        for peer in ranks().before_me().but_last(1) {
            // EDIT, was: before_me()
            for c in chunks.of(me()) {
                z.on(peer)[c] = z[c];
                arrived.on(peer)[c].add(1);
            }
        }
        for shard in ranks().after_me() {
            for c in chunks.of(shard) {
                arrived[c].wait();
            }
        }
    }
    #[gemm]
    for t in tiles.grouped(8) {
        y[t] = dot(x[t], w[t]);
    }
}
