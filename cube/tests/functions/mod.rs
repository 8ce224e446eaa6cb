//! Functions of cubecl.

use counterflow_cube::cubecl::{self, prelude::*};
use std::f32::consts::FRAC_1_SQRT_2;

#[cube]
pub fn capped(x: f32, limit: f32) -> f32 {
    let scaled = x / limit;
    limit * scaled.tanh()
}

/// A branch, a mutable variable, an unrolled loop, whole numbers.
#[cube]
pub fn bent(x: f32, slope: f32) -> f32 {
    let mut value = x;
    if x < 0.0f32 {
        value = slope * x;
    } else {
        #[unroll]
        for _ in 0..2 {
            value *= slope;
        }
        value += f32::cast_from(x as u32);
    }
    value
}

#[cube]
pub fn below(x: f32) -> f32 {
    0.5f32 + 0.5f32 * Erf::erf(x * FRAC_1_SQRT_2)
}

/// What cubecl has and Rust has not.
pub fn erf(x: f32) -> f32 {
    counterflow::codegen::value::Unary::Erf.eval(f64::from(x)) as f32
}

#[cube]
pub fn looped(x: f32) -> f32 {
    let mut power = x;
    for _ in 0..5 {
        power *= x;
    }
    power
}

#[cube]
pub fn shared(x: f32) -> f32 {
    let mut all = SharedMemory::<f32>::new(32usize);
    all[0] = x;
    sync_cube();
    all[1]
}

#[cube]
pub fn ranked(x: f32) -> f32 {
    x * f32::cast_from(UNIT_POS)
}

#[cube]
pub fn remainder(x: f32, by: f32) -> f32 {
    x % by
}

#[cube]
pub fn wide(x: f32) -> f32 {
    f32::cast_from(f64::cast_from(x) * 0.1f64)
}

#[cube]
pub fn pieces(x: f32) -> f32 {
    let mut all = Array::<f32>::new(4usize);
    all[0] = x;
    all[1] = x + 1.0f32;
    all[0] + all[1]
}
