use counterflow::prelude::*;

#[schedule]
fn gemm(x: Local<bf16>, w: Local<bf16>, y: Out<bf16>) {
    let tiles = y.tiles((128, 256));
    let right = (me() + 1) % world();
    #[gemm]
    for t in ranks().grouped() {
        y[t] = dot(x[t], w[t]);
    }
    #[gemm]
    for r in tiles.from_me() {
        y.on(r)[0] = dot(x[r], w[r]);
    }
    #[gemm]
    {
        for r in ranks().from_me().after_me() {
            for t in tiles.of(r) {
                y[t] = dot(x[t], w[t]);
            }
        }
        for r in ranks().but_last(1) {
            for t in tiles.of(r) {
                y[t] = dot(x[t], w[t]);
            }
        }
        for r in ring(1).but_last(-1) {
            for t in tiles.of(r) {
                y[t] = dot(x[t], w[t]);
            }
        }
        for r in ring(0) {
            for t in tiles.of(r) {
                y[t] = dot(x[t], w[t]);
            }
        }
        for r in ranks().fromme() {
            for t in tiles.of(r) {
                y[t] = dot(x[t], w[t]);
            }
        }
        for r in ranks().by(|me, step, world| (me + step + right) % world) {
            for t in tiles.of(r) {
                y[t] = dot(x[t], w[t]);
            }
        }
        for r in ranks().by(|me, step| me + step) {
            for t in tiles.of(r) {
                y[t] = dot(x[t], w[t]);
            }
        }
        for r in ranks().by(3) {
            for t in tiles.of(r) {
                y[t] = dot(x[t], w[t]);
            }
        }
    }
}

fn main() {}
