//! Products in f64 with error bounds, in blocks that fit caches and on all cores.

use super::known::Known;
use super::threads::{on_each, threads};
use counterflow_codegen::dtype::Dtype;
use counterflow_codegen::encoding::PROMOTION_INTERVAL;
use ndarray::{Array2, ArrayView2, ArrayViewMut2, Axis, Slice, linalg::general_mat_mul};
use std::array::from_fn;
use std::ops::Range;

/// An operand of a product: its numbers and error bounds. `None`: exact.
pub(super) type Operand<'a> = (Numbers<'a>, Option<ArrayView2<'a, f64>>);

/// Numbers of a rectangle: those that were given are numbers of f32, and take half the memory.
#[derive(Clone, Copy, Debug)]
pub(super) enum Numbers<'a> {
    Given(ArrayView2<'a, f32>),
    Computed(ArrayView2<'a, f64>),
}

impl<'a> Numbers<'a> {
    fn ncols(&self) -> usize {
        match self {
            Numbers::Given(of) => of.ncols(),
            Numbers::Computed(of) => of.ncols(),
        }
    }

    /// The numbers in f64.
    pub(crate) fn to_owned(self) -> Array2<f64> {
        match self {
            Numbers::Given(of) => of.mapv(f64::from),
            Numbers::Computed(of) => of.to_owned(),
        }
    }

    /// Some rows (0) or columns (1).
    fn part(&self, axis: usize, range: &Range<usize>) -> Numbers<'_> {
        let some = Slice::from(range.clone());
        match self {
            Numbers::Given(of) => Numbers::Given(of.slice_axis(Axis(axis), some)),
            Numbers::Computed(of) => Numbers::Computed(of.slice_axis(Axis(axis), some)),
        }
    }
}

const F32: Dtype = Dtype::F32;
/// Depth of one multiply of FP8.
const SHORT_STEP: usize = 32;
/// Multiplies of FP8 that are computed together.
const SHORT_STEPS: usize = PROMOTION_INTERVAL as usize / SHORT_STEP;
/// Terms that are cut off in one multiply: its products, the accumulator, and their sum.
const SHORT_TERMS: f64 = SHORT_STEP as f64 + 2.0;
/// The last bit that is kept, as a share of the largest.
const SHORT_BIT: f64 = 1.0 / 8192.0;
/// Error of one multiply of FP8, as a share of the largest.
const SHORT_OFF: f64 = SHORT_TERMS * SHORT_BIT;
/// CTAs that share K, at most: those of a cluster.
const MOST_SHARES: usize = 16;
/// Depth of a block of a product. What is copied of a block's operands is in a cache, and less than what allocators give back to
/// the system at once: threads that fault pages in again and again wait for each other.
const DEPTH: usize = 64;
/// Rows and columns of a block of a product: its sums, over which several passes go, are in a cache. Smaller ones would copy
/// operands more often, as blocks share them, so blocks are the same for every number of threads.
const MOST: [usize; 2] = [64, 128];

/// Blocks of K, each of at most so many columns.
fn blocks(depth: usize, most: usize) -> impl Iterator<Item = Range<usize>> {
    (0..depth)
        .step_by(most)
        .map(move |start| start..(start + most).min(depth))
}

/// Rows or columns of an operand.
fn part<'a>(of: &'a Operand<'_>, axis: usize, range: &Range<usize>) -> Operand<'a> {
    let cut = |off: &'a ArrayView2<'_, f64>| off.slice_axis(Axis(axis), range.clone().into());
    (of.0.part(axis, range), of.1.as_ref().map(cut))
}

/// Memory of copies.
#[derive(Default)]
struct Room(Vec<f64>);

