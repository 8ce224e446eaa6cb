//! Scales that stores make of what they store, and what becomes of that, with error bounds.

use crate::dtype::Dtype;
use crate::interp::known::Known;
use crate::rule::Rule;
use crate::variant::BLOCK;

/// What an amax may be off by relatively where it is not exact, beside its bound: a rounding to f32.
const ROUNDING: f64 = 2.0 / 16_777_216.0;

/// The rows of an item, each 128 columns multiplied by their scale, and the scales: for each 128 columns a line.
pub(super) fn scaled(rule: &Rule, known: &Known) -> (Known, Known) {
    let (rows, columns) = known.value.dim();
    let block = BLOCK as usize;
    let mut values = known.clone();
    let mut scales = Known::zero(columns.div_ceil(block), rows);
    for row in 0..rows {
        for (line, first) in (0..columns).step_by(block).enumerate() {
            let part = || (first..(first + block).min(columns)).map(|column| (row, column));
            let made = Made::of(rule, part().map(|at| (known.value[at], known.off[at])));
            (scales.value[(line, row)], scales.off[(line, row)]) = made.stored;
            let (by, by_off) = made.multiplier;
            for at in part() {
                let (value, off) = (known.value[at] * by, known.off[at]);
                let off = off * (by + by_off) + known.value[at].abs() * by_off;
                values.value[at] = value;
                values.off[at] = off + (value.abs() + off) * Dtype::F32.unit_roundoff();
            }
        }
    }
    (values, scales)
}

/// The rows of an item as who reads their codes and scales has them: partial sums that travel in FP8, which keep their number here.
///
/// A code is off by half a unit in its last place, or by half of the least one, as a number of its type is; that is as much of the
/// number relatively, and the least code is times the scale. A number that is off is multiplied, rounded and multiplied back as one
/// that is not: whichever scale its amax makes, the error is of that size, for the largest scale that it may make. The
/// multiplier is the reciprocal of the scale but for a rounding, and each product is rounded in f32.
pub(super) fn decoded(rule: &Rule, known: &Known) -> Known {
    let (to, single) = (rule.to.dtype(), Dtype::F32.unit_roundoff());
    let block = BLOCK as usize;
    let mut decoded = known.clone();
    let (rows, columns) = known.value.dim();
    for row in 0..rows {
        for first in (0..columns).step_by(block) {
            let part = || (first..(first + block).min(columns)).map(|column| (row, column));
            let made = Made::of(rule, part().map(|at| (known.value[at], known.off[at])));
            let least = (made.stored.0 + made.stored.1) * to.half_subnormal();
            for at in part() {
                let off = known.off[at];
                let most = known.value[at].abs() + off;
                let roundings = (1.0 + to.unit_roundoff()) * (1.0 + single).powi(3) - 1.0;
                decoded.off[at] = off + most * roundings + least;
            }
        }
    }
    decoded
}

/// A scale and its error bounds: what elements are multiplied by, and what is stored.
struct Made {
    multiplier: (f64, f64),
    stored: (f64, f64),
}

impl Made {
    /// That of numbers with their error bounds. A scale grows with its amax, or falls, but for an amax of zero.
    fn of(rule: &Rule, numbers: impl Iterator<Item = (f64, f64)> + Clone) -> Made {
        let most = |amax: f64, next: f64| match rule.keeps_nan() && (amax.is_nan() || next.is_nan())
        {
            true => f64::NAN,
            false => amax.max(next),
        };
        let amax = numbers
            .clone()
            .map(|(value, _)| value.abs())
            .fold(0.0, most);
        let least = numbers
            .clone()
            .map(|(value, off)| value.abs() - off)
            .fold(0.0, most);
        let largest = numbers
            .map(|(value, off)| value.abs() + off)
            .fold(0.0, most);
        #[expect(clippy::cast_possible_truncation, reason = "an amax is rounded to f32")]
        let scale = |amax: f64| rule.of_block(amax as f32, Dtype::F32);
        let made = scale(amax);
        let [multiplier, stored] = [made.multiplier, made.stored].map(f64::from);
        if least == largest {
            return Made {
                multiplier: (multiplier, 0.0),
                stored: (stored, 0.0),
            };
        }
        let ends = [least * (1.0 - ROUNDING), largest * (1.0 + ROUNDING)].map(scale);
        let off = |value: f64, ends: [f32; 2]| {
            let away = ends.map(|end| (f64::from(end) - value).abs());
            away[0].max(away[1])
        };
        let both = [
            off(multiplier, ends.map(|end| end.multiplier)),
            off(stored, ends.map(|end| end.stored)),
        ];
        if least > 0.0 {
            return Made {
                multiplier: (multiplier, both[0]),
                stored: (stored, both[1]),
            };
        }
        // The amax may be zero or not, so any scale is possible up to the largest.
        Made {
            multiplier: (multiplier, f64::INFINITY),
            stored: (stored, both[1].max(stored)),
        }
    }
}
