use counterflow::prelude::*;

#[schedule]
fn gemm(x: Local<complex>, w: Local<bf16>, y: Out<bf16>) {
    let tiles = y.tiles((128, 256));
    #[gemm]
    for t in tiles {
        y[t] = dot(x[t], w[t]);
    }
}

fn main() {}
