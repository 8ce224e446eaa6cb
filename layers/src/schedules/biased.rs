//! Products with a bias, which is added once: by who has the columns of a gathered product, and by the owner of a summed one's
//! rows.

use counterflow::prelude::*;

/// y = x · wᵀ + bias on each rank alone.
#[schedule]
pub fn gemm_bias(x: Local<bf16>, w: Local<bf16>, bias: Vector<bf16>, y: Out<bf16>) {
    let tiles = y.tiles(tune(
        (128, 256),
        (256, 128),
        (128, 192),
        (128, 160),
        (128, 128),
        (64, 128),
    ));

    #[gemm(ping_pong = tune(false, true))]
    for t in tiles.grouped() {
        y[t] = dot(x[t], w[t]).bias(bias);
    }
}

/// y = all_gather(x) · wᵀ + bias, by pushes.
#[schedule]
pub fn ag_gemm_bias(x: Gathered<bf16>, w: Local<bf16>, bias: Vector<bf16>, y: Out<bf16>) {
    let chunks = x.chunks(rows = tune(128, 256));
    let tiles = y.tiles(tune((128, 256), (256, 128), (128, 192), (128, 128)));
    let arrived = counters(chunks);

    #[comm(ctas = tune(8, 4, 2))]
    for peer in ranks().before_me() {
        for c in chunks.of(me()) {
            x.on(peer)[c] = x[c];
            arrived.on(peer)[c].add(1);
        }
    }
    #[gemm(ping_pong = tune(false, true))]
    for shard in ranks().from_me() {
        for t in tiles.of(shard).grouped() {
            arrived[t.rows()].wait();
            y[t] = dot(x[t], w[t]).bias(bias);
        }
    }
}

/// y = all_gather(x) · wᵀ + bias, by copy engines.
#[schedule]
pub fn ag_gemm_pull_bias(x: Gathered<bf16>, w: Local<bf16>, bias: Vector<bf16>, y: Out<bf16>) {
    let chunks = x.chunks(rows = tune(1024, 512, 2048));
    let tiles = y.tiles(tune((128, 256), (256, 128), (128, 192), (128, 128)));
    let arrived = counters(chunks);

    #[copy_engine]
    for peer in ranks().after_me() {
        for c in chunks.of(peer) {
            x[c] = x.on(peer)[c];
            arrived[c].add(1);
        }
    }
    #[gemm(ping_pong = tune(false, true))]
    for shard in ranks().from_me() {
        for t in tiles.of(shard).grouped() {
            arrived[t.rows()].wait();
            y[t] = dot(x[t], w[t]).bias(bias);
        }
    }
}

/// y = all_gather(x) · wᵀ + bias, around a ring.
#[schedule]
pub fn ag_gemm_ring_bias(x: Gathered<bf16>, w: Local<bf16>, bias: Vector<bf16>, y: Out<bf16>) {
    let chunks = x.chunks(rows = tune(128, 256));
    let tiles = y.tiles(tune((128, 256), (256, 128), (128, 192), (128, 128)));
    let arrived = counters(chunks);
    let next = (me() + 1) % world();

    #[comm(ctas = tune(8, 4, 2))]
    for shard in ring(1).but_last(1) {
        for c in chunks.of(shard) {
            arrived[c].wait();
            x.on(next)[c] = x[c];
            arrived.on(next)[c].add(1);
        }
    }
    #[gemm(ping_pong = tune(false, true))]
    for shard in ring(1) {
        for t in tiles.of(shard).grouped() {
            arrived[t.rows()].wait();
            y[t] = dot(x[t], w[t]).bias(bias);
        }
    }
}

/// y = all_gather(x) · wᵀ + bias, around two rings.
#[schedule]
pub fn ag_gemm_double_ring_bias(
    x: Gathered<bf16>,
    w: Local<bf16>,
    bias: Vector<bf16>,
    y: Out<bf16>,
) {
    let chunks = x.chunks(rows = tune(128, 256));
    let tiles = y.tiles(tune((128, 256), (256, 128), (128, 192), (128, 128)));
    let arrived = counters(chunks);
    let next = (me() + 1) % world();
    let before = (me() - 1) % world();

    #[comm(ctas = tune(8, 4, 2))]
    for step in ranks() {
        if step < world() / 2 {
            for c in chunks.of((me() - step) % world()) {
                arrived[c].wait();
                x.on(next)[c] = x[c];
                arrived.on(next)[c].add(1);
            }
        }
        if step < (world() - 1) / 2 {
            for c in chunks.of((me() + step) % world()) {
                arrived[c].wait();
                x.on(before)[c] = x[c];
                arrived.on(before)[c].add(1);
            }
        }
    }
    #[gemm(ping_pong = tune(false, true))]
    for shard in ranks().by(from_both_sides) {
        for t in tiles.of(shard).grouped() {
            arrived[t.rows()].wait();
            y[t] = dot(x[t], w[t]).bias(bias);
        }
    }
}

/// Mine, then by turns from before me and after me: as they arrive.
fn from_both_sides(me: u32, step: u32, world: u32) -> u32 {
    let away = step.div_ceil(2);
    match step % 2 {
        1 => (me + world - away) % world,
        _ => (me + away) % world,
    }
}

/// y = reduce_scatter(x · wᵀ) + bias: partial tiles go straight to their owner, which adds them in the order of ranks.
#[schedule]
pub fn gemm_rs_bias(x: Local<bf16>, w: Local<bf16>, bias: Vector<bf16>, y: ReduceScattered<bf16>) {
    let tiles = y.tiles(tune((128, 256), (128, 160), (128, 128)));
    let partial = symmetric::<bf16>(y, slots = world());
    let landed = counters(world(), tiles);

    #[gemm]
    for owner in ranks().after_me() {
        for t in tiles.of(owner).grouped() {
            partial.on(owner)[me()][t] = dot(x[t], w[t]);
            landed.on(owner)[me()][t].add(1);
        }
    }
    #[gemm]
    for t in tiles.of(me()).grouped() {
        y[t] = (dot(x[t], w[t]) + partial[others()][t].wait(landed).sum()).bias(bias);
    }
}

/// y = reduce_scatter(g) + bias.
#[schedule]
pub fn reduce_scatter_bias(g: Local<bf16>, bias: Vector<bf16>, y: ReduceScattered<bf16>) {
    let tiles = y.tiles(tune((128, 128), (128, 64), (128, 256)));
    let partial = symmetric::<bf16>(y, slots = world());
    let landed = counters(world(), tiles);

    #[comm(ctas = tune(32, 64, 16, 128))]
    {
        for owner in ranks().after_me() {
            for t in tiles.of(owner) {
                let part = g[t]; // a tile that is stored, not a copy of rows
                partial.on(owner)[me()][t] = part;
                landed.on(owner)[me()][t].add(1);
            }
        }
        for t in tiles.of(me()) {
            y[t] = (g[t] + partial[others()][t].wait(landed).sum()).bias(bias);
        }
    }
}
