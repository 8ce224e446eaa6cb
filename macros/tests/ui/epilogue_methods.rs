use counterflow::prelude::*;

#[schedule]
fn gemm(x: Local<bf16>, w: Local<bf16>, b: Vector<bf16>, y: Out<bf16>) {
    let tiles = y.tiles((128, 256));
    #[gemm]
    for t in tiles {
        let product = dot(x[t], w[t]);
        y[t] = product.gleu();
        y[t] = product.gelu(1.0);
        y[t] = product.softmax();
        y[t] = product.scale(2);
        y[t] = product.scale(product);
        y[t] = product.mul();
        y[t] = product.cast(bf16);
        y[t] = product.gelu::<bf16>();
        y[t] = product.bias(x[t]);
        y[t] = product.bias(b[t]);
        y[t] = dot(b, w[t]);
        y[t] = product.map();
        y[t] = product.map(|v| v * 2.0);
        b[t] = product;
    }
}

fn main() {}
