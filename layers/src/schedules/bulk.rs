//! Products beside communication that they do not need.

use counterflow::prelude::*;

/// grad += dyᵀ · x beside an independent r = reduce_scatter(g): no counter connects them.
///
/// Use it for the weight's gradient of a column-parallel layer, with the gradient of its input as `g`. Lower it in layout tn.
/// Rows of `g` are over all ranks, those of `r` one rank's; both sums are in f32 and in a fixed order.
#[schedule]
pub fn wgrad_rs(
    dy: Local<bf16>,
    x: Local<bf16>,
    grad: Accumulated<f32>,
    g: Local<bf16>,
    r: ReduceScattered<bf16>,
) {
    let chunks = r.chunks(rows = tune(128, 256));
    let tiles = grad.tiles(tune((128, 256), (128, 160), (128, 128)));
    let sums = r.tiles(tiles);
    let partial = symmetric::<bf16>(r, slots = world());
    let landed = counters(world(), chunks);

    #[comm(ctas = tune(8, 16, 4))]
    {
        for owner in ranks().after_me() {
            for c in chunks.of(owner) {
                partial.on(owner)[me()][c] = g[c];
                landed.on(owner)[me()][c].add(1);
            }
        }
        for t in sums.of(me()) {
            landed[others()][t.rows()].wait();
            r[t] = g[t] + partial[others()][t].sum();
        }
    }
    #[gemm]
    for t in tiles.grouped() {
        grad[t] += dot(dy[t], x[t]);
    }
}

/// y = reduce_scatter(x · w) beside an independent gather of z: no counter connects them.
///
/// Use it for the gradient of a column-parallel layer's input, in layout nn, with what its weight's gradient multiplies as `z`: all rows
/// of `z` are there when the kernel ends. Sums are in f32, in the order of ranks.
#[schedule]
pub fn gemm_rs_beside_gather(
    x: Local<bf16>,
    w: Local<bf16>,
    y: ReduceScattered<bf16>,
    z: Gathered<bf16>,
) {
    let chunks = z.chunks(rows = tune(128, 256));
    let tiles = y.tiles(tune((128, 256), (128, 160), (128, 128)));
    let partial = symmetric::<bf16>(y, slots = world());
    let landed = counters(world(), tiles);
    let arrived = counters(chunks);

    #[spare_warps]
    {
        for peer in ranks().before_me() {
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
    for owner in ranks().after_me() {
        for t in tiles.of(owner).grouped() {
            partial.on(owner)[me()][t] = dot(x[t], w[t]);
            landed.on(owner)[me()][t].add(1);
        }
    }
    #[gemm]
    for t in tiles.of(me()).grouped() {
        y[t] = dot(x[t], w[t]) + partial[others()][t].wait(landed).sum();
    }
}
