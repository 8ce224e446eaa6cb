use counterflow::prelude::*;

#[schedule]
fn wgrad(dy: Local<bf16>, x: Local<bf16>, z: Local<f32>, grad: Accumulated<f32>) {
    let tiles = grad.tiles((128, 256));
    #[gemm]
    for t in tiles {
        grad[t] = dot(dy[t], x[t]);
        grad[t] = z[t];
        grad[t] += dot(dy[t], x[t]).residual(grad[t]);
        grad[t] += dot(grad[t], x[t]);
        grad.on(0)[t] += dot(dy[t], x[t]);
    }
}

#[schedule]
fn nothing(x: Local<bf16>, w: Local<bf16>, y: Out<bf16>, grad: Accumulated<f32>) {
    let tiles = y.tiles((128, 256));
    #[gemm]
    for t in tiles {
        y[t] = dot(x[t], w[t]);
    }
}

fn main() {}
