use counterflow::prelude::*;

#[schedule]
async unsafe fn gemm<T: Copy>(x: Local<T>, w: Local<bf16>, y: Out<bf16>) -> Program
where
    T: Send,
{
    let tiles = y.tiles((128, 256));
    #[gemm]
    for t in tiles {
        y[t] = dot(x[t], w[t]);
    }
}

struct Gemm;

impl Gemm {
    #[schedule]
    fn gemm(self, (x, w): Local<bf16>, y: Out<bf16>) {
        let tiles = y.tiles((128, 256));
        #[gemm]
        for t in tiles {
            y[t] = dot(x[t], w[t]);
        }
    }
}

// The stub stands in, so that this call is no second error.
fn calls() {
    gemm();
}

fn main() {}
