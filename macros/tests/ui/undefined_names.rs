use counterflow::prelude::*;

#[schedule]
fn gemm(x: Local<bf16>, w: Local<bf16>, y: Out<bf16>) {
    let tiles = y.tiles((128, 256));
    let seen = counters(tils);
    #[gemm]
    for t in tile {
        y[t] = dot(xs[t], w[t]);
        z[t] = dot(x[u], w[t]);
        arived[t].add(1);
    }
    #[spare_warps]
    for t in tiles.of(peer) {
        y[t] = dot(x[t], w[t]).gelu() + scale;
    }
}

fn main() {}
