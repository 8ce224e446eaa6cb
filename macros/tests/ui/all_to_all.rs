use counterflow::prelude::*;

#[schedule]
fn exchange(x: Local<bf16>, w: Local<bf16>, y: AllToAll<bf16>) {
    let tiles = y.tiles((128, 256));
    #[gemm]
    for owner in ranks() {
        for t in tiles.of(owner) {
            y.on(owner)[t] = dot(x[t], w[t]);
            y.on(owner)[others()][t] = dot(x[t], w[t]);
            y.on(owner)[t][me()] = dot(x[t], w[t]);
            y.on(owner)[me()][t] += dot(x[t], w[t]);
        }
    }
}

#[schedule]
fn nothing(x: Local<bf16>, w: Local<bf16>, y: Out<bf16>, z: AllToAll<bf16>) {
    let tiles = y.tiles((128, 256));
    #[gemm]
    for t in tiles {
        y[t] = dot(x[t], w[t]);
    }
}

fn main() {}
