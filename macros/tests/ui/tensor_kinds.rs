use counterflow::prelude::*;

#[schedule]
fn gemm(x: Locl<bf16>, w: Matrix<bf16>, b: &[bf16], v: Local, y: Out<bf16, bf16>) {
    let tiles = y.tiles((128, 256));
    #[gemm]
    for t in tiles {
        y[t] = dot(x[t], w[t]);
    }
}

fn main() {}
