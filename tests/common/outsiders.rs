//! Ten schedules as readers of this field's papers and manuals would write them first, from the macro's docs alone.
#![allow(dead_code, reason = "each test binary uses some of it")]

use counterflow::Program;
use counterflow::prelude::*;

/// Two micro-batches: the second half of a rank's rows moves while the first half is multiplied.
#[schedule]
pub fn micro_batches(x: Gathered<bf16>, w: Local<bf16>, y: Out<bf16>) {
    let chunks = x.chunks(rows = 128);
    let tiles = y.tiles(tune((128, 128), (128, 256)));
    let arrived = counters(chunks);
    #[comm(ctas = 4)]
    {
        for peer in ranks().before_me() {
            for c in chunks.of(me()).first_half() {
                x.on(peer)[c] = x[c];
                arrived.on(peer)[c].add(1);
            }
        }
        for peer in ranks().before_me() {
            for c in chunks.of(me()).second_half() {
                x.on(peer)[c] = x[c];
                arrived.on(peer)[c].add(1);
            }
        }
    }
    #[gemm]
    {
        for shard in ranks().from_me() {
            for t in tiles.of(shard).first_half() {
                arrived[t.rows()].wait();
                y[t] = dot(x[t], w[t]);
            }
        }
        for shard in ranks().from_me() {
            for t in tiles.of(shard).second_half() {
                arrived[t.rows()].wait();
                y[t] = dot(x[t], w[t]);
            }
        }
    }
}

/// Mixture of experts by rank: even ranks multiply by one expert's weights, odd ones by another's.
#[schedule]
pub fn expert_by_parity(x: Local<bf16>, even: Local<bf16>, odd: Local<bf16>, y: Out<bf16>) {
    let tiles = y.tiles(tune((128, 128), (128, 256)));
    #[gemm]
    {
        if me() % 2 == 0 {
            for t in tiles.grouped(8) {
                y[t] = dot(x[t], even[t]);
            }
        } else {
            for t in tiles.grouped(8) {
                y[t] = dot(x[t], odd[t]);
            }
        }
    }
}

/// A low-rank adapter: y = x·wᵀ + (x·aᵀ)·bᵀ, in one item.
#[schedule]
pub fn adapter(x: Local<bf16>, w: Local<bf16>, a: Local<bf16>, b: Local<bf16>, y: Out<bf16>) {
    let tiles = y.tiles(tune((128, 128), (128, 256)));
    let low = symmetric::<bf16>();
    let low_tiles = low.tiles(tiles);
    let rows = low.chunks(rows = 128);
    let ready = counters(rows);
    #[gemm]
    {
        for t in low_tiles {
            low[t] = dot(x[t], a[t]);
            ready[t.rows()].add(1);
        }
        for t in tiles {
            ready[t.rows()].wait();
            y[t] = dot(x[t], w[t]) + dot(low[t], b[t]);
        }
    }
}

/// The same with the adapter's product stored first: its tile is added to the other product.
#[schedule]
pub fn adapter_in_two_loops(
    x: Local<bf16>,
    w: Local<bf16>,
    a: Local<bf16>,
    b: Local<bf16>,
    y: Out<bf16>,
) {
    let tiles = y.tiles(tune((128, 128), (128, 256)));
    let low = symmetric::<bf16>();
    let low_tiles = low.tiles(tiles);
    let rows = low.chunks(rows = 128);
    let ready = counters(rows);
    let added = symmetric::<bf16>(y, slots = 1);
    let there = counters(tiles);
    #[gemm]
    {
        for t in low_tiles {
            low[t] = dot(x[t], a[t]);
            ready[t.rows()].add(1);
        }
        for t in tiles {
            ready[t.rows()].wait();
            added[0][t] = dot(low[t], b[t]);
            there[t].add(1);
        }
        for t in tiles {
            there[t].wait();
            y[t] = dot(x[t], w[t]) + added[0][t];
        }
    }
}

/// All-reduce with owners tile by tile instead of shard by shard: every rank sums each world-th tile of a shard.
#[schedule]
pub fn owners_of_tiles(x: Local<bf16>, w: Local<bf16>, y: AllReduced<bf16>) {
    let tiles = y.tiles(tune((128, 128), (128, 256)));
    let partial = symmetric::<bf16>(y.whole(), slots = world());
    let landed = counters(world(), tiles);
    let done = counters(tiles);
    #[gemm]
    {
        for owner in ranks().after_me() {
            for shard in ranks() {
                for t in tiles.of(shard).skip(owner).step_by(world()) {
                    partial.on(owner)[me()][t] = dot(x[t], w[t]);
                    landed.on(owner)[me()][t].add(1);
                }
            }
        }
        for shard in ranks() {
            for t in tiles.of(shard).skip(me()).step_by(world()) {
                let sum = dot(x[t], w[t]) + partial[others()][t].wait(landed).sum();
                y[t] = sum;
                for peer in ranks().after_me() {
                    y.on(peer)[t] = sum;
                    done.on(peer)[t].add(1);
                }
            }
        }
    }
    #[spare_warps]
    for owner in ranks().after_me() {
        for shard in ranks() {
            for t in tiles.of(shard).skip(owner).step_by(world()) {
                done[t].wait();
            }
        }
    }
}

