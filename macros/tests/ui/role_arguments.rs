use counterflow::prelude::*;

#[schedule]
fn gemm(x: Local<bf16>, w: Local<bf16>, y: Out<bf16>) {
    let tiles = y.tiles((128, 256));
    #[gemm(kk = 64, cluster = 2, stages = 4, stages = 5)]
    for t in tiles {
        y[t] = dot(x[t], w[t]);
    }
    #[comm]
    for t in tiles {
        y[t] = dot(x[t], w[t]);
    }
    #[comm(4)]
    for t in tiles {
        y[t] = dot(x[t], w[t]);
    }
    #[copy_engine(ctas = 4)]
    for t in tiles {
        y[t] = dot(x[t], w[t]);
    }
    #[gemm = 64]
    for t in tiles {
        y[t] = dot(x[t], w[t]);
    }
}

fn main() {}
