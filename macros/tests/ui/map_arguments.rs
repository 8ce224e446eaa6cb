use counterflow::prelude::*;

#[epilogue]
fn leaky(x: f32, slope: f32) -> f32 {
    if x > 0.0 { x } else { slope * x }
}

fn plain(x: f32) -> f32 {
    x
}

#[schedule]
fn gemm(x: Local<bf16>, w: Local<bf16>, y: Out<bf16>) {
    let tiles = y.tiles((128, 256));
    #[gemm]
    for t in tiles {
        y[t] = dot(x[t], w[t]).map(leaky);
        y[t] = dot(x[t], w[t]).map(plain);
    }
}

fn main() {}
