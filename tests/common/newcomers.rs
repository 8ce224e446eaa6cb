//! Schedules as a reader of README and rustdoc alone would write them, each of another idea.
#![allow(dead_code, reason = "each test binary uses some of it")]

use counterflow::Program;
use counterflow::prelude::*;

/// All-gather in two hops, over pairs of ranks: my rows to my partner and to one rank of each other pair, which passes them on.
#[schedule]
pub fn over_pairs(x: Gathered<bf16>, w: Local<bf16>, y: Out<bf16>) {
    let chunks = x.chunks(rows = 128);
    let tiles = y.tiles(tune((128, 128), (128, 256)));
    let arrived = counters(chunks);
    let partner = me() ^ 1;
    #[comm(ctas = 4)]
    {
        for c in chunks.of(me()) {
            x.on(partner)[c] = x[c];
            arrived.on(partner)[c].add(1);
        }
        for peer in ranks().after_me() {
            if peer % 2 == me() % 2 {
                for c in chunks.of(me()) {
                    x.on(peer)[c] = x[c];
                    arrived.on(peer)[c].add(1);
                }
            }
        }
        for owner in ranks().after_me() {
            if owner % 2 == me() % 2 {
                for c in chunks.of(owner) {
                    arrived[c].wait();
                    x.on(partner)[c] = x[c];
                    arrived.on(partner)[c].add(1);
                }
            }
        }
    }
    #[gemm]
    for shard in ranks().from_me() {
        for t in tiles.of(shard).grouped() {
            arrived[t.rows()].wait();
            y[t] = dot(x[t], w[t]);
        }
    }
}

/// All rows go to rank 0, which passes them on to all others.
#[schedule]
pub fn by_way_of_the_root(x: Gathered<bf16>, w: Local<bf16>, y: Out<bf16>) {
    let chunks = x.chunks(rows = 128);
    let tiles = y.tiles(tune((128, 128), (128, 256)));
    let arrived = counters(chunks);
    #[comm(ctas = 4)]
    {
        if me() != 0 {
            for c in chunks.of(me()) {
                x.on(0)[c] = x[c];
                arrived.on(0)[c].add(1);
            }
        } else {
            for owner in ranks().from_me() {
                for peer in ranks().after_me() {
                    if peer != owner {
                        for c in chunks.of(owner) {
                            arrived[c].wait();
                            x.on(peer)[c] = x[c];
                            arrived.on(peer)[c].add(1);
                        }
                    }
                }
            }
        }
    }
    #[gemm]
    for shard in ranks().from_me() {
        for t in tiles.of(shard).grouped() {
            arrived[t.rows()].wait();
            y[t] = dot(x[t], w[t]);
        }
    }
}

/// Rows of even ranks are pushed by them, those of odd ones pulled by whoever needs them.
#[schedule]
pub fn pushed_or_pulled(x: Gathered<bf16>, w: Local<bf16>, y: Out<bf16>) {
    let chunks = x.chunks(rows = 128);
    let tiles = y.tiles(tune((128, 128), (128, 256)));
    let arrived = counters(chunks);
    #[comm(name = push, ctas = 2)]
    for peer in ranks().before_me() {
        if me() % 2 == 0 {
            for c in chunks.of(me()) {
                x.on(peer)[c] = x[c];
                arrived.on(peer)[c].add(1);
            }
        }
    }
    #[comm(name = pull, ctas = 2)]
    for owner in ranks().after_me() {
        if owner % 2 == 1 {
            for c in chunks.of(owner) {
                x[c] = x.on(owner)[c];
                arrived[c].add(1);
            }
        }
    }
    #[gemm]
    for shard in ranks().from_me() {
        for t in tiles.of(shard).grouped() {
            arrived[t.rows()].wait();
            y[t] = dot(x[t], w[t]);
        }
    }
}

/// Rows of x and columns of w are gathered, by a role each; a tile waits for its part of both.
#[schedule]
pub fn both_gathered(x: Gathered<bf16>, w: Gathered<bf16>, y: Out<bf16>) {
    let rows = x.chunks(rows = 128);
    let columns = w.chunks(rows = 128);
    let tiles = y.tiles(tune((128, 128), (128, 256)));
    let row_arrived = counters(rows);
    let column_arrived = counters(columns);
    #[comm(name = activations, ctas = 2)]
    for peer in ranks().before_me() {
        for p in rows.of(me()) {
            x.on(peer)[p] = x[p];
            row_arrived.on(peer)[p].add(1);
        }
    }
    #[comm(name = weights, ctas = 2)]
    for peer in ranks().before_me() {
        for p in columns.of(me()) {
            w.on(peer)[p] = w[p];
            column_arrived.on(peer)[p].add(1);
        }
    }
    #[gemm]
    for shard in ranks().from_me() {
        for t in tiles.of(shard).grouped() {
            row_arrived[t.rows()].wait();
            column_arrived[t.columns()].wait();
            y[t] = dot(x[t], w[t]);
        }
    }
}

