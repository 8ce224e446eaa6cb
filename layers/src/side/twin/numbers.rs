//! Arithmetic that kernels and twin share, step by step: `kernels/numbers.cuh` has the same.
#![allow(
    clippy::excessive_precision,
    clippy::approx_constant,
    reason = "digits are those of the kernels' text"
)]

use counterflow::prelude::bf16;

/// Threads of a CTA, whose sums have a fixed order.
pub(super) const THREADS: usize = 256;
/// Threads of a CTA that has an SM to itself.
pub(super) const WIDE: usize = 512;

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
/// 2ᶠ = 1 + f · (these, lowest first) for |f| ≤ ½: likewise, 9.3e-8 of 2ᶠ.
const POWER: [f32; 5] = [
    0.693_147_004,
    0.240_222_469,
    0.055_507_112_3,
    0.009_671_295_06,
    0.001_326_938_86,
];
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

/// 2 to the power of n + f, where `rounded` is n + [`ROUNDS`]: |f| is not above ½, and n from -127 to 126. Within two units of the last
/// place, but below 2⁻¹²⁶ any number that is smaller. Of -127 exactly it is 0: f is 0, the polynomial 1, and no bit is left.
fn power_of_two(rounded: f32, f: f32) -> f32 {
    let mut q = POWER[4];
    for c in POWER[..4].iter().rev() {
        q = q.mul_add(f, *c);
    }
    let q = q.mul_add(f, 1.0);
    f32::from_bits(q.to_bits().wrapping_add(rounded.to_bits() << 23))
}

/// A number, or 0 of its sign for one that is too small to be normal.
pub(super) fn normal(x: f32) -> f32 {
    match x.is_subnormal() {
        true => 0f32.copysign(x),
        false => x,
    }
}

/// e to the power of `d`, which is not above 0: 0 at -87.4 and below. Off by 1.4e-8 · d of it at most, beside what 2 to a power is. NaN counts
/// as the least one.
pub(super) fn raised(d: f32) -> f32 {
    let x = d.max(-87.4);
    let rounded = x.mul_add(std::f32::consts::LOG2_E, ROUNDS);
    let f = x.mul_add(std::f32::consts::LOG2_E, ROUNDS - rounded);
    normal(power_of_two(rounded, f))
}

/// 1 / (1 + 2ˣʷ), whose power is from -125 to 125. NaN makes any number.
pub(super) fn logistic(x: f32, w: f32) -> f32 {
    let rounded = x.mul_add(w, ROUNDS);
    1.0 / (power_of_two(rounded, x.mul_add(w, ROUNDS - rounded)) + 1.0)
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
    sum_of_threads::<THREADS, f32>(of, |sum, value| sum + value)
}

/// The same of a CTA that has an SM to itself: each thread every 512th eight.
pub(super) fn wide_sum(of: impl Iterator<Item = f32>) -> f32 {
    sum_of_threads::<WIDE, f32>(of, |sum, value| sum + value)
}

/// The same of products, which are not rounded before they are added.
pub(super) fn wide_sum_of_products(of: impl Iterator<Item = [f32; 2]>) -> f32 {
    sum_of_threads::<WIDE, [f32; 2]>(of, |sum, [a, b]| a.mul_add(b, sum))
}

fn sum_of_threads<const COUNT: usize, T>(
    of: impl Iterator<Item = T>,
    add: impl Fn(f32, T) -> f32,
) -> f32 {
    let mut threads = [0f32; COUNT];
    for (at, value) in of.enumerate() {
        let sum = &mut threads[at / 8 % COUNT];
        *sum = add(*sum, value);
    }
    let mut warps = [0f32; WIDE / 32];
    let warps = &mut warps[..COUNT / 32];
    for (warp, lanes) in warps.iter_mut().zip(threads.chunks_exact_mut(32)) {
        *warp = pairs(lanes);
    }
    pairs(warps)
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