impl Room {
    /// A copy of each number, with rows that lie one behind the other.
    fn copy(&mut self, of: &Numbers<'_>, each: impl Fn(f64) -> f64) -> ArrayViewMut2<'_, f64> {
        match of {
            Numbers::Given(of) => self.copy_view(of, |value| each(f64::from(value))),
            Numbers::Computed(of) => self.copy_view(of, each),
        }
    }

    fn copy_view<T: Copy>(
        &mut self,
        of: &ArrayView2<'_, T>,
        each: impl Fn(T) -> f64,
    ) -> ArrayViewMut2<'_, f64> {
        self.0.clear();
        for row in of.rows() {
            match row.to_slice() {
                Some(row) => self.0.extend(row.iter().map(|value| each(*value))),
                None => self.0.extend(row.iter().map(|value| each(*value))),
            }
        }
        ArrayViewMut2::from_shape(of.dim(), &mut self.0).expect("as many as there were")
    }

    /// The largest magnitudes that an operand may have.
    fn largest(&mut self, (value, off): &Operand<'_>) -> ArrayViewMut2<'_, f64> {
        let mut size = self.copy(value, f64::abs);
        if let Some(off) = off {
            size += off;
        }
        size
    }
}

/// Adds `a · bᵀ` to `to`.
fn add(a: &ArrayView2<'_, f64>, b: &ArrayView2<'_, f64>, to: &mut ArrayViewMut2<'_, f64>) {
    for columns in blocks(a.ncols(), DEPTH) {
        let [a, b] = [a, b].map(|of| of.slice_axis(Axis(1), Slice::from(columns.clone())));
        general_mat_mul(1.0, &a, &b.t(), 1.0, to);
    }
}

/// `a · bᵀ`.
pub(super) fn product(a: &ArrayView2<'_, f64>, b: &ArrayView2<'_, f64>) -> Array2<f64> {
    let mut all = Array2::zeros((a.nrows(), b.nrows()));
    let threads = threads(work(a.ncols(), all.dim()));
    let none = || ();
    on_each(
        threads,
        cut(all.view_mut()),
        none,
        |(), (rows, columns, mut here)| {
            let [a, b] =
                [(a, rows), (b, columns)].map(|(of, range)| of.slice_axis(Axis(0), range.into()));
            add(&a, &b, &mut here);
        },
    );
    all
}

/// Multiply-adds of a product of that depth.
fn work(depth: usize, (rows, columns): (usize, usize)) -> u64 {
    depth as u64 * rows as u64 * columns as u64
}

/// A block: its rows and columns, and what it has there.
type Block<'a> = (Range<usize>, Range<usize>, ArrayViewMut2<'a, f64>);

/// The blocks of an array.
fn cut(of: ArrayViewMut2<'_, f64>) -> Vec<Block<'_>> {
    fn parts(
        of: ArrayViewMut2<'_, f64>,
        axis: usize,
    ) -> Vec<(Range<usize>, ArrayViewMut2<'_, f64>)> {
        let (mut found, mut rest) = (Vec::new(), of);
        let length = rest.len_of(Axis(axis));
        for range in blocks(length, MOST[axis]) {
            let (first, behind) = rest.split_at(Axis(axis), range.len());
            found.push((range, first));
            rest = behind;
        }
        found
    }
    let rows = parts(of, 0).into_iter();
    rows.flat_map(|(rows, part)| {
        let columns = parts(part, 1).into_iter();
        columns.map(move |(columns, part)| (rows.clone(), columns, part))
    })
    .collect()
}

/// Sums of a block, one row after another, with their error bounds.
#[derive(Default)]
struct Sums {
    rows: Range<usize>,
    columns: Range<usize>,
    value: Vec<f64>,
    off: Vec<f64>,
}

/// A block's numbers as a matrix.
fn matrix(rows: usize, of: &mut [f64]) -> ArrayViewMut2<'_, f64> {
    let columns = of.len() / rows.max(1);
    ArrayViewMut2::from_shape((rows, columns), of).expect("whole rows")
}

/// A thread's own memory, which one block after another uses again. Memory that is given back and taken again is mapped again,
/// and threads wait for each other there.
#[derive(Default)]
struct Scratch {
    sums: Sums,
    /// Magnitudes of the sums. Of FP8 in one accumulator: the largest magnitude that each had.
    sizes: Vec<f64>,
    short: Short,
    copies: [Room; 4],
    /// The factor of each column.
    factors: Vec<f64>,
}

