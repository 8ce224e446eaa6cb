use counterflow::prelude::*;

#[schedule]
fn parts_are_counted_but_for_the_last(x: Local<bf16>, w: Local<bf16>, y: Out<bf16>) {
    let tiles = y.tiles((128, 256));
    let parts = splits(4);
    let partial = symmetric::<f32>(y, slots = parts.last());
    let done = counters(parts, tiles);

    #[gemm]
    for s in parts.first() {
        for t in tiles {
            y[t] = dot(x[t][s], w[t][s]);
        }
    }
}

#[schedule]
fn cells_and_slots_are_parts(x: Local<bf16>, w: Local<bf16>, y: Out<bf16>) {
    let tiles = y.tiles((128, 256));
    let parts = splits(4);
    let unused = splits(2);
    let partial = symmetric::<f32>(y, slots = parts.before_last());
    let done = counters(parts.before_last(), tiles);

    #[gemm]
    for s in parts.before_last() {
        for t in tiles {
            partial[parts.before_last()][t] = dot(x[t][s], w[t][s]);
            done[me()][t].add(1);
        }
    }
    #[gemm]
    for s in parts.last() {
        for t in tiles {
            y[t] = dot(x[t][s], w[t][s]) + partial[t].sum();
        }
    }
}

fn main() {}
