use counterflow::prelude::*;

#[schedule]
fn gemm(x: Local<bf16>, w: Local<bf16>, g: Gathered<bf16>, y: Out<bf16>) {
    let tiles = y.tiles((128, 256));
    let parts = symmetric::<f32>(y, slots = world());
    #[gemm]
    for t in tiles {
        x[t] = dot(g[t], w[t]);
        g[t] += dot(x[t], w[t]);
        y.on(0)[t] = dot(x[t], w[t]);
        y[me()][t] = dot(x[t], w[t]);
        y[t.rows()] = dot(x[t], w[t]);
        y[t.columns()] = dot(x[t], w[t]);
        parts[t] = dot(x[t], w[t]);
        parts[others()][t] = dot(x[t], w[t]);
        parts[t][me()] = dot(x[t], w[t]);
        parts[me()][t].on(0) = dot(x[t], w[t]);
        y[t] = parts[everyone()][t];
        y[t] = dot(parts[others()][t], w[t]);
        y[t] = parts.everywhere()[0][t].gelu();
    }
}

fn main() {}
