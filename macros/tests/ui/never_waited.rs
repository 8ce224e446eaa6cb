use counterflow::prelude::*;

#[schedule]
fn gemm(x: Local<bf16>, w: Local<bf16>, y: Out<bf16>) {
    let tiles = y.tiles((128, 256));
    let done = counters(tiles);
    #[gemm]
    for t in tiles {
        y[t] = dot(x[t], w[t]);
        done.on(0)[t].add(1);
    }
}

fn main() {}
