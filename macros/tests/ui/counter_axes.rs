use counterflow::prelude::*;

#[schedule]
fn gemm(x: Local<bf16>, w: Local<bf16>, y: Out<bf16>) {
    let chunks = x.chunks(rows = 128);
    let tiles = y.tiles((128, 256));
    let arrived = counters(chunks);
    let landed = counters(world(), tiles);
    let one = counters();
    #[comm(ctas = 4)]
    for p in chunks.of(me()) {
        arrived.on(0)[me()].add(1);
        landed[p].add(1);
        landed[me()][p].add(1);
        one[p].add(1);
    }
    #[gemm]
    for t in tiles {
        arrived[t].wait();
        landed[t][me()].wait();
        one.wait();
        y[t] = dot(x[t].wait(arrived), w[t]);
    }
}

fn main() {}
