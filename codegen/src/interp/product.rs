//! Products in f64 with error bounds, in blocks that fit caches and on all cores.

use super::known::Known;
use super::threads::{on_each, threads};
use crate::dtype::Dtype;
use crate::variant::BLOCK;
use ndarray::{Array2, ArrayView2, ArrayViewMut2, Axis, Slice, linalg::general_mat_mul};
use std::ops::Range;

/// An operand of a product: its numbers and error bounds. `None`: exact.
pub(super) type Operand<'a> = (ArrayView2<'a, f64>, Option<ArrayView2<'a, f64>>);

const F32: Dtype = Dtype::F32;
/// Depth of one multiply of FP8.
const SHORT_STEP: usize = 32;
/// Terms that are cut off in one multiply: its products, the accumulator, and their sum.
const SHORT_TERMS: f64 = SHORT_STEP as f64 + 2.0;
/// The last bit that is kept, as a share of the largest.
const SHORT_BIT: f64 = 1.0 / 8192.0;
/// Error of one multiply of FP8, as a share of the largest.
const SHORT_OFF: f64 = SHORT_TERMS * SHORT_BIT;
/// CTAs that share K, at most: those of a cluster.
const MOST_SHARES: usize = 16;
/// Depth of a block of a product. The magnitudes of a block's operands are in a cache.
const DEPTH: usize = 512;
/// Rows and columns of a block of a product: its sums, over which several passes go, are in a cache.
const MOST: [usize; 2] = [64, 128];
/// Least rows and columns of a block, where there are more threads than blocks: its operands are copied as often as
/// blocks share them.
const LEAST: [usize; 2] = [16, 32];

/// Blocks of K, each of at most so many columns.
fn blocks(depth: usize, most: usize) -> impl Iterator<Item = Range<usize>> {
    (0..depth)
        .step_by(most)
        .map(move |start| start..(start + most).min(depth))
}

/// Rows or columns of an operand.
fn part<'a>(of: &'a Operand<'_>, axis: usize, range: &Range<usize>) -> Operand<'a> {
    let cut = |all: &'a ArrayView2<'_, f64>| all.slice_axis(Axis(axis), Slice::from(range.clone()));
    (cut(&of.0), of.1.as_ref().map(cut))
}

/// A copy with rows that lie one behind the other.
fn copied(of: &ArrayView2<'_, f64>, each: impl Fn(f64) -> f64) -> Array2<f64> {
    let mut all = Vec::with_capacity(of.len());
    for row in of.rows() {
        match row.to_slice() {
            Some(row) => all.extend(row.iter().map(|value| each(*value))),
            None => all.extend(row.iter().map(|value| each(*value))),
        }
    }
    Array2::from_shape_vec(of.dim(), all).expect("as many as there were")
}

/// Magnitudes.
fn sizes(of: &ArrayView2<'_, f64>) -> Array2<f64> {
    copied(of, f64::abs)
}

/// The largest that an operand's magnitudes may be.
fn largest((value, off): &Operand<'_>) -> Array2<f64> {
    let size = sizes(value);
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
    let shape = all.dim();
    let threads = threads(work(a.ncols(), shape));
    let blocks = cut(all.view_mut(), block(shape, threads));
    on_each(threads, blocks, |(rows, columns, mut here)| {
        let [a, b] =
            [(a, rows), (b, columns)].map(|(of, range)| of.slice_axis(Axis(0), range.into()));
        add(&a, &b, &mut here);
    });
    all
}

/// Multiply-adds of a product of that depth.
fn work(depth: usize, (rows, columns): (usize, usize)) -> u64 {
    depth as u64 * rows as u64 * columns as u64
}

/// Rows and columns of the blocks of a product: as large as fit a cache, and as many as there are threads.
fn block((rows, columns): (usize, usize), threads: usize) -> [usize; 2] {
    let mut block = MOST;
    let count = |block: [usize; 2]| rows.div_ceil(block[0]) * columns.div_ceil(block[1]);
    while count(block) < threads && block != LEAST {
        // Squares share most of what they multiply.
        let wider = block[1] > block[0].max(LEAST[1]) || block[0] == LEAST[0];
        block[usize::from(wider)] /= 2;
    }
    block
}

/// A block: its rows and columns, and what it has there.
type Block<'a> = (Range<usize>, Range<usize>, ArrayViewMut2<'a, f64>);