/// Recursive doubling: in each step partners swap all that they have. Worlds of two and four.
#[schedule]
pub fn doubling(x: Gathered<bf16>, w: Local<bf16>, y: Out<bf16>) {
    let chunks = x.chunks(rows = 128);
    let tiles = y.tiles(tune((128, 128), (128, 256)));
    let arrived = counters(chunks);
    #[comm(ctas = 4)]
    {
        for c in chunks.of(me()) {
            x.on(me() ^ 1)[c] = x[c];
            arrived.on(me() ^ 1)[c].add(1);
        }
        if world() > 2 {
            for c in chunks.of(me()) {
                x.on(me() ^ 2)[c] = x[c];
                arrived.on(me() ^ 2)[c].add(1);
            }
            for c in chunks.of(me() ^ 1) {
                arrived[c].wait();
                x.on(me() ^ 2)[c] = x[c];
                arrived.on(me() ^ 2)[c].add(1);
            }
        }
    }
    #[gemm]
    for shard in ranks().by(|me, step, _world| me ^ step) {
        for t in tiles.of(shard) {
            arrived[t.rows()].wait();
            y[t] = dot(x[t], w[t]);
        }
    }
}

/// Dispatch of a mixture of experts at fixed capacity: rows go to their owners, and nothing is multiplied.
#[schedule]
pub fn dispatch(x: Local<bf16>, y: AllToAll<bf16>) {
    let chunks = y.chunks(rows = 128);
    let landed = counters(world(), chunks);
    #[comm(ctas = 8)]
    {
        for owner in ranks().after_me() {
            for c in chunks.of(owner) {
                y.on(owner)[me()][c] = x[c];
                landed.on(owner)[me()][c].add(1);
            }
        }
        for c in chunks.of(me()) {
            y[me()][c] = x[c];
        }
        for c in chunks.of(me()) {
            landed[others()][c].wait();
        }
    }
}

/// A gated attention output: the product, times a stored gate, plus the residual, gathered row by row.
#[schedule]
pub fn gated_output(
    x: Gathered<bf16>,
    w: Local<bf16>,
    gate: Local<bf16>,
    r: Local<bf16>,
    y: Out<bf16>,
) {
    let chunks = x.chunks(rows = 128);
    let tiles = y.tiles(tune((128, 128), (128, 256)));
    let arrived = counters(chunks);
    #[comm(ctas = 4)]
    for peer in ranks().before_me() {
        for c in chunks.of(me()) {
            x.on(peer)[c] = x[c];
            arrived.on(peer)[c].add(1);
        }
    }
    #[gemm]
    for shard in ranks().from_me() {
        for t in tiles.of(shard) {
            arrived[t.rows()].wait();
            y[t] = dot(x[t], w[t]).mul(gate[t].sigmoid()).residual(r[t]);
        }
    }
}

/// A stage of a pipeline: what a rank computes is the next one's input.
#[schedule]
pub fn pipeline_stage(x: Local<bf16>, w: Local<bf16>, v: Local<bf16>, y: Out<bf16>) {
    let tiles = y.tiles(tune((128, 128), (128, 256)));
    let came = symmetric::<bf16>();
    let came_tiles = came.tiles(tiles);
    let rows = came.chunks(rows = 128);
    let arrived = counters(rows);
    let next = (me() + 1) % world();
    #[gemm]
    {
        for t in came_tiles {
            came.on(next)[t] = dot(x[t], w[t]).gelu();
            arrived.on(next)[t.rows()].add(1);
        }
        for t in tiles {
            arrived[t.rows()].wait();
            y[t] = dot(came[t], v[t]);
        }
    }
}

/// Two copy paths at once: every second chunk by copy engines, the others by CTAs.
#[schedule]
pub fn two_paths(x: Gathered<bf16>, w: Local<bf16>, y: Out<bf16>) {
    let chunks = x.chunks(rows = 128);
    let tiles = y.tiles(tune((128, 128), (128, 256)));
    let arrived = counters(chunks);
    #[copy_engine]
    for peer in ranks().before_me() {
        for c in chunks.of(me()).step_by(2) {
            x.on(peer)[c] = x[c];
            arrived.on(peer)[c].add(1);
        }
    }
    #[comm(ctas = 2)]
    for peer in ranks().before_me() {
        for c in chunks.of(me()).skip(1).step_by(2) {
            x.on(peer)[c] = x[c];
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

/// A schedule, and the worlds that it is legal in.
type Outsider = (fn() -> Program, &'static [u32]);

/// The worlds that each is for.
pub const ALL: [Outsider; 10] = [
    (micro_batches, &[1, 2, 3, 4, 5, 6, 7, 8]),
    (expert_by_parity, &[1, 2, 3, 4, 5, 6, 7, 8]),
    (adapter, &[1, 2, 3, 4, 5, 6, 7, 8]),
    (adapter_in_two_loops, &[1, 2, 3, 4, 5, 6, 7, 8]),
    (owners_of_tiles, &[1, 2, 3, 4, 5, 6, 7, 8]),
    (doubling, &[2, 4]),
    (dispatch, &[1, 2, 3, 4, 5, 6, 7, 8]),
    (gated_output, &[1, 2, 3, 4, 5, 6, 7, 8]),
    (pipeline_stage, &[2, 3, 4, 5, 6, 7, 8]),
    (two_paths, &[1, 2, 3, 4, 5, 6, 7, 8]),
];
