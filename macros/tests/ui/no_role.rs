use counterflow::prelude::*;

#[schedule]
fn gemm(x: Local<bf16>, w: Local<bf16>, y: Out<bf16>) {
    let _tiles = y.tiles((128, 256));
}

fn main() {}