/// Three experts with weights of their own, over rows of their own: tiles of the first are tall, those of the last are small.
#[schedule]
pub fn three_experts(
    a: Local<bf16>,
    wa: Local<bf16>,
    ya: Out<bf16>,
    b: Local<bf16>,
    wb: Local<bf16>,
    yb: Out<bf16>,
    c: Local<bf16>,
    wc: Local<bf16>,
    yc: Out<bf16>,
) {
    let first = ya.tiles(tune((256, 128), (128, 256)));
    let second = yb.tiles(tune((128, 256), (256, 128)));
    let third = yc.tiles(tune((128, 64), (128, 128)));
    #[gemm]
    {
        for t in first.grouped() {
            ya[t] = dot(a[t], wa[t]).gelu();
        }
        for t in second.grouped() {
            yb[t] = dot(b[t], wb[t]).gelu();
        }
        for t in third.grouped() {
            yc[t] = dot(c[t], wc[t]).gelu();
        }
    }
}

/// A gated MLP with a residual, on one rank's own rows: tall tiles for the two products of the first layer.
#[schedule]
pub fn gated_mlp_with_residual(
    x: Local<bf16>,
    gate: Local<bf16>,
    up: Local<bf16>,
    down: Local<bf16>,
    r: Local<bf16>,
    y: Out<bf16>,
) {
    let hidden = symmetric::<bf16>();
    let first = hidden.tiles(tune((256, 64), (128, 128)));
    let second = y.tiles(tune((128, 256), (256, 128)));
    let rows = hidden.chunks(rows = 128);
    let ready = counters(rows);
    #[gemm]
    {
        for t in first.grouped() {
            hidden[t] = dot(x[t], gate[t]).silu() * dot(x[t], up[t]);
            ready[t.rows()].add(1);
        }
        for t in second.grouped() {
            ready[t.rows()].wait();
            y[t] = dot(hidden[t], down[t]).residual(r[t]);
        }
    }
}

/// An all-reduce by a root: rank 0 adds up what all have, and gives all the sum.
#[schedule]
pub fn reduced_by_the_root(x: Local<bf16>, w: Local<bf16>, y: AllReduced<bf16>) {
    let tiles = y.tiles(tune((128, 128), (128, 256)));
    let partial = symmetric::<bf16>(y.whole(), slots = world());
    let landed = counters(world(), tiles);
    let done = counters(tiles);
    #[gemm]
    for shard in ranks() {
        for t in tiles.of(shard) {
            if me() == 0 {
                let sum = dot(x[t], w[t]) + partial[others()][t].wait(landed).sum();
                for peer in ranks() {
                    y.on(peer)[t] = sum;
                    done.on(peer)[t].add(1);
                }
            } else {
                partial.on(0)[me()][t] = dot(x[t], w[t]);
                landed.on(0)[me()][t].add(1);
            }
        }
    }
    #[spare_warps]
    for shard in ranks() {
        for t in tiles.of(shard) {
            done[t].wait();
        }
    }
}

/// A table of biases, a row for each row of y, is rank 0's: it sends them to all before they add them.
#[schedule]
pub fn biases_of_the_root(x: Local<bf16>, w: Local<bf16>, b: Local<bf16>, y: Out<bf16>) {
    let tiles = y.tiles(tune((128, 128), (128, 256)));
    let here = symmetric::<bf16>(b, slots = 1);
    let chunks = here.chunks(rows = 128);
    let arrived = counters(chunks);
    #[comm(ctas = 2)]
    {
        if me() == 0 {
            for peer in ranks() {
                for c in chunks {
                    here.on(peer)[0][c] = b[c];
                    arrived.on(peer)[c].add(1);
                }
            }
        }
    }
    #[gemm]
    for t in tiles.grouped() {
        arrived[t.rows()].wait();
        y[t] = dot(x[t], w[t]) + here[0][t];
    }
}

/// A mixture of experts there and back: rows go to their expert, are multiplied there, and the results go home.
#[schedule]
pub fn there_and_back(x: Local<bf16>, w: Local<bf16>, y: AllToAll<bf16>) {
    let came = symmetric::<bf16>(x.shard(), slots = world());
    let chunks = came.chunks(rows = 128);
    let tiles = y.tiles(tune((128, 128), (128, 256)));
    let arrived = counters(world(), chunks);
    let home = counters(world(), tiles);
    #[comm(ctas = 4)]
    for expert in ranks().from_me() {
        for c in chunks.of(expert) {
            came.on(expert)[me()][c] = x[c];
            arrived.on(expert)[me()][c].add(1);
        }
    }
    #[gemm]
    for from in ranks().from_me() {
        for t in tiles.of(me()) {
            arrived[from][t.rows()].wait();
            y.on(from)[me()][t] = dot(came[from][t], w[t]);
            home.on(from)[me()][t].add(1);
        }
    }
    #[spare_warps]
    for t in tiles.of(me()) {
        home[others()][t].wait();
    }
}

