use crate::prelude::*;

/// y = x · wᵀ on each rank by itself, K divided into parts that different CTAs multiply.
///
/// All parts but the last are stored in f32 and added to the last in a fixed order, so the same inputs give the same bits
/// in every run. Costs `parts - 1` slots of scratch, each of four bytes an element of y.
///
/// It is for fewer tiles than the GPU has SMs and a deep K. Try [`gemm`](super::gemm) first, which may share the steps of
/// a tile within a cluster: on an H200 its best variant was faster for all of eleven such products.
#[schedule]
pub fn gemm_split(x: Local<bf16>, w: Local<bf16>, y: Out<bf16>) {
    let tiles = y.tiles(tune((128, 256), (128, 192), (128, 128)));
    let parts = splits(tune(3, 2, 4));
    let partial = symmetric::<f32>(y, slots = parts.before_last());
    let done = counters(parts.before_last(), tiles);

    #[gemm]
    for s in parts.before_last() {
        for t in tiles.grouped() {
            partial[s][t] = dot(x[t][s], w[t][s]);
            done[s][t].add(1);
        }
    }
    #[gemm]
    for s in parts.last() {
        for t in tiles.grouped() {
            y[t] = dot(x[t][s], w[t][s]) + partial[parts.before_last()][t].wait(done).sum();
        }
    }
}
