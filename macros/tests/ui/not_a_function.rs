use counterflow::prelude::*;

#[schedule]
struct Gemm;

fn main() {}
