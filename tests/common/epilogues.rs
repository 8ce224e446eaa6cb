//! Schedules that differ in the math after the dot: between them, every word the language has for it.
#![allow(dead_code, reason = "each test binary uses some of them")]

use counterflow::codegen::value::{Foreign, ScalarFn};
use counterflow::prelude::*;

/// y = silu(x · wᵀ + bias), the bias in f32.
#[schedule]
pub fn linear_silu(x: Local<bf16>, w: Local<bf16>, bias: Vector<f32>, y: Out<bf16>) {
    let tiles = y.tiles(tune((128, 256), (208, 128), (80, 256)));
    #[gemm]
    for t in tiles.grouped() {
        y[t] = dot(x[t], w[t]).bias(bias).silu();
    }
}

/// GELU by tanh, of a scaled product, times a stored tile.
#[schedule]
pub fn gelu_tanh_mul(x: Local<bf16>, w: Local<bf16>, z: Local<bf16>, y: Out<bf16>) {
    let tiles = y.tiles(tune((128, 256), (208, 128), (80, 256)));
    #[gemm]
    for t in tiles.grouped() {
        y[t] = dot(x[t], w[t]).scale(0.5).gelu_tanh().mul(z[t]);
    }
}

/// What the activation was given is kept for the way back; a gate and a residual follow.
#[schedule]
pub fn gated(
    x: Local<bf16>,
    w: Local<bf16>,
    bias: Vector<bf16>,
    gate: Local<bf16>,
    residual: Local<bf16>,
    before: Out<bf16>,
    y: Out<bf16>,
) {
    let tiles = y.tiles(tune((128, 256), (208, 128), (80, 256)));
    #[gemm]
    for t in tiles.grouped() {
        let sum = dot(x[t], w[t]).bias(bias);
        before[t] = sum;
        y[t] = sum.gelu().mul(gate[t]).residual(residual[t]);
    }
}

/// Below `slope`, less; above, a soft bound.
#[epilogue]
pub fn bent(x: f32, slope: f32) -> f32 {
    const MOST: f32 = 4.0;
    let least = x.max(-MOST);
    let bounded = least.min(MOST);
    if x < 0.0 {
        slope * bounded
    } else {
        bounded / (1.0 + bounded.abs())
    }
}

/// Every function a user's epilogue may call.
#[epilogue]
pub fn wave(x: f32) -> f32 {
    let size = (1.0 + x * x).sqrt();
    (-size).exp() + size.ln() - bent(x, 0.25).tanh().clamp(-0.5, 0.5)
}

/// A user's function with a parameter for each column.
#[schedule]
pub fn mapped(x: Local<bf16>, w: Local<bf16>, slope: Vector<bf16>, y: Out<bf16>) {
    let tiles = y.tiles(tune((128, 256), (208, 128), (80, 256)));
    #[gemm]
    for t in tiles.grouped() {
        y[t] = dot(x[t], w[t]).map(bent, slope);
    }
}

/// A user's function that calls another.
#[schedule]
pub fn waved(x: Local<bf16>, w: Local<bf16>, y: Out<bf16>) {
    let tiles = y.tiles(tune((128, 256), (208, 128), (80, 256)));
    #[gemm]
    for t in tiles.grouped() {
        y[t] = dot(x[t], w[t]).cast::<bf16>().map(wave).sigmoid().relu();
    }
}

/// A function whose text cubecl printed: `cube/` makes both from a `#[cube]` function.
pub fn soft_cap(x: f32, limit: f32) -> f32 {
    limit * (x / limit).tanh()
}
#[allow(non_camel_case_types)]
pub enum soft_cap {}
impl soft_cap {
    pub fn scalar() -> ScalarFn {
        let text = include_str!("../../cube/tests/soft_cap.cuh");
        ScalarFn {
            name: "soft_cap",
            params: &["x", "limit"],
            body: Foreign::new(text, |x| soft_cap(x[0], x[1])).into(),
        }
    }
}

/// A soft bound for each column.
#[schedule]
pub fn capped(x: Local<bf16>, w: Local<bf16>, limit: Vector<bf16>, y: Out<bf16>) {
    let tiles = y.tiles(tune((128, 256), (208, 128), (80, 256)));
    #[gemm]
    for t in tiles.grouped() {
        y[t] = dot(x[t], w[t]).map(soft_cap, limit.abs() + 1.0);
    }
}

/// The sum over ranks goes through its epilogue where it is complete: at its owner.
#[schedule]
pub fn gemm_rs_gelu(x: Local<bf16>, w: Local<bf16>, bias: Vector<bf16>, y: ReduceScattered<bf16>) {
    let tiles = y.tiles(tune((128, 256), (208, 128), (80, 256)));
    let partial = symmetric::<bf16>(y, slots = world());
    let landed = counters(world(), tiles);

    #[gemm]
    for owner in ranks().after_me() {
        for t in tiles.of(owner) {
            partial.on(owner)[me()][t] = dot(x[t], w[t]);
            landed.on(owner)[me()][t].add(1);
        }
    }
    #[gemm]
    for t in tiles.of(me()) {
        let sum = dot(x[t], w[t]) + partial[others()][t].wait(landed).sum();
        y[t] = sum.bias(bias).gelu();
    }
}

/// A result in f32 beside the same in 16 bits, with a stored tile of each type.
#[schedule]
pub fn both_types(
    x: Local<bf16>,
    w: Local<bf16>,
    z: Local<bf16>,
    before: Local<f32>,
    y: Out<bf16>,
    full: Out<f32>,
) {
    let tiles = y.tiles(tune((128, 256), (208, 128), (80, 256)));
    #[gemm]
    for t in tiles.grouped() {
        let sum = dot(x[t], w[t]).mul(z[t]) + before[t];
        full[t] = sum;
        y[t] = sum;
    }
}

pub const ALL: [fn() -> counterflow::Program; 8] = [
    linear_silu,
    gelu_tanh_mul,
    gated,
    mapped,
    waved,
    capped,
    gemm_rs_gelu,
    both_types,
];
