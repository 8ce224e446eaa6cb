use counterflow::prelude::*;

#[schedule]
fn gemm(x: Local<bf16>, w: Local<bf16>, y: Out<bf16>) {
    let tiles = y.tiles((128, 256));
    let arrived = counters(tiles);
    #[gemm]
    for t in tiles {
        arrived[t].wait();
        y[t] = dot(x[t], w[t]);
    }
}

fn main() {}