/// What tensor cores sum of 128 of K of FP8.
#[derive(Default)]
struct Short {
    /// Sums of each multiply, from zero.
    steps: [Vec<f64>; SHORT_STEPS],
    /// What the magnitudes add to the error bound.
    off: Vec<f64>,
}

/// Accumulation of a product's terms along K.
pub(super) enum Accumulation {
    /// In f32. Any order of K products and sums is off by at most K roundings of the sum of magnitudes (to first order; one
    /// more covers the second).
    F32,
    /// Of FP8 operands, as tensor cores do ([`add_short`]).
    Short,
    /// Of FP8 operands with promoted sums: 128 of K at a time as tensor cores do, from zero, then times its factors and added in
    /// f32. Each of those sums is off as [`add_short`] says; the product of two factors by a rounding; any order of the
    /// sums in f32, those of CTAs that share K among them, by a rounding each of all magnitudes.
    Promoted(u32, [Option<Array2<f64>>; 2]),
}

/// `a · bᵀ`, as a GPU accumulates it.
pub(super) struct Product<'a> {
    pub a: Operand<'a>,
    pub b: Operand<'a>,
    pub accumulation: Accumulation,
}

/// Adds each product to its sums. An element's sums depend on its product alone, whatever is added together.
pub(super) fn add_products(sums: &mut [Known], products: &[Product<'_>]) {
    let mut multiply_adds = 0;
    let mut blocks = Vec::new();
    for (Known { value, off }, product) in sums.iter_mut().zip(products) {
        multiply_adds += 2 * work(product.a.0.ncols(), value.dim());
        let both = cut(value.view_mut()).into_iter().zip(cut(off.view_mut()));
        blocks.extend(both.map(|(value, (_, _, off))| (product, value, off)));
    }
    let threads = threads(multiply_adds).min(blocks.len());
    on_each(threads, blocks, Scratch::default, |own, block| {
        let (product, (rows, columns, mut value), mut off) = block;
        own.sums.rows = rows;
        own.sums.columns = columns;
        for (own, of) in [(&mut own.sums.value, &value), (&mut own.sums.off, &off)] {
            own.clear();
            own.extend(of);
        }
        own.sizes.clear();
        own.sizes
            .extend(own.sums.value.iter().map(|value| value.abs()));
        product.add(own);
        let rows = own.sums.rows.len();
        value.assign(&matrix(rows, &mut own.sums.value));
        off.assign(&matrix(rows, &mut own.sums.off));
    });
}

impl Product<'_> {
    /// Adds a block.
    fn add(&self, own: &mut Scratch) {
        let (a, b) = (
            part(&self.a, 0, &own.sums.rows),
            part(&self.b, 0, &own.sums.columns),
        );
        match &self.accumulation {
            Accumulation::F32 => add_in_f32(own, &a, &b),
            Accumulation::Short => {
                for columns in blocks(a.0.ncols(), PROMOTION_INTERVAL as usize) {
                    let (a, b) = (part(&a, 1, &columns), part(&b, 1, &columns));
                    multiply_short(own, &a, &b);
                    match columns.len().div_ceil(SHORT_STEP) {
                        1 => add_short::<1>(own),
                        2 => add_short::<2>(own),
                        3 => add_short::<3>(own),
                        _ => add_short::<SHORT_STEPS>(own),
                    }
                }
            }
            Accumulation::Promoted(interval, factors) => {
                add_promoted(own, &a, &b, (*interval, factors));
            }
        }
    }
}

