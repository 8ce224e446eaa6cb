use counterflow::prelude::*;

#[schedule]
fn gemm(x: Local<bf16>, w: Local<bf16>, y: Out<bf16>) {
    let tiles = y.tiles((128, 256));
    let done = counters(world(), tiles);
    let parts = symmetric::<f32>(y, slots = world());
    #[gemm]
    for t in tiles {
        y = dot(x, w[t]);
        y[0..4] = dot(x[t], w[t]);
        y[tiles] = dot(x[t], w[t]);
        y[ranks().from_me()] = dot(x[t], w[t]);
        y[(me(), t)] = dot(x[t], w[t]);
        y[x] = dot(x[t], w[t]);
        y[t.width()] = dot(x[t], w[t]);
        parts[me()][t] = dot(x[t], w[t]);
    }
    #[spare_warps]
    for t in tiles {
        done[t.rows().first()].wait();
        y[t] = parts[0][t];
        done[me()][t].add(1);
    }
}

fn main() {}
