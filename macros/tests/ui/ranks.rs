use counterflow::prelude::*;

#[schedule]
fn gemm(x: Local<bf16>, w: Local<bf16>, y: Out<bf16>, z: ReduceScattered<bf16>) {
    let tiles = y.tiles((128, 256));
    let right = (my() + 1) % world();
    let left = me() << 1;
    let many = others() + 1;
    let none = me().wrapping_sub(1);
    #[gemm]
    for t in tiles.of(ranks()) {
        y[t] = dot(x[t], w[t]);
    }
    #[gemm]
    for t in tiles.of(world(4) - 1) {
        y[t] = dot(x[t], w[t]);
    }
    #[gemm]
    for t in tiles.of(&me()) {
        for r in ranks() {
            z.on(t)[t] = x[t];
            z.on(0.5)[t] = x[t];
            z.on(everyone())[t] = x[t];
        }
    }
}

fn main() {}
