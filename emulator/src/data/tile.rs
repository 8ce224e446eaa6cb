//! Registers of an item, and what steps do with them.

use super::short;
use counterflow_codegen::dtype::Dtype;
use counterflow_codegen::program::{Side, Usage};
use counterflow_codegen::shape::Extent;
use ndarray::linalg::general_mat_mul;
use ndarray::{Array2, ArrayView2, ArrayViewMut2, Axis, Slice};
use std::ops::Range;

/// A tile of f32 registers.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tile {
    /// First row, counted in the tensors of its item.
    pub first: u32,
    pub rows: usize,
    pub columns: usize,
    pub values: Vec<f32>,
}

impl Tile {
    /// Resizes it; zeros if the size changes.
    pub fn shaped(&mut self, rows: usize, columns: usize) {
        if (self.rows, self.columns) != (rows, columns) {
            *self = Tile {
                first: self.first,
                rows,
                columns,
                values: vec![0.0; rows * columns],
            };
        }
    }

    /// Index of the row of this tile that is row `at` of a rectangle, which has all of its rows or some.
    pub fn row(&self, of: Extent, at: usize) -> usize {
        let before = match self.rows == of.len() as usize {
            true => 0,
            false => of.start.wrapping_sub(self.first) as usize,
        };
        match self.rows {
            // A vector is one row, repeated.
            1 => 0,
            _ => before + at,
        }
    }

    /// With the rows of another one below its own.
    pub fn below(&mut self, mut other: Tile) {
        self.columns = other.columns;
        self.rows += other.rows;
        self.values.append(&mut other.values);
    }

    /// As an item reads what was loaded: one number for each of its columns is a row.
    pub fn laid(&mut self, usage: Usage) {
        if usage.read_along(Side::Rows) == Some(Side::Columns) {
            std::mem::swap(&mut self.rows, &mut self.columns);
        }
    }

    /// Numbers of the tile.
    pub fn view(&self) -> ArrayView2<'_, f32> {
        ArrayView2::from_shape((self.rows, self.columns), &self.values)
            .expect("a tile has its rows and columns")
    }

    fn view_mut(&mut self) -> ArrayViewMut2<'_, f32> {
        ArrayViewMut2::from_shape((self.rows, self.columns), &mut self.values)
            .expect("a tile has its rows and columns")
    }

    /// `self += a · bᵀ`, in f32; of FP8, as tensor cores add. If CTAs share the K steps, each CTA's part is summed separately.
    pub fn dot(
        &mut self,
        (a, of_a): (&ArrayView2<'_, f32>, Dtype),
        (b, of_b): (&ArrayView2<'_, f32>, Dtype),
        shares: &[Range<usize>],
    ) {
        self.shaped(a.nrows(), b.nrows());
        if of_a.is_fp8() && of_b.is_fp8() {
            if shares.len() <= 1 {
                return short::add(&mut self.values, (a, of_a), (b, of_b));
            }
            for share in shares {
                let [a, b] =
                    [a, b].map(|part| part.slice_axis(Axis(1), Slice::from(share.clone())));
                let mut part = vec![0.0; self.values.len()];
                short::add(&mut part, (&a, of_a), (&b, of_b));
                self.values
                    .iter_mut()
                    .zip(part)
                    .for_each(|(sum, part)| *sum += part);
            }
            return;
        }
        let mut c = self.view_mut();
        if shares.len() <= 1 {
            general_mat_mul(1.0, a, &b.t(), 1.0, &mut c);
            return;
        }
        for share in shares {
            let [a, b] = [a, b].map(|part| part.slice_axis(Axis(1), Slice::from(share.clone())));
            c += &a.dot(&b.t());
        }
    }

    /// Product with promoted sums: each sum over so much of K is multiplied by the product of its scales, which is
    /// rounded to f32, and added to what came before, rounded once.
    pub fn promoted_dot(
        &mut self,
        (a, of_a): (&ArrayView2<'_, f32>, Dtype),
        (b, of_b): (&ArrayView2<'_, f32>, Dtype),
        shares: &[Range<usize>],
        (interval, factors): (u32, &[Option<Array2<f32>>; 2]),
    ) {
        self.shaped(a.nrows(), b.nrows());
        let interval = interval as usize;
        let mut c = self.view_mut();
        let factor = |side: usize, row: usize, step: usize| {
            (factors[side].as_ref()).map_or(1.0, |factors| factors[(row, step)])
        };
        let add = |c: &mut ArrayViewMut2<'_, f32>, share: &Range<usize>| {
            for start in share.clone().step_by(interval) {
                let columns = start..(start + interval).min(share.end);
                let [a, b] =
                    [a, b].map(|part| part.slice_axis(Axis(1), Slice::from(columns.clone())));
                let step = start / interval;
                let mut sums = vec![0.0; c.len()];
                short::add(&mut sums, (&a, of_a), (&b, of_b));
                for (at, sum) in sums.into_iter().enumerate() {
                    let (row, column) = (at / c.ncols(), at % c.ncols());
                    let scale = factor(0, row, step) * factor(1, column, step);
                    c[(row, column)] = sum.mul_add(scale, c[(row, column)]);
                }
            }
        };
        if shares.len() <= 1 {
            add(&mut c, &(0..a.ncols()));
            return;
        }
        for share in shares {
            let mut part = Array2::<f32>::zeros(c.raw_dim());
            add(&mut part.view_mut(), share);
            c += &part;
        }
    }

    /// Adds a rank's own term of a sum, rounded as the others' terms are.
    pub fn add_own(&mut self, term: &[f32], dtype: Dtype) {
        for (sum, own) in self.values.iter_mut().zip(term) {
            *sum += dtype.round(*own);
        }
    }

    /// Adds codes, each times the scale of its block of so many columns of a row, in f32.
    pub fn reduce_scaled(
        &mut self,
        codes: &ArrayView2<'_, f32>,
        scales: &ArrayView2<'_, f32>,
        block: u32,
    ) {
        let mut c = self.view_mut();
        for ((row, column), c) in c.indexed_iter_mut() {
            *c += codes[(row, column)] * scales[(row, column / block as usize)];
        }
    }

    /// Adds the parts. A sum over several ranks' memory is made in f32 and rounded once, as the switch does.
    pub fn reduce<'v>(
        &mut self,
        mut parts: impl ExactSizeIterator<Item = ArrayView2<'v, f32>>,
        dtype: Dtype,
    ) {
        let mut c = self.view_mut();
        if parts.len() == 1 {
            if let Some(part) = parts.next() {
                c += &part;
            }
            return;
        }
        let mut sum = Array2::<f32>::zeros(c.raw_dim());
        for part in parts {
            sum += &part;
        }
        c.zip_mut_with(&sum, |c, sum| *c += dtype.round(*sum));
    }
}
