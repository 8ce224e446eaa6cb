//! Sums that are not what their type promises, each one edit away from a good one; and good ones that are close to bad.

use counterflow::prelude::*;

// ---- how often ----

/// The others' products come twice, the owner's own once.
#[schedule]
pub fn mine_twice(x: Local<bf16>, w: Local<bf16>, y: ReduceScattered<bf16>) {
    let tiles = y.tiles((4, 8));
    let partial = symmetric::<bf16>(y, slots = world());
    let landed = counters(world(), tiles);
    #[gemm]
    for owner in ranks().after_me() {
        for t in tiles.of(owner) {
            let mine = dot(x[t], w[t]);
            partial.on(owner)[me()][t] = mine + mine; // EDIT, was: mine
            landed.on(owner)[me()][t].add(1);
        }
    }
    #[gemm]
    for t in tiles.of(me()) {
        y[t] = dot(x[t], w[t]) + partial[others()][t].wait(landed).sum();
    }
}

/// A sum that travels round the ring and goes to everybody: each rank adds its product. Good.
#[schedule]
pub fn ring_sum(x: Local<bf16>, w: Local<bf16>, y: AllReduced<bf16>) {
    let tiles = y.tiles((4, 8));
    let partial = symmetric::<bf16>(y.whole(), slots = 1);
    let landed = counters(tiles);
    let done = counters(tiles);
    let next = (me() + 1) % world();
    #[gemm]
    for shard in ranks().before_me() {
        for t in tiles.of(shard) {
            let mine = dot(x[t], w[t]);
            if (shard + 1) % world() == me() {
                partial.on(next)[0][t] = mine;
            } else {
                landed[t].wait();
                partial.on(next)[0][t] = mine + partial[0][t].sum();
            }
            landed.on(next)[t].add(1);
        }
    }
    #[gemm]
    for t in tiles.of(me()) {
        let mine = dot(x[t], w[t]);
        landed[t].wait();
        let sum = mine + partial[0][t].sum();
        y[t] = sum;
        for peer in ranks().after_me() {
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

/// On its way each rank adds its product twice.
#[schedule]
pub fn ring_mine_twice(x: Local<bf16>, w: Local<bf16>, y: AllReduced<bf16>) {
    let tiles = y.tiles((4, 8));
    let partial = symmetric::<bf16>(y.whole(), slots = 1);
    let landed = counters(tiles);
    let done = counters(tiles);
    let next = (me() + 1) % world();
    #[gemm]
    for shard in ranks().before_me() {
        for t in tiles.of(shard) {
            let mine = dot(x[t], w[t]);
            if (shard + 1) % world() == me() {
                partial.on(next)[0][t] = mine;
            } else {
                landed[t].wait();
                let before = partial[0][t].sum();
                partial.on(next)[0][t] = mine + mine + before; // EDIT, was: mine + before
            }
            landed.on(next)[t].add(1);
        }
    }
    #[gemm]
    for t in tiles.of(me()) {
        let mine = dot(x[t], w[t]);
        landed[t].wait();
        let sum = mine + partial[0][t].sum();
        y[t] = sum;
        for peer in ranks().after_me() {
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

/// Every rank's contribution is two products. Good.
#[schedule]
pub fn two_products(x: Local<bf16>, w: Local<bf16>, v: Local<bf16>, y: ReduceScattered<bf16>) {
    let tiles = y.tiles((4, 8));
    let partial = symmetric::<bf16>(y, slots = world());
    let landed = counters(world(), tiles);
    #[gemm]
    for owner in ranks().after_me() {
        for t in tiles.of(owner) {
            partial.on(owner)[me()][t] = dot(x[t], w[t]) + dot(x[t], v[t]);
            landed.on(owner)[me()][t].add(1);
        }
    }
    #[gemm]
    for t in tiles.of(me()) {
        let mine = dot(x[t], w[t]) + dot(x[t], v[t]);
        y[t] = mine + partial[others()][t].wait(landed).sum();
    }
}

/// The owner leaves out one of its two.
#[schedule]
pub fn one_of_two_products(
    x: Local<bf16>,
    w: Local<bf16>,
    v: Local<bf16>,
    y: ReduceScattered<bf16>,
) {
    let tiles = y.tiles((4, 8));
    let partial = symmetric::<bf16>(y, slots = world());
    let landed = counters(world(), tiles);
    #[gemm]
    for owner in ranks().after_me() {
        for t in tiles.of(owner) {
            partial.on(owner)[me()][t] = dot(x[t], w[t]) + dot(x[t], v[t]);
            landed.on(owner)[me()][t].add(1);
        }
    }
    #[gemm]
    for t in tiles.of(me()) {
        let mine = dot(x[t], w[t]); // EDIT, was: + dot(x[t], v[t])
        y[t] = mine + partial[others()][t].wait(landed).sum();
    }
}

/// What is accumulated is added twice, in one statement.
#[schedule]
pub fn accumulated_mine_twice(dy: Local<bf16>, x: Local<bf16>, grad: Accumulated<f32>) {
    let tiles = grad.tiles((4, 8));
    #[gemm]
    for t in tiles.grouped(8) {
        let product = dot(dy[t], x[t]);
        grad[t] += product + product; // EDIT, was: product
    }
}

/// A sum over ranks of what they hold, without a product. Good.
#[schedule]
pub fn inputs_summed(x: Local<bf16>, y: ReduceScattered<bf16>) {
    let tiles = y.tiles((4, 8));
    let partial = symmetric::<bf16>(y, slots = world());
    let landed = counters(world(), tiles);
    #[gemm]
    for owner in ranks().after_me() {
        for t in tiles.of(owner) {
            partial.on(owner)[me()][t] = x[t];
            landed.on(owner)[me()][t].add(1);
        }
    }
    #[gemm]
    for t in tiles.of(me()) {
        y[t] = partial[others()][t].wait(landed).sum() + x[t];
    }
}

/// The owner subtracts its own.
#[schedule]
pub fn input_subtracted(x: Local<bf16>, y: ReduceScattered<bf16>) {
    let tiles = y.tiles((4, 8));
    let partial = symmetric::<bf16>(y, slots = world());
    let landed = counters(world(), tiles);
    #[gemm]
    for owner in ranks().after_me() {
        for t in tiles.of(owner) {
            partial.on(owner)[me()][t] = x[t];
            landed.on(owner)[me()][t].add(1);
        }
    }
    #[gemm]
    for t in tiles.of(me()) {
        y[t] = partial[others()][t].wait(landed).sum() - x[t]; // EDIT, was: + x[t]
    }
}

// ---- what is added beside ----

/// Every rank adds the bias to its part of the sum.
#[schedule]
pub fn bias_in_parts(x: Local<bf16>, w: Local<bf16>, bias: Vector<bf16>, y: ReduceScattered<bf16>) {
    let tiles = y.tiles((4, 8));
    let partial = symmetric::<bf16>(y, slots = world());
    let landed = counters(world(), tiles);
    #[gemm]
    for owner in ranks().after_me() {
        for t in tiles.of(owner) {
            partial.on(owner)[me()][t] = dot(x[t], w[t]).bias(bias); // EDIT, was: without the bias
            landed.on(owner)[me()][t].add(1);
        }
    }
    #[gemm]
    for t in tiles.of(me()) {
        y[t] = dot(x[t], w[t]).bias(bias) + partial[others()][t].wait(landed).sum();
    }
}

/// The owner adds bias and residual where the sum is complete. Good.
#[schedule]
pub fn bias_at_the_owner(
    x: Local<bf16>,
    w: Local<bf16>,
    bias: Vector<bf16>,
    r: Local<bf16>,
    y: ReduceScattered<bf16>,
) {
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
        let mine = dot(x[t], w[t]).bias(bias).residual(r[t]);
        y[t] = mine + partial[others()][t].wait(landed).sum();
    }
}

/// Every rank adds its residual to its part of the sum.
#[schedule]
pub fn residual_in_parts(x: Local<bf16>, w: Local<bf16>, r: Local<bf16>, y: AllReduced<bf16>) {
    let tiles = y.tiles((4, 8));
    let partial = symmetric::<bf16>(y.shard(), slots = world());
    let landed = counters(world(), tiles);
    let done = counters(tiles);
    #[gemm]
    for owner in ranks().after_me() {
        for t in tiles.of(owner) {
            // EDIT, was: without the residual
            partial.on(owner)[me()][t] = dot(x[t], w[t]).residual(r[t]);
            landed.on(owner)[me()][t].add(1);
        }
    }
    #[gemm]
    for t in tiles.of(me()) {
        let sum = dot(x[t], w[t]) + partial[others()][t].wait(landed).sum();
        y[t] = sum.residual(r[t]);
        for peer in ranks().after_me() {
            y.on(peer)[t] = sum.residual(r[t]);
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

/// The owner stores its own tile with the bias, and the others add theirs without. Good.
#[schedule]
pub fn bias_before_adds(
    x: Local<bf16>,
    w: Local<bf16>,
    bias: Vector<bf16>,
    y: ReduceScattered<bf16>,
) {
    let tiles = y.tiles((4, 8));
    let begun = counters(tiles);
    let landed = counters(world(), tiles);
    #[gemm]
    for t in tiles.of(me()) {
        y[t] = dot(x[t], w[t]).bias(bias);
        for peer in ranks().after_me() {
            begun.on(peer)[t].add(1);
        }
    }
    #[gemm]
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
        landed[others()][t].wait();
    }
}

/// What the others add has a constant in it.
#[schedule]
pub fn constant_in_adds(x: Local<bf16>, w: Local<bf16>, y: ReduceScattered<bf16>) {
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
            let partial = dot(x[t], w[t]) + 0.5; // EDIT, was: without + 0.5
            begun[t].wait();
            y.on(owner)[t] += partial;
            landed.on(owner)[me()][t].add(1);
        }
    }
    #[gemm]
    for t in tiles.of(me()) {
        landed[others()][t].wait();
    }
}

/// Every launch adds the bias again.
#[schedule]
pub fn accumulated_bias(
    dy: Local<bf16>,
    x: Local<bf16>,
    bias: Vector<bf16>,
    grad: Accumulated<f32>,
) {
    let tiles = grad.tiles((4, 8));
    #[gemm]
    for t in tiles.grouped(8) {
        grad[t] += dot(dy[t], x[t]).bias(bias); // EDIT, was: without the bias
    }
}

/// Every rank adds 1, as a function of what cancels out.
#[schedule]
pub fn exp_of_nothing(x: Local<bf16>, w: Local<bf16>, y: ReduceScattered<bf16>) {
    let tiles = y.tiles((4, 8));
    let partial = symmetric::<bf16>(y, slots = world());
    let landed = counters(world(), tiles);
    #[gemm]
    for owner in ranks().after_me() {
        for t in tiles.of(owner) {
            let mine = dot(x[t], w[t]);
            partial.on(owner)[me()][t] = mine + (mine - mine).exp(); // EDIT, was: mine
            landed.on(owner)[me()][t].add(1);
        }
    }
    #[gemm]
    for t in tiles.of(me()) {
        y[t] = dot(x[t], w[t]) + partial[others()][t].wait(landed).sum();
    }
}

/// The rank that owns the rows subtracts a residual from the complete sum. Good.
#[schedule]
pub fn residual_subtracted(
    x: Local<bf16>,
    w: Local<bf16>,
    r: Local<bf16>,
    y: ReduceScattered<bf16>,
) {
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
        y[t] = dot(x[t], w[t]) + partial[others()][t].wait(landed).sum() - r[t];
    }
}

/// Every launch adds a function of an input again.
#[schedule]
pub fn accumulated_function(
    dy: Local<bf16>,
    x: Local<bf16>,
    r: Local<bf16>,
    grad: Accumulated<f32>,
) {
    let tiles = grad.tiles((4, 8));
    #[gemm]
    for t in tiles.grouped(8) {
        grad[t] += dot(dy[t], x[t]) + r[t].relu(); // EDIT, was: without r[t].relu()
    }
}

// ---- of what a gather is made ----

/// A peer's rows are filled with those of another tensor.
#[schedule]
pub fn gathers_another(x: Gathered<bf16>, w: Local<bf16>, z: Local<bf16>, y: Out<bf16>) {
    let chunks = x.chunks(rows = 3);
    let tiles = y.tiles((4, 8));
    let arrived = counters(chunks);
    #[comm(ctas = 2)]
    for peer in ranks().before_me() {
        for c in chunks.of(me()) {
            x.on(peer)[c] = z[c]; // EDIT, was: x[c]
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

/// Rows come by way of scratch at the owner. Good.
#[schedule]
pub fn gathers_by_scratch(x: Gathered<bf16>, w: Local<bf16>, y: Out<bf16>) {
    let chunks = x.chunks(rows = 3);
    let tiles = y.tiles((4, 8));
    let stage = symmetric::<bf16>(x.shard(), slots = 1);
    let arrived = counters(chunks);
    #[comm(ctas = 2)]
    for c in chunks.of(me()) {
        stage[0][c] = x[c];
        for peer in ranks().before_me() {
            x.on(peer)[c] = stage[0][c];
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

/// By way of scratch come those of another tensor.
#[schedule]
pub fn gathers_another_by_scratch(x: Gathered<bf16>, w: Local<bf16>, z: Local<bf16>, y: Out<bf16>) {
    let chunks = x.chunks(rows = 3);
    let tiles = y.tiles((4, 8));
    let stage = symmetric::<bf16>(x.shard(), slots = 1);
    let arrived = counters(chunks);
    #[comm(ctas = 2)]
    for c in chunks.of(me()) {
        stage[0][c] = z[c]; // EDIT, was: x[c]
        for peer in ranks().before_me() {
            x.on(peer)[c] = stage[0][c];
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

/// A gathered tensor fills another one.
#[schedule]
pub fn gathers_into_another(x: Gathered<bf16>, w: Local<bf16>, z: Gathered<bf16>, y: Out<bf16>) {
    let chunks = x.chunks(rows = 3);
    let tiles = y.tiles((4, 8));
    let arrived = counters(chunks);
    #[comm(ctas = 2)]
    for peer in ranks().before_me() {
        for c in chunks.of(me()) {
            x.on(peer)[c] = x[c];
            z.on(peer)[c] = x[c]; // EDIT, was: z[c]
            arrived.on(peer)[c].add(1);
        }
    }
    #[gemm]
    for shard in ranks().from_me() {
        for t in tiles.of(shard).grouped(8) {
            arrived[t.rows()].wait();
            y[t] = dot(x[t], w[t]) + dot(z[t], w[t]);
        }
    }
}
