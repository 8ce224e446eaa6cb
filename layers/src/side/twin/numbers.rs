//! Arithmetic that kernels and twin share, step by step: `kernels/numbers.cuh` has the same.
#![allow(
    clippy::excessive_precision,
    clippy::approx_constant,
    reason = "digits are those of the kernels' text"
)]

use counterflow::prelude::bf16;

/// Threads of a CTA, whose sums have a fixed order.
pub(super) const THREADS: usize = 256;

/// e to the power of `x`, within two units of the last place: 0 below e⁻⁸⁷, infinity above e⁸⁸.
///
/// ```
/// use counterflow_layers::side::twin::exp;
///
/// assert_eq!((exp(0.0), exp(-100.0), exp(100.0)), (1.0, 0.0, f32::INFINITY));
/// assert!((exp(1.0) - std::f32::consts::E).abs() < 1e-6 && exp(f32::NAN).is_nan());
/// ```
pub fn exp(x: f32) -> f32 {
    if x < -87.0 {
        return 0.0;
    }
    if x > 88.0 {
        return f32::INFINITY;
    }
    let n = (x * 1.442_695_04 + 0.5).floor();
    let r = x - n * 0.693_359_375 - n * -2.121_944_40e-4;
    let mut y = 1.987_569_150_0e-4 * r + 1.398_199_950_7e-3;
    y = y * r + 8.333_451_907_3e-3;
    y = y * r + 4.166_579_589_4e-2;
    y = y * r + 1.666_666_545_9e-1;
    y = y * r + 5.000_000_120_1e-1;
    y = y * (r * r) + r + 1.0;
    y * f32::from_bits(((n as i32 + 127) as u32) << 23)
}

/// The natural logarithm of a normal number above 0; infinity is kept, and anything else is NaN.
///
/// ```
/// use counterflow_layers::side::twin::ln;
///
/// assert_eq!((ln(1.0), ln(f32::INFINITY)), (0.0, f32::INFINITY));
/// assert!((ln(10.0) - std::f32::consts::LN_10).abs() < 1e-6 && ln(-1.0).is_nan());
/// ```
pub fn ln(x: f32) -> f32 {
    // NaN compares with nothing.
    let is_above = x > 0.0;
    if !is_above || x > f32::MAX {
        return if is_above { x } else { f32::NAN };
    }
    let bits = x.to_bits();
    let mut e = (bits >> 23) as i32 - 126;
    let mut m = f32::from_bits((bits & 0x007f_ffff) | 0x3f00_0000);
    if m < 0.707_106_781 {
        e -= 1;
        m = m + m - 1.0;
    } else {
        m -= 1.0;
    }
    let z = m * m;
    let mut y = 7.037_683_629_2e-2 * m + -1.151_461_031_0e-1;
    y = y * m + 1.167_699_874_0e-1;
    y = y * m + -1.242_014_084_6e-1;
    y = y * m + 1.424_932_278_7e-1;
    y = y * m + -1.666_805_766_5e-1;
    y = y * m + 2.000_071_476_5e-1;
    y = y * m + -2.499_999_399_3e-1;
    y = y * m + 3.333_333_117_4e-1;
    y = y * m * z;
    let e = e as f32;
    y += -2.121_944_40e-4 * e;
    y -= 0.5 * z;
    m + y + 0.693_359_375 * e
}

/// 1 / (1 + e⁻ˣ).
pub(super) fn logistic(x: f32) -> f32 {
    1.0 / (1.0 + exp(-x))
}

/// The larger one; NaN if either is.
pub(super) fn larger(a: f32, b: f32) -> f32 {
    if a > b || a.is_nan() { a } else { b }
}

/// Adds up lanes in pairs, half of them apart, until one is left.
pub(super) fn pairs(lanes: &mut [f32]) -> f32 {
    let mut apart = lanes.len() / 2;
    while apart > 0 {
        for at in 0..apart {
            lanes[at] += lanes[at + apart];
        }
        apart /= 2;
    }
    lanes[0]
}

/// The sum of a row's numbers as a CTA adds them: each thread every 256th eight, in order; lanes of a warp in pairs; then warps.
pub(super) fn sum(of: impl Iterator<Item = f32>) -> f32 {
    let mut threads = [0f32; THREADS];
    for (at, value) in of.enumerate() {
        threads[at / 8 % THREADS] += value;
    }
    let mut warps = [0f32; THREADS / 32];
    for (warp, lanes) in warps.iter_mut().zip(threads.chunks_exact_mut(32)) {
        *warp = pairs(lanes);
    }
    pairs(&mut warps)
}

pub(super) fn wide(x: bf16) -> f32 {
    x.to_f32()
}

pub(super) fn narrow(x: f32) -> bf16 {
    bf16::from_f32(x)
}
