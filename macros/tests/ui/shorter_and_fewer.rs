use counterflow::prelude::*;

#[schedule]
fn shorter(x: Local<bf16>, w: Local<bf16>, y: ReduceScattered<bf16>) {
    let tiles = y.tiles((128, 256));
    #[gemm]
    for r in ranks().by(|me, step, world| (me + step) % world).but_last(1) {
        for t in tiles.of(r) {
            y.on(r)[t] = dot(x[t], w[t]);
        }
    }
}

#[schedule]
fn fewer(x: Local<bf16>, w: Local<bf16>, y: Out<bf16>) {
    let tiles = y.tiles((128, 256));
    let inbox = symmetric::<bf16>(y, slots = 2);
    let sent = counters(tiles);
    #[gemm]
    for t in tiles {
        inbox.on(0)[0][t] = dot(x[t], w[t]);
        sent.on(0)[t].add(1);
        y[t] = inbox[0][t].wait(sent);
    }
}

fn main() {}
