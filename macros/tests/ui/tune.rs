use counterflow::prelude::*;

#[schedule]
fn gemm(x: Local<bf16>, w: Local<bf16>, y: Out<bf16>) {
    let tiles = y.tiles(tune((128, 256), 128));
    let chunks = x.chunks(rows = tune());
    let panels = x.panels(cols = tune(128, 128, 256));
    let fixed = y.tiles((128, 256));
    let other = y.tiles(tune(128, 256));
    #[gemm(k = "64", stages = -4)]
    for t in fixed.grouped(rows) {
        y[t] = dot(x[t], w[t]);
    }
}

fn main() {}
