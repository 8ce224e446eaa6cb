//! Products in f64 with error bounds, in blocks that fit caches and on all cores.

use super::known::Known;
use super::threads::{on_each, share};
use crate::dtype::Dtype;
use crate::variant::BLOCK;
use ndarray::{Array2, ArrayView2, ArrayViewMut2, Axis, Slice, linalg::general_mat_mul};
use std::ops::Range;

/// An operand of a product: its numbers and error bounds. `None`: exact.
pub(super) type Operand<'a> = (ArrayView2<'a, f64>, Option<ArrayView2<'a, f64>>);

const F32: Dtype = Dtype::F32;
/// Depth of one multiply of FP8.
const SHORT_STEP: usize = 32;
/// What is cut off in one: its products, the accumulator, and their sum.
const SHORT_TERMS: f64 = SHORT_STEP as f64 + 2.0;
/// The last bit that is kept, as a share of the largest.
const SHORT_BIT: f64 = 1.0 / 8192.0;
/// What one multiply of FP8 may be off, as a share of the largest.
const SHORT_OFF: f64 = SHORT_TERMS * SHORT_BIT;
/// CTAs that share K, at most: those of a cluster.
const MOST_SHARES: usize = 16;
/// Depth of a block of a product. The magnitudes of a block's operands are in a cache.
const DEPTH: usize = 512;
/// Rows of a block of a product of FP8: several passes go over its sums.
const ROWS: usize = 64;

/// Blocks of K, each of at most so many columns.
fn blocks(depth: usize, most: usize) -> impl Iterator<Item = Range<usize>> {
    (0..depth)
        .step_by(most)
        .map(move |start| start..(start + most).min(depth))
}

/// Those rows or columns of an operand.
fn part<'a>(of: &'a Operand<'_>, axis: usize, range: &Range<usize>) -> Operand<'a> {
    let cut = |all: &'a ArrayView2<'_, f64>| all.slice_axis(Axis(axis), Slice::from(range.clone()));
    (cut(&of.0), of.1.as_ref().map(cut))
}

/// The largest that an operand's magnitudes may be.
fn largest((value, off): &Operand<'_>) -> Array2<f64> {
    let size = value.mapv(f64::abs);
    match off {
        Some(off) => size + off,
        None => size,
    }
}

/// Adds `a · bᵀ` to `to`.
fn add(a: &ArrayView2<'_, f64>, b: &ArrayView2<'_, f64>, to: &mut ArrayViewMut2<'_, f64>) {
    general_mat_mul(1.0, a, &b.t(), 1.0, to);
}

/// `a · bᵀ`.
pub(super) fn product(a: &ArrayView2<'_, f64>, b: &ArrayView2<'_, f64>) -> Array2<f64> {
    let mut all = Array2::zeros((a.nrows(), b.nrows()));
    let rows = share(a.nrows(), a.ncols() * b.nrows());
    let shares = all.axis_chunks_iter_mut(Axis(0), rows);
    on_each(shares, |index, mut here| {
        let own = Slice::from(index * rows..index * rows + here.nrows());
        add(&a.slice_axis(Axis(0), own), b, &mut here);
    });
    all
}

/// Sums of some rows, one row after another, with their error bounds.
struct Sums<'a> {
    rows: Range<usize>,
    value: &'a mut [f64],
    off: &'a mut [f64],
}

impl Sums<'_> {
    /// The values' magnitudes.
    fn sizes(&self) -> Vec<f64> {
        self.value.iter().map(|value| value.abs()).collect()
    }
}

/// A block's numbers as a matrix.
fn matrix(rows: usize, of: &mut [f64]) -> ArrayViewMut2<'_, f64> {
    let columns = of.len() / rows.max(1);
    ArrayViewMut2::from_shape((rows, columns), of).expect("whole rows")
}

/// The elements, one row after another.
fn in_order(of: &mut Array2<f64>) -> &mut [f64] {
    if !of.is_standard_layout() {
        *of = of.as_standard_layout().into_owned();
    }
    of.as_slice_mut().expect("rows lie one behind the other")
}