/// The first halves of a rank's rows go around to the right, the second ones to the left, by a role each.
#[schedule]
pub fn halves_both_ways(x: Gathered<bf16>, w: Local<bf16>, y: Out<bf16>) {
    let chunks = x.chunks(rows = 128);
    let tiles = y.tiles(tune((128, 128), (128, 256)));
    let arrived = counters(chunks);
    #[comm(name = right, ctas = 2)]
    for shard in ring(1).but_last(1) {
        for c in chunks.of(shard).first_half() {
            arrived[c].wait();
            x.on((me() + 1) % world())[c] = x[c];
            arrived.on((me() + 1) % world())[c].add(1);
        }
    }
    #[comm(name = left, ctas = 2)]
    for shard in ring(-1).but_last(1) {
        for c in chunks.of(shard).second_half() {
            arrived[c].wait();
            x.on((me() - 1) % world())[c] = x[c];
            arrived.on((me() - 1) % world())[c].add(1);
        }
    }
    #[gemm]
    for shard in ranks().from_me() {
        for t in tiles.of(shard).grouped() {
            arrived[t.rows()].wait();
            y[t] = dot(x[t], w[t]);
        }
    }
}

/// What a norm's weights do to a row's elements, after the residual.
#[epilogue]
fn scaled(x: f32, r: f32, g: f32) -> f32 {
    (x + r) * g.max(0.0)
}

/// Sequence parallelism: the product is reduced over the ranks, row block by row block, and each scales the rows that it has.
#[schedule]
pub fn scaled_by_owners(
    x: Local<bf16>,
    w: Local<bf16>,
    r: Local<bf16>,
    g: Local<bf16>,
    y: ReduceScattered<bf16>,
) {
    let tiles = y.tiles(tune((128, 128), (128, 256)));
    let partial = symmetric::<bf16>(y, slots = world());
    let landed = counters(world(), tiles);
    #[gemm]
    {
        for owner in ranks().after_me() {
            for t in tiles.of(owner) {
                partial.on(owner)[me()][t] = dot(x[t], w[t]);
                landed.on(owner)[me()][t].add(1);
            }
        }
        for t in tiles.of(me()) {
            let sum = dot(x[t], w[t]) + partial[others()][t].wait(landed).sum();
            y[t] = sum.map(scaled, r[t], g[t]);
        }
    }
}

/// Ulysses: each rank has some rows of all heads, and sends each other rank its heads' columns before the product.
#[schedule]
pub fn heads_for_rows(x: Local<bf16>, w: Gathered<bf16>, y: Out<bf16>) {
    let tiles = y.tiles(tune((128, 128), (128, 256)));
    let q = symmetric::<bf16>(x, slots = world());
    let columns = q.panels(cols = 64);
    let arrived = counters(world(), columns);
    #[comm(ctas = 4)]
    for peer in ranks().from_me() {
        for p in columns.of(peer) {
            q.on(peer)[me()][p] = x[p];
            arrived.on(peer)[me()][p].add(1);
        }
    }
    #[gemm]
    for from in ranks() {
        for t in tiles {
            arrived[from][t.columns()].wait();
            y[t] = dot(q[from][t], w[t]);
        }
    }
}

/// A schedule, and the worlds that it is legal in.
type Newcomer = (fn() -> Program, &'static [u32]);

/// The worlds that each is for.
pub const ALL: [Newcomer; 12] = [
    (over_pairs, &[2, 4, 6, 8]),
    (by_way_of_the_root, &[1, 2, 3, 4, 5, 6, 7, 8]),
    (pushed_or_pulled, &[1, 2, 3, 4, 5, 6, 7, 8]),
    (both_gathered, &[1, 2, 3, 4, 5, 6, 7, 8]),
    (three_experts, &[1, 2, 3, 4, 5, 6, 7, 8]),
    (gated_mlp_with_residual, &[1, 2, 3, 4, 5, 6, 7, 8]),
    (reduced_by_the_root, &[1, 2, 3, 4, 5, 6, 7, 8]),
    (biases_of_the_root, &[1, 2, 3, 4, 5, 6, 7, 8]),
    (there_and_back, &[1, 2, 3, 4, 5, 6, 7, 8]),
    (halves_both_ways, &[1, 2, 3, 4, 5, 6, 7, 8]),
    (scaled_by_owners, &[1, 2, 3, 4, 5, 6, 7, 8]),
    (heads_for_rows, &[1, 2, 3, 4, 5, 6, 7, 8]),
];

/// Those that are refused, each with what to change.
pub const REFUSED: [&str; 3] = ["both_gathered", "there_and_back", "heads_for_rows"];