fn add_in_f32(own: &mut Scratch, a: &Operand<'_>, b: &Operand<'_>) {
    let (depth, rows) = (a.0.ncols(), own.sums.rows.len());
    let roundings = (depth + 1) as f64 * F32.unit_roundoff();
    let [of_a, of_b, size_a, size_b] = &mut own.copies;
    for columns in blocks(depth, DEPTH) {
        let (a, b) = (part(a, 1, &columns), part(b, 1, &columns));
        let size = &mut matrix(rows, &mut own.sizes);
        let exact = [(&mut *size_a, &a), (&mut *size_b, &b)];
        let [exact_a, exact_b] = exact.map(|(room, of)| room.copy(&of.0, f64::abs));
        if a.1.is_some() || b.1.is_some() {
            let exact = exact_a.dot(&exact_b.t());
            let more = of_a.largest(&a).dot(&of_b.largest(&b).t());
            let mut off = matrix(rows, &mut own.sums.off);
            off += &(&more - &exact);
            *size += &more;
        } else {
            add(&exact_a.view(), &exact_b.view(), size);
        }
        let same = |value| value;
        let (a, b) = (of_a.copy(&a.0, same), of_b.copy(&b.0, same));
        add(&a.view(), &b.view(), &mut matrix(rows, &mut own.sums.value));
    }
    for (off, size) in own.sums.off.iter_mut().zip(&own.sizes) {
        *off += roundings * size;
    }
}

fn add_promoted(
    own: &mut Scratch,
    a: &Operand<'_>,
    b: &Operand<'_>,
    (interval, factors): (u32, &[Option<Array2<f64>>; 2]),
) {
    let (depth, interval) = (a.0.ncols(), interval as usize);
    // What is added up between two promotions has room for so many steps.
    assert!(interval <= PROMOTION_INTERVAL as usize && interval.is_multiple_of(SHORT_STEP));
    let roundings = (depth.div_ceil(interval) + MOST_SHARES) as f64;
    let factor = |side: usize, row: usize, step: usize| {
        (factors[side].as_ref()).map_or(1.0, |factors| factors[(row, step)])
    };
    for (step, columns) in blocks(depth, interval).enumerate() {
        multiply_short(own, &part(a, 1, &columns), &part(b, 1, &columns));
        own.factors.clear();
        let of_columns = own.sums.columns.clone().map(|at| factor(1, at, step));
        own.factors.extend(of_columns);
        let of_row = |row| factor(0, row, step);
        match columns.len().div_ceil(SHORT_STEP) {
            1 => promote::<1>(own, of_row),
            2 => promote::<2>(own, of_row),
            3 => promote::<3>(own, of_row),
            _ => promote::<SHORT_STEPS>(own, of_row),
        }
    }
    let unit = F32.unit_roundoff();
    for (off, size) in own.sums.off.iter_mut().zip(&own.sizes) {
        *off += roundings * unit * size;
    }
}

/// Adds the sums of so many multiplies, times their factors.
fn promote<const STEPS: usize>(own: &mut Scratch, of_row: impl Fn(usize) -> f64) {
    let (unit, least) = (F32.unit_roundoff(), F32.half_subnormal());
    let Sums {
        rows,
        columns,
        value,
        off,
    } = &mut own.sums;
    let width = columns.len();
    for (at, row) in rows.clone().enumerate() {
        let of_row = of_row(row);
        // Slices of one length: the loop over them has no checks, so it is of vectors.
        let first = at * width;
        let steps: [&[f64]; STEPS] = from_fn(|step| &own.short.steps[step][first..][..width]);
        let more = &own.short.off[first..][..width];
        let factors = &own.factors[..width];
        let value = &mut value[first..][..width];
        let off = &mut off[first..][..width];
        let sizes = &mut own.sizes[first..][..width];
        for at in 0..width {
            let steps = from_fn(|step| steps[step][at]);
            let (sum, _, short_off) = accumulated::<STEPS>((0.0, 0.0, 0.0), steps, more[at]);
            let scale = of_row * factors[at];
            let term = sum * scale;
            let by = short_off * scale.abs();
            let by = by + (term.abs() + by) * unit + least;
            value[at] += term;
            off[at] += by;
            sizes[at] += term.abs() + by;
        }
    }
}

/// Adds the sums of so many multiplies.
fn add_short<const STEPS: usize>(own: &mut Scratch) {
    let size = own.sizes.len();
    let steps: [&[f64]; STEPS] = from_fn(|step| &own.short.steps[step][..size]);
    let more = &own.short.off[..size];
    let (value, off) = (&mut own.sums.value[..size], &mut own.sums.off[..size]);
    let most = &mut own.sizes[..size];
    for at in 0..size {
        let steps = from_fn(|step| steps[step][at]);
        (value[at], most[at], off[at]) =
            accumulated::<STEPS>((value[at], most[at], off[at]), steps, more[at]);
    }
}

