//! What is accepted, and needs the features that tests have.

use counterflow::codegen::cuda;
use counterflow::prelude::*;

#[schedule]
fn plain(x: Local<bf16>, w: Local<bf16>, y: Out<bf16>) {
    let tiles = y.tiles((128, 256));

    #[gemm(k = 64)]
    for t in tiles {
        y[t] = dot(x[t], w[t]);
    }
}

fn main() {
    println!("{} {}", plain().name, cuda::prelude());
}
