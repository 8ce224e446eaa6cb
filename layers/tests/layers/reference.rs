//! The layer as one process computes it, in f64, with bounds of what bf16 may be off.

use half::bf16;
use ndarray::{Array2, ArrayView2, s};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::ops::Range;

/// Rounding to bf16 changes a number by at most this part of it.
pub const OF_BF16: f64 = 1.0 / 256.0;
/// And to f32.
pub const OF_F32: f64 = 1.0 / (1u64 << 24) as f64;

/// Rows by columns.
#[derive(Clone)]
pub struct Matrix {
    pub columns: usize,
    pub values: Vec<f64>,
}

impl Matrix {
    /// Numbers that bf16 has.
    pub fn random(rows: usize, columns: usize, largest: f32, seed: u64) -> Matrix {
        let mut random = StdRng::seed_from_u64(seed);
        let mut value = || f64::from(bf16::from_f32(random.random_range(-largest..largest)));
        let values = (0..rows * columns).map(|_| value()).collect();
        Matrix { columns, values }
    }

    pub fn rows(&self) -> usize {
        self.values.len() / self.columns
    }

    /// Some rows and columns of it, as a rank has them.
    pub fn part(&self, rows: Range<usize>, columns: Range<usize>) -> Vec<bf16> {
        let of_row = |row: usize| {
            let columns = columns.clone();
            columns.map(move |column| bf16::from_f64(self.values[row * self.columns + column]))
        };
        rows.flat_map(of_row).collect()
    }
}

/// For each element of a · bᵀ the size of the largest term, or of the largest sum of the first terms.
fn largest(a: &ArrayView2<'_, f64>, b: &ArrayView2<'_, f64>) -> Array2<f64> {
    // By slices and comparisons, spelled out: nothing optimises tests, where iterators and calls of `max` take most of the time.
    let (a, b) = (a.as_standard_layout(), b.as_standard_layout());
    let (depth, both) = (
        a.ncols(),
        [&a, &b].map(|of| of.as_slice().expect("rows in a row")),
    );
    Array2::from_shape_fn((a.nrows(), b.nrows()), |(row, column)| {
        let (mut most, mut least, mut sum) = (0.0, 0.0, 0.0);
        let (a, b) = (&both[0][row * depth..], &both[1][column * depth..]);
        let mut at = 0;
        while at < depth {
            let term = a[at] * b[at];
            sum += term;
            if term > most {
                most = term;
            } else if term < least {
                least = term;
            }
            if sum > most {
                most = sum;
            } else if sum < least {
                least = sum;
            }
            at += 1;
        }
        f64::max(most, -least)
    })
}

/// What a tensor should be, and how far from it each element may be.
#[derive(Clone)]
pub struct Wanted {
    pub values: Matrix,
    pub bounds: Vec<f64>,
}

impl Wanted {
    /// One number everywhere.
    pub fn exactly(value: f64, [rows, columns]: [usize; 2]) -> Wanted {
        let values = vec![value; rows * columns];
        Wanted {
            bounds: vec![0.0; values.len()],
            values: Matrix { columns, values },
        }
    }

    /// Σ a[m, k] · b[k, n] over k, as indices into both give it. Where ranks divide `k` into `parts`, each part's sum is rounded to
    /// bf16 on its way.
    pub fn product(
        [m, n, k]: [usize; 3],
        parts: usize,
        a: impl Fn(usize, usize) -> f64,
        b: impl Fn(usize, usize) -> f64,
    ) -> Wanted {
        Wanted::product_off([m, n, k], (parts, 0.0), a, b)
    }

    /// The same where each part's sum may be off by that share of its largest term or sum of the first terms, too.
    pub fn product_off(
        [m, n, k]: [usize; 3],
        (parts, of_largest): (usize, f64),
        a: impl Fn(usize, usize) -> f64,
        b: impl Fn(usize, usize) -> f64,
    ) -> Wanted {
        let a = Array2::from_shape_fn((m, k), |(row, at)| a(row, at));
        let b = Array2::from_shape_fn((n, k), |(column, at)| b(at, column));
        let mut sums = Array2::<f64>::zeros((m, n));
        let (mut sent, mut off) = (sums.clone(), sums.clone());
        for part in 0..parts {
            let of_part = part * k / parts..(part + 1) * k / parts;
            let (a, b) = (a.slice(s![.., of_part.clone()]), b.slice(s![.., of_part]));
            let partial = a.dot(&b.t());
            sums += &partial;
            sent += &partial.abs();
            if of_largest > 0.0 {
                off += &(largest(&a, &b) * of_largest);
            }
        }
        let terms = a.abs().dot(&b.abs().t());
        let rounded = if parts > 1 { OF_BF16 } else { 0.0 };
        let bounds = (sent + &off) * rounded + off + terms * ((k + parts) as f64 * OF_F32);
        let (values, bounds) = (
            sums.into_raw_vec_and_offset().0,
            bounds.into_raw_vec_and_offset().0,
        );
        let values = Matrix { columns: n, values };
        Wanted { values, bounds }
    }

