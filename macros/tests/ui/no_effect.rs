use counterflow::prelude::*;

#[schedule]
fn gemm(x: Local<bf16>, w: Local<bf16>, y: Out<bf16>) {
    let tiles = y.tiles((128, 256));
    let done = counters(tiles);
    #[gemm]
    for t in tiles {
        dot(x[t], w[t]);
        x[t];
        y[t].gelu();
        y[t].add(1);
        done[t].wait().add(1);
        done.on(me());
        done[t];
        y[t] = dot(x[t], w[t]);
        done[t].add(1);
    }
    #[gemm]
    for t in tiles {}
}

fn main() {}
