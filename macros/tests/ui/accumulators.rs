use counterflow::prelude::*;

#[schedule]
fn gemm(x: Local<bf16>, w: Local<bf16>, y: Out<bf16>) {
    let tiles = y.tiles((128, 256));
    #[gemm]
    for t in tiles {
        let product = dot(x[t], w[t]);
        product += dot(x[t], w[t]);
        let acc = zero();
        acc += dot(x[t], w[t]);
        let mut sum = zero();
        sum += product;
        sum += dot(x[t], w[t]) + 1.0;
        product = dot(x[t], w[t]);
        let mut other = dot(x[t], w[t]);
        y[t] = zero() + sum + acc + product + other;
    }
}

fn main() {}