    /// The same, plus a number for each column.
    pub fn plus(mut self, bias: &[f64]) -> Wanted {
        for (value, bias) in self.values.values.iter_mut().zip(bias.iter().cycle()) {
            *value += bias;
        }
        self
    }

    /// As bf16 has it.
    pub fn rounded(mut self) -> Wanted {
        for (bound, value) in self.bounds.iter_mut().zip(&self.values.values) {
            *bound += OF_BF16 * (value.abs() + *bound);
        }
        self
    }

    /// Adds it to what was there.
    pub fn add(&mut self, more: &Wanted) {
        let (values, bounds) = (self.values.values.iter_mut(), self.bounds.iter_mut());
        let more = more.values.values.iter().zip(&more.bounds);
        for ((value, bound), (add, off)) in values.zip(bounds).zip(more) {
            *value += add;
            *bound += off + 2.0 * OF_F32 * (value.abs() + *bound);
        }
    }

    /// Fails where a rank's part is further off than it may be. NaN is.
    pub fn check(&self, what: &str, rows: Range<usize>, columns: Range<usize>, found: &[f64]) {
        assert_eq!(found.len(), rows.len() * columns.len(), "{what}");
        let each = rows.flat_map(|row| columns.clone().map(move |column| (row, column)));
        for ((row, column), found) in each.zip(found) {
            let at = row * self.values.columns + column;
            let (wanted, bound) = (self.values.values[at], self.bounds[at]);
            assert!(
                (found - wanted).abs() <= bound,
                "{what}[{row}][{column}] is {found}, not {wanted} ± {bound}"
            );
        }
    }
}

/// One call: what goes in, and what must come out.
pub struct Round {
    pub x: Matrix,
    pub dy: Matrix,
    pub y: Wanted,
    pub y_biased: Wanted,
    pub dx: Wanted,
    pub dw: Wanted,
    pub db: Wanted,
}

pub struct Layer {
    pub w: Matrix,
    pub bias: Matrix,
    pub rounds: Vec<Round>,
}

impl Layer {
    /// With calls of so many rows. The output and the input's gradient are sums of so many parts, each of a rank.
    pub fn new([input, output]: [usize; 2], rows: &[usize], parts: [usize; 2]) -> Layer {
        let w = Matrix::random(output, input, 0.5, 1);
        let bias = Matrix::random(1, output, 2.0, 2);
        let at = |matrix: &Matrix, row: usize, column: usize| {
            matrix.values[row * matrix.columns + column]
        };
        let round = |(seed, rows): (u64, usize)| {
            let x = Matrix::random(rows, input, 1.0, 2 * seed);
            let dy = Matrix::random(rows, output, 1.0, 2 * seed + 1);
            let y = Wanted::product(
                [rows, output, input],
                parts[0],
                |m, k| at(&x, m, k),
                |k, n| at(&w, n, k),
            );
            let dx = Wanted::product(
                [rows, input, output],
                parts[1],
                |m, k| at(&dy, m, k),
                |k, n| at(&w, k, n),
            );
            let dw = Wanted::product(
                [output, input, rows],
                1,
                |m, k| at(&dy, k, m),
                |k, n| at(&x, k, n),
            );
            let db = Wanted::product([1, output, rows], 1, |_, _| 1.0, |k, n| at(&dy, k, n));
            Round {
                y: y.clone().rounded(),
                y_biased: y.plus(&bias.values).rounded(),
                dx: dx.rounded(),
                x,
                dy,
                dw,
                db,
            }
        };
        let rounds = (10..).zip(rows.iter().copied()).map(round).collect();
        Layer { w, bias, rounds }
    }
}
