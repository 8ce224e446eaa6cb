use counterflow::prelude::*;

#[schedule]
fn gemm(x: Local<bf16>, w: Local<bf16>, z: Local<bf16>, _ignored: Local<bf16>, y: Out<bf16>) {
    let chunks = x.chunks(rows = 128);
    let tiles = y.tiles((128, 256));
    let done = counters(tiles);
    let spare = symmetric::<f32>(y, slots = 2);
    let read = symmetric::<f32>(y, slots = 2);
    let written = symmetric::<f32>(y, slots = 2);
    #[gemm]
    for t in tiles {
        let product = dot(x[t], w[t]);
        let mut acc = zero();
        let mut empty = zero();
        acc += dot(x[t], w[t]);
        written[0][t] = read[1][t] + empty;
    }
}

fn main() {}
