use counterflow::prelude::*;

fn backwards(me: u32, step: u32) -> u32 {
    me - step
}

#[schedule]
fn gemm(x: Local<bf16>, w: Local<bf16>, y: Out<bf16>) {
    let tiles = y.tiles((128, 256));
    #[gemm]
    for r in ranks().by(backwards) {
        for t in tiles.of(r) {
            y[t] = dot(x[t], w[t]);
        }
    }
}

fn main() {}