/// A sum, the largest magnitude that it had and its error bound, after some multiplies, as tensor cores add FP8: 32 of K at a
/// time, they align the products and the accumulator to the largest exponent, cut each off after 13 fraction bits, and so their
/// sum. Each of those is off by less than one such bit of the largest, which is at most the accumulator and all magnitudes of the
/// step. Where CTAs share the steps, their accumulators are differences of two sums from the start, of which the second number is
/// the largest magnitude.
///
/// A step adds `(off + 2 · most + magnitudes) · SHORT_OFF` to the bound. `magnitudes` is what those of all steps add, each weighted
/// by the steps behind it ([`multiply_short`]).
#[inline(always)]
fn accumulated<const STEPS: usize>(
    (mut sum, mut most, mut off): (f64, f64, f64),
    steps: [f64; STEPS],
    magnitudes: f64,
) -> (f64, f64, f64) {
    for step in steps {
        sum += step;
        off += (off + 2.0 * most) * SHORT_OFF;
        let size = sum.abs();
        most = if size > most { size } else { most };
    }
    (sum, most, off + magnitudes)
}

/// Multiplies at most 128 of K of FP8 operands: each 32 of K by themselves, and the magnitudes of all.
fn multiply_short(own: &mut Scratch, a: &Operand<'_>, b: &Operand<'_>) {
    let (rows, depth) = (own.sums.rows.len(), a.0.ncols());
    let Short { steps, off } = &mut own.short;
    let [of_a, of_b, size_a, size_b] = &mut own.copies;
    let size = own.sizes.len();
    let same = |value| value;
    // Copied, as rows that are far apart share lines of a cache.
    let [copy_a, copy_b] = [of_a.copy(&a.0, same), of_b.copy(&b.0, same)];
    for (step, columns) in steps.iter_mut().zip(blocks(depth, SHORT_STEP)) {
        step.resize(size, 0.0);
        let [a, b] = [&copy_a, &copy_b].map(|of| of.slice_axis(Axis(1), columns.clone().into()));
        // What it has is not read.
        general_mat_mul(1.0, &a, &b.t(), 0.0, &mut matrix(rows, step));
    }
    let count = depth.div_ceil(SHORT_STEP);
    let weights: [f64; PROMOTION_INTERVAL as usize] = from_fn(|column| {
        let behind = (count - 1).saturating_sub(column / SHORT_STEP);
        (1.0 + SHORT_OFF).powi(behind as i32)
    });
    let weigh = |size: &mut ArrayViewMut2<'_, f64>, times: f64| {
        for mut row in size.rows_mut() {
            let row = row.iter_mut().zip(&weights);
            row.for_each(|(size, weight)| *size *= weight * times);
        }
    };
    off.clear();
    off.resize(size, 0.0);
    let off = &mut matrix(rows, off);
    let numbers = |copy| Numbers::Computed(copy);
    if a.1.is_none() && b.1.is_none() {
        let mut size_a = size_a.copy(&numbers(copy_a.view()), f64::abs);
        weigh(&mut size_a, SHORT_OFF);
        let size_b = size_b.copy(&numbers(copy_b.view()), f64::abs);
        add(&size_a.view(), &size_b.view(), off);
    } else {
        // What the operands are off is added to `off` before the step.
        let before = 1.0 + SHORT_OFF;
        let mut more = size_a.largest(a);
        weigh(&mut more, before + SHORT_OFF);
        add(&more.view(), &size_b.largest(b).view(), off);
        let mut size_a = size_a.copy(&numbers(copy_a.view()), f64::abs);
        weigh(&mut size_a, -before);
        let size_b = size_b.copy(&numbers(copy_b.view()), f64::abs);
        add(&size_a.view(), &size_b.view(), off);
    }
}
