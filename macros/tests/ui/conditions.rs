use counterflow::prelude::*;

#[schedule]
fn gemm(x: Local<bf16>, w: Local<bf16>, y: Out<bf16>) {
    let tiles = y.tiles((128, 256));
    #[gemm]
    for t in tiles {
        if true {
            y[t] = dot(x[t], w[t]);
        }
        if me() {
            y[t] = dot(x[t], w[t]);
        } else if t == 0 {
            y[t] = dot(x[t], w[t]);
        }
        if me() == 0 && x[t] > 0.0 {
            y[t] = dot(x[t], w[t]);
        }
        if let Some(r) = me() {
            y[t] = dot(x[t], w[t]);
        }
    }
}

fn main() {}
