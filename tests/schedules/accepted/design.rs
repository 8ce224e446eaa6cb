//! The two functions of DESIGN §1, as written there.
use counterflow::prelude::*;

/// y = all_gather(x) · wᵀ: push my rows to my peers while the tensor cores start on the rows already here.
#[schedule]
pub fn ag_gemm(x: Gathered<bf16>, w: Local<bf16>, y: Out<bf16>) {
    let chunks = x.chunks(rows = tune(128, 256)); // what moves
    let tiles = y.tiles(tune((128, 256), (256, 128))); // what is computed
    let arrived = counters(chunks); // one cell a chunk, on every rank

    #[comm(ctas = tune(2, 4, 8))]
    for peer in ranks().before_me() {
        // me-1 first: my rows are the next it wants
        for c in chunks.of(me()) {
            x.on(peer)[c] = x[c];
            arrived.on(peer)[c].add(1); // after the data, at system scope
        }
    }
    #[gemm(k = 64, cluster = (2, 1))]
    for shard in ranks().from_me() {
        // mine, then in the order they arrive
        for t in tiles.of(shard).grouped() {
            arrived[t.rows()].wait(); // the chunks this tile reads; mine count as here
            y[t] = dot(x[t], w[t]);
        }
    }
}

/// y = reduce_scatter(x · wᵀ): partial tiles go straight to their owner, who adds them to its own in rank order.
#[schedule]
pub fn gemm_rs(x: Local<bf16>, w: Local<bf16>, y: ReduceScattered<bf16>) {
    let tiles = y.tiles(tune((128, 256), (256, 128)));
    let partial = symmetric::<bf16>(y, slots = world());
    let landed = counters(world(), tiles); // one writer a cell

    #[gemm(k = 64)]
    for owner in ranks().after_me() {
        // others' rows first: each rank writes another owner
        for t in tiles.of(owner) {
            partial.on(owner)[me()][t] = dot(x[t], w[t]);
            landed.on(owner)[me()][t].add(1);
        }
    }
    #[gemm(k = 64)]
    for t in tiles.of(me()) {
        // mine last; same CTAs, so no extra pass and no comm CTAs
        y[t] = dot(x[t], w[t]) + partial[others()][t].wait(landed).sum(); // f32, fixed order: same bits every run
    }
}

pub fn main() {
    ag_gemm();
    gemm_rs();
}