/// The blocks of an array.
fn cut(of: ArrayViewMut2<'_, f64>, [high, wide]: [usize; 2]) -> Vec<Block<'_>> {
    fn parts(
        of: ArrayViewMut2<'_, f64>,
        axis: usize,
        most: usize,
    ) -> Vec<(Range<usize>, ArrayViewMut2<'_, f64>)> {
        let (mut found, mut rest) = (Vec::new(), of);
        let length = rest.len_of(Axis(axis));
        for start in (0..length).step_by(most) {
            let end = (start + most).min(length);
            let (first, behind) = rest.split_at(Axis(axis), end - start);
            found.push((start..end, first));
            rest = behind;
        }
        found
    }
    let rows = parts(of, 0, high).into_iter();
    rows.flat_map(|(rows, part)| {
        let columns = parts(part, 1, wide).into_iter();
        columns.map(move |(columns, part)| (rows.clone(), columns, part))
    })
    .collect()
}

/// Sums of a block, one row after another, with their error bounds.
struct Sums {
    rows: Range<usize>,
    columns: Range<usize>,
    value: Vec<f64>,
    off: Vec<f64>,
}

impl Sums {
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

impl Known {
    /// Does `make` for each block of sums of products of that depth.
    fn in_blocks(&mut self, depth: usize, make: impl Fn(&mut Sums) + Sync) {
        let shape = self.value.dim();
        let threads = threads(2 * work(depth, shape));
        let [values, offs] =
            [&mut self.value, &mut self.off].map(|of| cut(of.view_mut(), block(shape, threads)));
        on_each(threads, values.into_iter().zip(offs), |(value, off)| {
            let (rows, columns, mut value) = value;
            let (_, _, mut off) = off;
            let own = |of: &ArrayViewMut2<'_, f64>| copied(&of.view(), |value| value);
            let mut sums = Sums {
                value: own(&value).into_raw_vec_and_offset().0,
                off: own(&off).into_raw_vec_and_offset().0,
                rows,
                columns,
            };
            make(&mut sums);
            value.assign(&matrix(sums.rows.len(), &mut sums.value));
            off.assign(&matrix(sums.rows.len(), &mut sums.off));
        });
    }

    /// Adds `a · bᵀ`. Any order of K products and sums in f32 is off by at most K roundings of the sum of magnitudes
    /// (to first order; one more covers the second).
    pub fn add_product(&mut self, a: &Operand<'_>, b: &Operand<'_>) {
        let depth = a.0.ncols();
        let roundings = (depth + 1) as f64 * F32.unit_roundoff();
        self.in_blocks(depth, |sums| {
            let (a, rows) = (part(a, 0, &sums.rows), sums.rows.len());
            let b = part(b, 0, &sums.columns);
            let mut size = sums.sizes();
            for columns in blocks(depth, DEPTH) {
                let (a, b) = (part(&a, 1, &columns), part(&b, 1, &columns));
                let size = &mut matrix(rows, &mut size);
                let (size_a, size_b) = (sizes(&a.0), sizes(&b.0));
                if a.1.is_some() || b.1.is_some() {
                    let more = largest(&a).dot(&largest(&b).t());
                    let exact = size_a.dot(&size_b.t());
                    let mut off = matrix(rows, &mut sums.off);
                    off += &(&more - &exact);
                    *size += &more;
                } else {
                    add(&size_a.view(), &size_b.view(), size);
                }
                add(&a.0, &b.0, &mut matrix(rows, &mut sums.value));
            }
            for (off, size) in sums.off.iter_mut().zip(&size) {
                *off += roundings * size;
            }
        });
    }

    /// Adds `a · bᵀ` of FP8 operands, as tensor cores do ([`add_short`]).
    pub fn add_short_product(&mut self, a: &Operand<'_>, b: &Operand<'_>) {
        let depth = a.0.ncols();
        self.in_blocks(depth, |sums| {
            let (a, b) = (part(a, 0, &sums.rows), part(b, 0, &sums.columns));
            let mut most = sums.sizes();
            for columns in blocks(depth, DEPTH) {
                let (a, b) = (part(&a, 1, &columns), part(&b, 1, &columns));
                add_short(sums, &mut most, (&a, &b));
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
        let depth = a.0.ncols();
        let roundings = (depth.div_ceil(BLOCK as usize) + MOST_SHARES) as f64;
        let factor = |side: usize, row: usize, step: usize| {
            (factors[side].as_ref()).map_or(1.0, |factors| factors[(row, step)])
        };
        let (unit, least) = (F32.unit_roundoff(), F32.half_subnormal());
        self.in_blocks(depth, |sums| {
            let (a, b) = (part(a, 0, &sums.rows), part(b, 0, &sums.columns));
            let mut size = sums.sizes();
            for (step, columns) in blocks(depth, BLOCK as usize).enumerate() {
                let (a, b) = (part(&a, 1, &columns), part(&b, 1, &columns));
                let [value, off, mut most] = [(); 3].map(|()| vec![0.0; size.len()]);
                let mut block = Sums {
                    rows: sums.rows.clone(),
                    columns: sums.columns.clone(),
                    value,
                    off,
                };
                add_short(&mut block, &mut most, (&a, &b));
                let of_columns = sums.columns.clone();
                let of_columns: Vec<f64> = of_columns.map(|at| factor(1, at, step)).collect();
                let mut at = 0;
                for row in sums.rows.clone() {
                    let of_row = factor(0, row, step);
                    for of_column in &of_columns {
                        let scale = of_row * of_column;
                        let term = block.value[at] * scale;
                        let off = block.off[at] * scale.abs();
                        let off = off + (term.abs() + off) * unit + least;
                        sums.value[at] += term;
                        sums.off[at] += off;
                        size[at] += term.abs() + off;
                        at += 1;
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
fn add_short(sums: &mut Sums, most: &mut [f64], (a, b): (&Operand<'_>, &Operand<'_>)) {
    let (rows, depth) = (sums.rows.len(), a.0.ncols());
    for columns in blocks(depth, SHORT_STEP) {
        // Copied, as rows that are far apart share lines of a cache.
        let [a, b] = [a, b].map(|of| copied(&part(of, 1, &columns).0, |value| value));
        add(&a.view(), &b.view(), &mut matrix(rows, &mut sums.value));
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
    let off = &mut matrix(rows, &mut sums.off);
    let [size_a, size_b] = [a, b].map(|of| sizes(&of.0));
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
