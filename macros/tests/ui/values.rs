use counterflow::prelude::*;

#[schedule]
fn gemm(x: Local<bf16>, w: Local<bf16>, y: Out<bf16>) {
    let tiles = y.tiles((128, 256));
    let done = counters(tiles);
    #[gemm]
    for t in tiles {
        done[t].add(1);
        y[t] = done[t].wait();
        y[t] = 2 * dot(x[t], w[t]);
        y[t] = dot(x[t], w[t]) % 2.0;
        y[t] = dto(x[t], w[t]);
        y[t] = dot(x[t]);
        y[t] = dot(x, w[t]);
        y[t] = dot(x[t].gelu(), w[t]);
        y[t] = dot(dot(x[t], w[t]), w[t]);
        y[t] = dot(x[t], w[t])[t];
        y[t] = if me() == 0 { 1.0 } else { 2.0 };
        y[t] = t + dot(x[t], w[t]);
        y[t] = x[t] as f32;
        y[t] = dot(x[t], w[t]).sum();
        y[t] = dot(x[t], w[t]).wait(done);
        y[t] = x[t].wait(t);
        y[t] = x[t].wait() + 1.0;
    }
}

fn main() {}
