use counterflow::prelude::*;

#[schedule]
fn gemm(x: Local<bf16>, w: Local<bf16>, y: Out<bf16>) {
    let tiles = y.tiles((128, 256));
    let done = counter(tiles);
    let per_tensor = counters(x);
    let scratch = symmetric(y, slots = world());
    let more = symmetric::<f32>(y);
    let much = symmetric::<f32>(y, slot = 2);
    let half = symmetric::<f32>(y.half(), slots = me());
    let part = x.shard().chunks(rows = 128);
    let typed: u32 = counters(tiles);
    let (a, b) = counters(tiles);
    let mut changing = counters(tiles);
    let nothing;
    let number = "128";
    #[gemm]
    for t in tiles {
        let late = counters(tiles);
        let inner = x.chunks(rows = 128);
        done[t].add(1);
        y[t] = dot(x[t], w[t]);
    }
}

fn main() {}
