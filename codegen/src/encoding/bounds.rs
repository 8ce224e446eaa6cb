//! Bounds of scales that are made of numbers which are known only to within a bound, and of what rounding by them loses.
//!
//! The emulator's reference and the bench, which compares results where they are, have them from here.

use crate::dtype::Dtype;
use crate::encoding::rule::{Scale, ScaleRule};

/// Relative error of an amax where it is not exact, beside its bound: a rounding to f32.
const ROUNDING: f64 = 2.0 / 16_777_216.0;

/// The largest absolute value of numbers, each of which is known to within a bound.
///
/// ```
/// use counterflow_codegen::bounds::Magnitude;
///
/// let amax = Magnitude::of([(1.0, 0.1), (-3.0, 0.25)], true);
/// assert_eq!((amax.least, amax.value, amax.most), (2.75, 3.0, 3.25));
/// assert!(amax.share(3.2) <= 1.0 && amax.share(2.7) > 1.0 && amax.share(3.3) > 1.0);
/// assert!(amax.share(f32::NAN).is_nan());
/// ```
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Magnitude {
    /// Of the numbers themselves.
    pub value: f64,
    /// Least value.
    pub least: f64,
    /// Largest value.
    pub most: f64,
}

impl Magnitude {
    /// Magnitude of numbers with their bounds. NaN is not seen, or stays.
    pub fn of(numbers: impl IntoIterator<Item = (f64, f64)>, keeps_nan: bool) -> Magnitude {
        let larger = |amax: f64, next: f64| match keeps_nan && (amax.is_nan() || next.is_nan()) {
            true => f64::NAN,
            false => amax.max(next),
        };
        let numbers = numbers.into_iter();
        numbers.fold(Magnitude::default(), |amax, (value, off)| {
            let size = value.abs();
            Magnitude {
                value: larger(amax.value, size),
                least: larger(amax.least, size - off),
                most: larger(amax.most, size + off),
            }
        })
    }

    /// Magnitude of all numbers of both.
    #[must_use]
    pub fn and(self, other: Magnitude) -> Magnitude {
        Magnitude {
            value: self.value.max(other.value),
            least: self.least.max(other.least),
            most: self.most.max(other.most),
        }
    }

    /// Error of a number that should be it, as a share of what is allowed: more than 1 is wrong, and so is NaN.
    pub fn share(&self, got: f32) -> f64 {
        let got = f64::from(got);
        let off = (got - self.value).abs();
        if off == 0.0 {
            return 0.0;
        }
        let allowed = match got < self.value {
            true => self.value - self.least,
            false => self.most - self.value,
        };
        off / (allowed + self.value * ROUNDING)
    }
}

/// A scale and how far off it may be: what elements are multiplied by, and what is stored.
///
/// ```
/// use counterflow_codegen::bounds::{ComputedScale, Magnitude};
/// use counterflow_codegen::rule::{Fp8, ScaleRule};
///
/// let rule = ScaleRule::transformer_engine(Fp8::E4M3).powers_of_two();
/// let scale = ComputedScale::of(&rule, &Magnitude::of([(3.0, 0.25)], rule.keeps_nan()));
/// assert_eq!((scale.multiplier, scale.stored), ((128.0, 0.0), (1.0 / 128.0, 0.0)));
/// assert!(scale.share(1.0 / 128.0) == 0.0 && scale.share(1.0 / 64.0) > 1.0);
/// // The next power of two begins at 3.5.
/// let scale = ComputedScale::of(&rule, &Magnitude::of([(3.4, 0.25)], rule.keeps_nan()));
/// assert!(scale.share(1.0 / 64.0) <= 1.0 && scale.share(1.0 / 32.0) > 1.0);
/// ```
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct ComputedScale {
    /// Bounds of the factor of elements.
    pub multiplier: (f64, f64),
    /// Bounds of the stored scale.
    pub stored: (f64, f64),
}

impl ComputedScale {
    /// Scale of an amax. A scale grows with its amax, or falls, but for an amax of zero.
    pub fn of(rule: &ScaleRule, amax: &Magnitude) -> ComputedScale {
        let Magnitude { value, least, most } = *amax;
        #[expect(clippy::cast_possible_truncation, reason = "an amax is rounded to f32")]
        let scale = |amax: f64| rule.of_block(amax as f32, Dtype::F32);
        let [multiplier, stored] = both(scale(value));
        if least == most {
            return ComputedScale {
                multiplier: (multiplier, 0.0),
                stored: (stored, 0.0),
            };
        }
        let ends = [least * (1.0 - ROUNDING), most * (1.0 + ROUNDING)].map(|end| both(scale(end)));
        let off = |value: f64, which: usize| {
            let away = ends.map(|end| (end[which] - value).abs());
            away[0].max(away[1])
        };
        if least > 0.0 {
            return ComputedScale {
                multiplier: (multiplier, off(multiplier, 0)),
                stored: (stored, off(stored, 1)),
            };
        }
        // The amax may be zero or not, so any scale is possible up to the largest.
        ComputedScale {
            multiplier: (multiplier, f64::INFINITY),
            stored: (stored, off(stored, 1).max(stored)),
        }
    }

    /// Error of a stored scale, as a share of what is allowed: more than 1 is wrong, and so is NaN.
    pub fn share(&self, stored: f32) -> f64 {
        let off = (f64::from(stored) - self.stored.0).abs();
        if off == 0.0 { 0.0 } else { off / self.stored.1 }
    }

    /// Loss of a number by the least code, however small the number is.
    pub fn least_code(&self, rule: &ScaleRule) -> f64 {
        (self.stored.0 + self.stored.1) * rule.to.dtype().half_subnormal()
    }
}

/// Factor of elements, and the stored scale.
fn both(scale: Scale) -> [f64; 2] {
    [scale.multiplier, scale.stored].map(f64::from)
}

/// Relative loss of a number that is read back from its code and the scale of its block, beside [`ComputedScale::least_code`].
///
/// A code is off by half a unit in its last place, or by half of the least one, as a number of its type is; that is as much of the
/// number relatively, and the least code is times the scale. A number that is off is multiplied, rounded and multiplied back as one
/// that is not: whichever scale its amax makes, the error is of that size, for the largest scale that it may make. The
/// multiplier is the reciprocal of the scale but for a rounding, and each product is rounded in f32.
///
/// ```
/// use counterflow_codegen::{bounds, rule::{Fp8, ScaleRule}};
///
/// let loses = bounds::of_codes(&ScaleRule::transformer_engine(Fp8::E4M3));
/// assert!(loses > 1.0 / 16.0 && loses < 1.001 / 16.0);
/// ```
pub fn of_codes(rule: &ScaleRule) -> f64 {
    let single = Dtype::F32.unit_roundoff();
    (1.0 + rule.to.dtype().unit_roundoff()) * (1.0 + single).powi(3) - 1.0
}
