use counterflow::prelude::*;

#[schedule]
fn gemm(x: Local<bf16>, w: Local<bf16>, y: Out<bf16>) {
    let tiles = y.tiles((128, 256));
    #[gemm]
    for r in ranks() {
        #[spare_warps]
        for t in tiles.of(r) {
            y[t] = dot(x[t], w[t]);
        }
    }
}

fn main() {}
