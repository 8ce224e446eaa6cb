use counterflow::prelude::*;

#[schedule]
fn gemm(x: Local<bf16>, w: Local<bf16>, y: Out<bf16>) {
    let tiles = y.tiles((128, 256));
    let done = counters(tiles);
    #[gemm]
    for t in tiles {
        y[t] = dot(x[t], w[t]);
        done[t].signal(1);
        done[t].add();
        done[t].add(t);
        done[t].wait(2);
        done.on(me())[t].wait();
        done.everywhere()[t].wait();
        done[t] = 1.0;
        done[t].add(1);
    }
}

fn main() {}