impl Known {
    /// Does `work` for blocks of at most `most` rows, each of which takes `each` multiply-adds.
    fn in_rows(&mut self, each: usize, most: usize, work: impl Fn(Sums<'_>) + Sync) {
        let (rows, columns) = self.value.dim();
        if columns == 0 {
            return;
        }
        let own = share(rows, each);
        let most = most.min(own);
        let values = in_order(&mut self.value).chunks_mut(own * columns);
        let offs = in_order(&mut self.off).chunks_mut(own * columns);
        on_each(values.zip(offs), |index, (value, off)| {
            let values = value.chunks_mut(most * columns);
            let offs = off.chunks_mut(most * columns);
            let mut first = index * own;
            for (value, off) in values.zip(offs) {
                let rows = first..first + value.len() / columns;
                first = rows.end;
                work(Sums { rows, value, off });
            }
        });
    }

    /// Adds `a · bᵀ`. Any order of K products and sums in f32 is off by at most K roundings of the sum of magnitudes
    /// (to first order; one more covers the second).
    pub fn add_product(&mut self, a: &Operand<'_>, b: &Operand<'_>) {
        let depth = a.0.ncols();
        let roundings = (depth + 1) as f64 * F32.unit_roundoff();
        self.in_rows(2 * depth * b.0.nrows(), usize::MAX, |sums| {
            let (a, rows) = (part(a, 0, &sums.rows), sums.rows.len());
            let mut size = sums.sizes();
            for columns in blocks(depth, DEPTH) {
                let (a, b) = (part(&a, 1, &columns), part(b, 1, &columns));
                let size = &mut matrix(rows, &mut size);
                if a.1.is_some() || b.1.is_some() {
                    let more = largest(&a).dot(&largest(&b).t());
                    let exact = a.0.mapv(f64::abs).dot(&b.0.mapv(f64::abs).t());
                    let mut off = matrix(rows, sums.off);
                    off += &(&more - &exact);
                    *size += &more;
                } else {
                    let (a, b) = (a.0.mapv(f64::abs), b.0.mapv(f64::abs));
                    add(&a.view(), &b.view(), size);
                }
                add(&a.0, &b.0, &mut matrix(rows, sums.value));
            }
            for (off, size) in sums.off.iter_mut().zip(&size) {
                *off += roundings * size;
            }
        });
    }

    /// Adds `a · bᵀ` of FP8 operands, as tensor cores do ([`add_short`]).
    pub fn add_short_product(&mut self, a: &Operand<'_>, b: &Operand<'_>) {
        let depth = a.0.ncols();
        self.in_rows(2 * depth * b.0.nrows(), ROWS, |mut sums| {
            let a = part(a, 0, &sums.rows);
            let mut most = sums.sizes();
            for columns in blocks(depth, DEPTH) {
                let (a, b) = (part(&a, 1, &columns), part(b, 1, &columns));
                add_short(&mut sums, &mut most, (&a, &b));
            }
        });
    }

    /// Adds `a · bᵀ` of FP8 operands with promoted sums: 128 of K at a time as tensor cores do, from zero, then times its factors
    /// and added in f32. Each of those sums is off as [`add_short`] says; the product of two factors by a rounding; any
    /// order of the sums in f32, those of CTAs that share K among them, by a rounding each of all magnitudes.
    pub fn add_promoted_product(
        &mut self,
        a: &Operand<'_>,
        b: &Operand<'_>,
        factors: &[Option<Array2<f64>>; 2],
    ) {
        let (depth, width) = (a.0.ncols(), b.0.nrows());
        let roundings = (depth.div_ceil(BLOCK as usize) + MOST_SHARES) as f64;
        let factor = |side: usize, row: usize, step: usize| {
            (factors[side].as_ref()).map_or(1.0, |factors| factors[(row, step)])
        };
        let (unit, least) = (F32.unit_roundoff(), F32.half_subnormal());
        self.in_rows(2 * depth * width, ROWS, |sums| {
            let a = part(a, 0, &sums.rows);
            let mut size = sums.sizes();
            for (step, columns) in blocks(depth, BLOCK as usize).enumerate() {
                let (a, b) = (part(&a, 1, &columns), part(b, 1, &columns));
                let [mut value, mut off, mut most] = [(); 3].map(|()| vec![0.0; size.len()]);
                let mut block = Sums {
                    rows: sums.rows.clone(),
                    value: &mut value,
                    off: &mut off,
                };
                add_short(&mut block, &mut most, (&a, &b));
                let of_columns: Vec<f64> = (0..width).map(|at| factor(1, at, step)).collect();
                for (index, row) in sums.rows.clone().enumerate() {
                    let of_row = factor(0, row, step);
                    for (column, of_column) in of_columns.iter().enumerate() {
                        let at = index * width + column;
                        let scale = of_row * of_column;
                        let term = value[at] * scale;
                        let off = off[at] * scale.abs();
                        let off = off + (term.abs() + off) * unit + least;
                        sums.value[at] += term;
                        sums.off[at] += off;
                        size[at] += term.abs() + off;
                    }
                }
            }
            for (off, size) in sums.off.iter_mut().zip(&size) {
                *off += roundings * unit * size;
            }
        });
    }
}

/// Adds `a · bᵀ` of FP8 operands, as tensor cores do: 32 of K at a time, they align the products and the accumulator to the
/// largest exponent, cut each off after 13 fraction bits, and so their sum. Each of those is off by less than one such
/// bit of the largest, which is at most the accumulator and all magnitudes of the step. Where CTAs share the steps,
/// their accumulators are differences of two sums from the start, of which `most` has the largest magnitude.
///
/// A step adds `(off + 2 · most + magnitudes) · SHORT_OFF` to `off`. The magnitudes of all steps are multiplied at once, each
/// weighted by the steps behind it.
fn add_short(sums: &mut Sums<'_>, most: &mut [f64], (a, b): (&Operand<'_>, &Operand<'_>)) {
    let (rows, depth) = (sums.rows.len(), a.0.ncols());
    for columns in blocks(depth, SHORT_STEP) {
        // Copied, as rows that are far apart share lines of a cache.
        let [a, b] = [a, b].map(|of| part(of, 1, &columns).0.to_owned());
        add(&a.view(), &b.view(), &mut matrix(rows, sums.value));
        let sums = sums.off.iter_mut().zip(&*sums.value);
        for ((off, value), most) in sums.zip(&mut *most) {
            *off += (*off + 2.0 * *most) * SHORT_OFF;
            let size = value.abs();
            *most = if size > *most { size } else { *most };
        }
    }
    let steps = depth.div_ceil(SHORT_STEP);
    let behind = |column: usize| (steps - 1 - column / SHORT_STEP) as i32;
    let weights: Vec<f64> = (0..depth)
        .map(|column| (1.0 + SHORT_OFF).powi(behind(column)))
        .collect();
    let weighted = |mut size: Array2<f64>, times: f64| {
        for mut row in size.rows_mut() {
            let row = row.iter_mut().zip(&weights);
            row.for_each(|(size, weight)| *size *= weight * times);
        }
        size
    };
    let off = &mut matrix(rows, sums.off);
    let [size_a, size_b] = [a, b].map(|of| of.0.mapv(f64::abs));
    if a.1.is_none() && b.1.is_none() {
        add(&weighted(size_a, SHORT_OFF).view(), &size_b.view(), off);
    } else {
        // What the operands are off is added to `off` before the step.
        let before = 1.0 + SHORT_OFF;
        let more = weighted(largest(a), before + SHORT_OFF);
        add(&more.view(), &largest(b).view(), off);
        add(&weighted(size_a, -before).view(), &size_b.view(), off);
    }
}
