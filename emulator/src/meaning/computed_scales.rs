//! Scales that stores make of what they store, and what becomes of that, with error bounds.

use crate::known::Known;
use counterflow_codegen::dtype::Dtype;
use counterflow_codegen::encoding::bounds::{ComputedScale, Magnitude, of_codes};
use counterflow_codegen::encoding::rule::ScaleRule;

/// The rows of an item, the columns of each block multiplied by their scale, and the scales: a line for each block of columns.
pub(super) fn scaled(rule: &ScaleRule, known: &Known) -> (Known, Known) {
    let (rows, columns) = known.value.dim();
    let block = rule.block().columns as usize;
    let mut values = known.clone();
    let mut scales = Known::zero(columns.div_ceil(block), rows);
    for row in 0..rows {
        for (line, first) in (0..columns).step_by(block).enumerate() {
            let part = || (first..(first + block).min(columns)).map(|column| (row, column));
            let scale = computed_scale(rule, known, part());
            (scales.value[(line, row)], scales.off[(line, row)]) = scale.stored;
            let (by, by_off) = scale.multiplier;
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
pub(super) fn decoded(rule: &ScaleRule, known: &Known) -> Known {
    let (block, loses) = (rule.block().columns as usize, of_codes(rule));
    let mut decoded = known.clone();
    let (rows, columns) = known.value.dim();
    for row in 0..rows {
        for first in (0..columns).step_by(block) {
            let part = || (first..(first + block).min(columns)).map(|column| (row, column));
            let least = computed_scale(rule, known, part()).least_code(rule);
            for at in part() {
                let off = known.off[at];
                let most = known.value[at].abs() + off;
                decoded.off[at] = off + most * loses + least;
            }
        }
    }
    decoded
}

/// The scale of some numbers of an item.
fn computed_scale(
    rule: &ScaleRule,
    known: &Known,
    part: impl Iterator<Item = (usize, usize)>,
) -> ComputedScale {
    let numbers = part.map(|at| (known.value[at], known.off[at]));
    ComputedScale::of(rule, &Magnitude::of(numbers, rule.keeps_nan()))
}
