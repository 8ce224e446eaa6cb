use counterflow::prelude::*;

#[schedule]
fn gemm(x: Local<bf16>, w: Local<bf16>, y: Out<bf16>) {
    let tiles = y.tiles((128, 256));
    let done = counters(tiles);
    y[0] = dot(x[0], w[0]);
    done[0].add(1);
    let product = dot(x[0], w[0]);
    let order = ranks().from_me();
    let depth = tune(64, 128);
    let mine = tiles.of(me());
    if me() == 0 {
        done[0].add(1);
    }
}

fn main() {}
