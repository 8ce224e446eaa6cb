//! Arithmetic that kernels and twin share, step by step: `kernels/numbers.cuh` has the same.
#![allow(
    clippy::excessive_precision,
    clippy::approx_constant,
    reason = "digits are those of the kernels' text"
)]

use counterflow::prelude::bf16;

/// Threads of a CTA, whose sums have a fixed order.
pub(super) const THREADS: usize = 256;

/// ln 2 as a number of 15 bits, whose products with exponents are exact, and the rest.
const LN_2: [f32; 2] = [0.693_145_75, 1.428_606_8e-6];
/// Added to a number, it leaves the nearest integer in the lowest bits.
const ROUNDS: f32 = 12_582_912.0;
/// eʳ = 1 + r + r² · (these, lowest first) for |r| ≤ ln 2 / 2: the polynomial with the least largest error, 3.1e-9 of eʳ.
const EXP: [f32; 5] = [
    0.499_999_93,
    0.166_665_2,
    0.041_668_4,
    0.008_368_851,
    0.001_381_431_6,
];
/// 1 / y for 1 ≤ y ≤ 2, within 1 / 99: the lowest first.
const INVERSE: [f32; 3] = [2.121_212, -1.454_545_5, 0.323_232_32];
/// ln (1 + m) = m − m² / 2 + m³ · (these, lowest first) for √½ ≤ 1 + m ≤ √2: likewise, 5.9e-9 of m.
const LN: [f32; 8] = [
    0.333_333_17,
    -0.250_008_1,
    0.200_022_87,
    -0.166_245_57,
    0.141_811_8,
    -0.131_287_1,
    0.128_817_26,
    -0.078_598_42,
];

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
    let rounded = x.mul_add(std::f32::consts::LOG2_E, ROUNDS);
    let n = rounded - ROUNDS;
    let r = (-n).mul_add(LN_2[1], (-n).mul_add(LN_2[0], x));
    let mut q = EXP[4];
    for c in EXP[..4].iter().rev() {
        q = q.mul_add(r, *c);
    }
    let y = q.mul_add(r, 1.0).mul_add(r, 1.0);
    // The lowest bits of what was rounded are n.
    y * f32::from_bits((rounded.to_bits() << 23).wrapping_add(1f32.to_bits()))
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
    // x = 2ᵉ (1 + m), where 1 + m is between √½ and √2.
    let root = std::f32::consts::FRAC_1_SQRT_2.to_bits();
    let e = (x.to_bits() as i32 - root as i32) >> 23;
    let m = f32::from_bits((x.to_bits() as i32 - (e << 23)) as u32) - 1.0;
    let mut p = LN[7];
    for c in LN[..7].iter().rev() {
        p = p * m + c;
    }
    let (y, e) = (m * m * (m * p - 0.5), e as f32);
    e * LN_2[1] + y + m + e * LN_2[0]
}

/// 1 / (1 + e⁻ˣ), of e to the power of a number that is not above 0.
pub(super) fn logistic(x: f32) -> f32 {
    let e = exp(-x.abs());
    let y = e + 1.0;
    let mut by = INVERSE[2].mul_add(y, INVERSE[1]).mul_add(y, INVERSE[0]);
    for _ in 0..2 {
        by = by.mul_add((-y).mul_add(by, 1.0), by);
    }
    if x >= 0.0 { by } else { e * by }
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

/// Rounded to nearest, ties to even; every NaN becomes 0x7fff, as on the GPU.
pub(super) fn narrow(x: f32) -> bf16 {
    match x.is_nan() {
        true => bf16::from_bits(0x7fff),
        false => bf16::from_f32(x),
    }
}
