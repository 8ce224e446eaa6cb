use counterflow::prelude::*;

#[schedule]
fn gemm(x: Gathered<bf16>, w: Local<bf16>, y: Out<bf16>) {
    let none = x.chunks(rows = 0);
    let huge = y.tiles((128, 5_000_000_000));
    let some = y.tiles(tune((128, 256), (0, 65536)));
    let tiles = y.tiles((128, 256));
    #[comm(ctas = tune(4, 65537))]
    for peer in ranks().before_me() {
        for p in none.of(me()) {
            x.on(peer)[p] = x[p];
        }
    }
    #[gemm(k = 0, cluster = (2, 0), split = (0), ping_pong = false)]
    for t in tiles.grouped(0) {
        y[t] = dot(x[t], w[t]);
    }
}

fn main() {}
