use crate::prelude::*;

/// y = reduce_scatter(gelu(all_gather(x) · upᵀ) · downᵀ): an MLP in one launch.
///
/// Use it for a column-parallel layer and the row-parallel one behind it, where nothing else reads what is between them: rows
/// move while the tensor cores work on others, and the second layer starts on the rows whose columns are all there.
#[schedule]
pub fn mlp(x: Gathered<bf16>, up: Local<bf16>, down: Local<bf16>, y: Scattered<bf16>) {
    let pieces = x.pieces(rows = tune(128, 256));
    let arrived = counters(pieces);
    let tiles = y.tiles(tune((128, 256), (128, 160), (128, 128)));
    let partial = symmetric::<bf16>(y, slots = world());
    let landed = counters(world(), tiles);
    let hidden = symmetric::<bf16>();
    let hidden_tiles = hidden.tiles(tiles);
    let rows = hidden.pieces(rows = 128);
    let ready = counters(rows);

    #[comm(ctas = tune(8, 4, 2))]
    for peer in ranks().before_me() {
        for p in pieces.of(me()) {
            x.on(peer)[p] = x[p];
            arrived.on(peer)[p].add(1);
        }
    }
    #[gemm]
    for chunk in ranks().from_me() {
        for t in hidden_tiles.of(chunk).grouped() {
            arrived[t.rows()].wait();
            hidden[t] = dot(x[t], up[t]).gelu();
            ready[t.rows()].add(1);
        }
    }
    #[gemm]
    for owner in ranks().after_me() {
        for t in tiles.of(owner).grouped() {
            ready[t.rows()].wait();
            partial.on(owner)[me()][t] = dot(hidden[t], down[t]);
            landed.on(owner)[me()][t].add(1);
        }
    }
    #[gemm]
    for t in tiles.of(me()).grouped() {
        ready[t.rows()].wait();
        y[t] = dot(hidden[t], down[t]) + partial[others()][t].wait(landed).sum();
    }
}
