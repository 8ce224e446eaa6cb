use counterflow::prelude::*;

#[schedule]
fn gemm(x: Local<bf16>, w: Local<bf16>, y: Out<bf16>) {
    let tiles = y.tiles((128, 256));
    println!("schedules do not print");
    #[gemm]
    for t in tiles {
        while me() == 0 {
            y[t] = dot(x[t], w[t]);
        }
        loop {
            break;
        }
        match me() {
            _ => y[t] = dot(x[t], w[t]),
        }
        vec![t];
        return;
    }
    #[gemm]
    'outer: for t in tiles {
        {
            y[t] = dot(x[t], w[t]);
        }
        y[t] -= dot(x[t], w[t]);
        fn helper() {}
        continue;
    }
    #[gemm]
    while true {}
}

fn main() {}
