//! Gathers of a result by other means than `gemm_ag`'s, which stores every tile on all ranks.
#![allow(dead_code, reason = "each test binary uses some of it")]

use counterflow::Program;
use counterflow::prelude::*;

/// CTAs that move data send my rows, in larger chunks than tiles.
#[schedule]
pub fn gathered_by_comm(x: Local<bf16>, w: Local<bf16>, y: Gathered<bf16>) {
    let tiles = y.tiles(tune((128, 128), (128, 256)));
    let chunks = y.chunks(rows = 256);
    let ready = counters(chunks);
    let arrived = counters(chunks);
    #[gemm]
    for t in tiles.of(me()) {
        y[t] = dot(x[t], w[t]).silu();
        ready[t.rows()].add(1);
    }
    #[comm(ctas = 4)]
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

/// A copy engine sends them.
#[schedule]
pub fn gathered_by_copy_engine(x: Local<bf16>, w: Local<bf16>, y: Gathered<bf16>) {
    let tiles = y.tiles(tune((128, 128), (128, 256)));
    let chunks = y.chunks(rows = 256);
    let ready = counters(chunks);
    let arrived = counters(chunks);
    #[gemm]
    for t in tiles.of(me()) {
        y[t] = dot(x[t], w[t]);
        ready[t.rows()].add(1);
    }
    #[copy_engine]
    for c in chunks.of(me()) {
        ready[c].wait();
        for peer in ranks().after_me() {
            y.on(peer)[c] = y[c];
            arrived.on(peer)[c].add(1);
        }
    }
    #[spare_warps]
    for owner in ranks().after_me() {
        for c in chunks.of(owner) {
            arrived[c].wait();
        }
    }
}

/// They go around a ring.
#[schedule]
pub fn gathered_by_ring(x: Local<bf16>, w: Local<bf16>, y: Gathered<bf16>) {
    let tiles = y.tiles(tune((128, 128), (128, 256)));
    let chunks = y.chunks(rows = 256);
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

/// The next layer reads all of it, row block by row block, in the same launch.
#[schedule]
pub fn gathered_and_used(
    x: Local<bf16>,
    w: Local<bf16>,
    v: Local<bf16>,
    y: Gathered<bf16>,
    z: Out<bf16>,
) {
    let tiles = y.tiles(tune((128, 128), (128, 256)));
    let last = z.tiles(tiles);
    let row_blocks = y.chunks(rows = 128);
    let arrived = counters(row_blocks);
    #[gemm]
    for t in tiles.of(me()).grouped() {
        let tile = dot(x[t], w[t]);
        y[t] = tile;
        arrived[t.rows()].add(1);
        for peer in ranks().after_me() {
            y.on(peer)[t] = tile;
            arrived.on(peer)[t.rows()].add(1);
        }
    }
    #[gemm]
    for owner in ranks().from_me() {
        for t in last.of(owner) {
            arrived[t.rows()].wait();
            z[t] = dot(y[t], v[t]);
        }
    }
}

/// A schedule and the worlds it is run in.
pub type Gatherer = (fn() -> Program, &'static [u32]);

pub const ALL: [Gatherer; 4] = [
    (gathered_by_comm, &[1, 2, 3, 4, 5, 8]),
    (gathered_by_copy_engine, &[1, 2, 3, 4]),
    (gathered_by_ring, &[1, 2, 3, 4, 5, 8]),
    (gathered_and_used, &[1, 2, 3, 4, 5, 8]),
];
