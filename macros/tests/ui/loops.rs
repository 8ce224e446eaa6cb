use counterflow::prelude::*;

#[schedule]
fn gemm(x: Local<bf16>, w: Local<bf16>, y: Out<bf16>) {
    let tiles = y.tiles((128, 256));
    #[gemm]
    {
        for r in 0..4 {
            y[r] = dot(x[r], w[r]);
        }
        for t in y {
            y[t] = dot(x[t], w[t]);
        }
        for r in rank().from_me() {
            y.on(r)[r] = dot(x[r], w[r]);
        }
        for (a, b) in tiles {
            y[a] = dot(x[a], w[b]);
        }
        for t in tiles.of(me()).of(0) {
            y[t] = dot(x[t], w[t]);
        }
        for t in tiles.grouped(4).row_major() {
            y[t] = dot(x[t], w[t]);
        }
        for t in tiles.reversed() {
            y[t] = dot(x[t], w[t]);
        }
        for t in tiles.of(tiles) {
            y[t] = dot(x[t], w[t]);
        }
        for t in tiles.skip(1).grouped(4) {
            y[t] = dot(x[t], w[t]);
        }
        for t in tiles.skip(1).of(me()) {
            y[t] = dot(x[t], w[t]);
        }
        for t in tiles.step_by(0) {
            y[t] = dot(x[t], w[t]);
        }
        for t in tiles.take(-1) {
            y[t] = dot(x[t], w[t]);
        }
        for t in tiles.step_by(2).step_by(3) {
            y[t] = dot(x[t], w[t]);
        }
        for t in tiles.skip() {
            y[t] = dot(x[t], w[t]);
        }
        for t in tiles.first_half(2) {
            y[t] = dot(x[t], w[t]);
        }
        for r in ranks().from_me().skip(1) {
            for t in tiles.of(r) {
                y[t] = dot(x[t], w[t]);
            }
        }
    }
}

fn main() {}
