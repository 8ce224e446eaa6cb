use counterflow::prelude::*;

#[schedule]
fn gemm(x: Local<bf16>, w: Local<bf16>, b: Vector<bf16>, y: Out<bf16>) {
    let chunks = x.chunks(128);
    let bands = x.chunks(row = 128);
    let panels = x.panels(cols = 128, cols = 256);
    let tiles = y.tiles(128, 256);
    let wide = y.tiles(rows = 128);
    let strips = x.stripes(rows = 128);
    let good = y.tiles((128, 256));
    let both = good.chunks(rows = 128);
    let bias = b.tiles((1, 128));
    let lines = x.chunks(rows = 128);
    let alike = y.tiles(lines);
    #[gemm]
    for t in tiles {
        y[t] = dot(x[t], w[t]).bias(b);
    }
}

fn main() {}
