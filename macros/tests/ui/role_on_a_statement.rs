use counterflow::prelude::*;

#[schedule]
fn gemm(x: Local<bf16>, w: Local<bf16>, y: Out<bf16>) {
    #[gemm]
    let tiles = y.tiles((128, 256));
    #[gemm]
    {
        #[inline]
        for t in tiles {
            y[t] = dot(x[t], w[t]);
        }
    }
    #[gemm]
    tiles.of(me());
}

fn main() {}
