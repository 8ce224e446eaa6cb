use counterflow::prelude::*;

#[schedule]
fn gemm(x: Local<bf16>, w: Local<bf16>, y: Out<bf16>) {
    let tiles = y.tiles((128, 256));
    let tiles = y.tiles((128, 128));
    let x = (me() + 1) % world();
    #[gemm]
    for t in tiles {
        for t in ranks() {
            y.on(t)[t] = dot(x[t], w[t]);
        }
    }
}

fn main() {}
