//! Tests of the comparison before it is used: one that cannot fail says nothing.

use super::{Coded, Exactly, Fp8, Got, Matrix, Pieces, Terms};
use counterflow_codegen::dtype::Dtype;
use counterflow_emulator as interp;
use counterflow_quantise as quantise;
use counterflow_runtime::Error;
use counterflow_runtime::driver::Local;

impl Fp8 {
    /// Tests the comparison on a product by cuBLASLt's layout of planes, computed here, and on one with a scale of another
    /// piece: a comparison that cannot fail says nothing.
    pub(super) fn see_mistakes(&self) -> Result<(), Error> {
        let of = |rows, pieces| Matrix {
            rows,
            depth: 384,
            dtype: Dtype::E4M3,
            pieces,
        };
        let mut told = Vec::new();
        for pieces in [
            Pieces::Whole,
            Pieces::Rows,
            Pieces::OneBy128,
            Pieces::Square,
        ] {
            let (x, w) = (of(96, pieces), of(160, Pieces::Square));
            let both = [(x, 1), (w, 2)].map(|(of, seed)| {
                let (codes, plane) = quantised(of, seed);
                (of, codes, plane)
            });
            let on_gpu = |at: usize| -> Result<(Local<u8>, Local<f32>), Error> {
                let (_, codes, plane) = &both[at];
                Ok((
                    Local::of(&self.stream, codes)?,
                    Local::of(&self.stream, plane)?,
                ))
            };
            let (of_x, of_w) = (on_gpu(0)?, on_gpu(1)?);
            let [at_x, at_w] = [&of_x, &of_w].map(|(codes, plane)| Coded {
                codes: codes.address(),
                plane: plane.address(),
            });
            let count = x.rows as usize * w.rows as usize;
            let value: Local<u64> = Local::zeros(&self.stream, count)?;
            let allowed: Local<f32> = Local::zeros(&self.stream, count)?;
            let exact = Exactly {
                value: value.address(),
                allowed: allowed.address(),
            };
            self.exactly((x, at_x), (w, at_w), exact)?;
            let wrong = |moved: bool| -> Result<u64, Error> {
                let numbers = both
                    .each_ref()
                    .map(|(of, codes, plane)| dequantised(*of, codes, plane, moved));
                let got = Local::of(&self.stream, &product(&numbers[0], &numbers[1], 384))?;
                let got = Got::plain((got.address(), Dtype::F32), x.rows, w.rows);
                let found = self.differ_exactly(got, exact.alone(), None)?;
                Ok(u64::from(found.wrong))
            };
            let (right, moved) = (wrong(false)?, wrong(true)?);
            let got = Local::of(&self.stream, &vec![f32::NAN; count])?;
            let got = Got::plain((got.address(), Dtype::F32), x.rows, w.rows);
            let nan = self.differ_exactly(got, exact.alone(), None)?;
            if right != 0 || moved < count as u64 / 10 || u64::from(nan.wrong) != count as u64 {
                told.push(format!(
                    "scales of {pieces:?}: of {count} elements {right} right ones, {moved} with scales of other pieces and {} NaNs are wrong",
                    nan.wrong
                ));
            }
        }
        if told.is_empty() {
            return Ok(());
        }
        Err(Error::Wrong {
            what: told.join("; "),
            help: "report it with the GPU and the driver: no result can be trusted here".into(),
        })
    }

    /// Checks that sums are told apart: one that has all terms, and one that lacks the last.
    pub(super) fn see_missing_terms(&self) -> Result<(), Error> {
        const PARTS: usize = 3;
        const COUNT: usize = 1024;
        let term = |at: usize| f64::from(at as u32 % 37) - 18.5;
        let bits: Vec<u64> = (0..PARTS * COUNT).map(|at| term(at).to_bits()).collect();
        let value = Local::of(&self.stream, &bits)?;
        // What is allowed has the same stride, so half of each matrix is not read.
        let allowed: Local<f32> = Local::zeros(&self.stream, 2 * PARTS * COUNT)?;
        let terms = Terms {
            exact: Exactly {
                value: value.address(),
                allowed: allowed.address(),
            },
            stride: 8 * COUNT as u64,
            parts: PARTS as u32,
            rounded: 0,
            narrowed: None,
        };
        let wrong = |parts: usize| -> Result<u32, Error> {
            let sum = |at| (0..parts).map(|part| term(part * COUNT + at)).sum::<f64>() as f32;
            let got = Local::of(&self.stream, &(0..COUNT).map(sum).collect::<Vec<_>>())?;
            let got = Got::plain((got.address(), Dtype::F32), 1, COUNT as u32);
            Ok(self.differ_exactly(got, terms, None)?.wrong)
        };
        let (right, lacks) = (wrong(PARTS)?, wrong(PARTS - 1)?);
        if right == 0 && lacks == COUNT as u32 {
            return Ok(());
        }
        Err(Error::Wrong {
            what: format!(
                "of {COUNT} sums {right} right ones, and {lacks} that lack a term are wrong"
            ),
            help: "report it with the GPU and the driver: no result can be trusted here".into(),
        })
    }
}

/// Codes and scales of an operand, in cuBLASLt's layout of planes.
fn quantised(of: Matrix, seed: u64) -> (Vec<u8>, Vec<f32>) {
    let shape = [of.rows, of.depth].map(|size| size as usize);
    let mut numbers = interp::Numbers::new(seed);
    // Rows next to each other, and blocks, are of other sizes, and so are their scales.
    let value = |at: usize| {
        let (row, column) = (at / shape[1], at % shape[1]);
        let size = row % 2 + (row / 128 + column / 128) % 3;
        let unit = (numbers.draw() >> 40) as f32 / (1u32 << 24) as f32;
        Dtype::Bf16.round((2.0 * unit - 1.0) * (1 << size) as f32)
    };
    let values: Vec<f32> = (0..shape[0] * shape[1]).map(value).collect();
    let x = quantise::Matrix::new(&values, shape, Dtype::Bf16);
    let made = |shared| {
        let rule = quantise::ScaleRule::transformer_engine(quantise::Fp8::E4M3);
        quantise::twin::quantise(&x, &rule, shared)
    };
    match of.pieces {
        Pieces::Nothing | Pieces::Whole => {
            let made = made(quantise::Granularity::PerTensor);
            (made.codes, made.scales)
        }
        Pieces::Rows => {
            let made = made(quantise::Granularity::PerRow);
            (made.codes, made.scales)
        }
        Pieces::OneBy128 => {
            let made = made(quantise::Granularity::BLOCK_1X128);
            let plane = made.plane::<quantise::RowsLast>();
            (made.codes, plane.values().to_vec())
        }
        Pieces::Square => {
            let made = made(quantise::Granularity::BLOCK_128X128);
            let plane = made.plane::<quantise::SquarePadded>();
            (made.codes, plane.values().to_vec())
        }
    }
}

/// The numbers of an operand, or what they would be with the scales of the next pieces.
fn dequantised(of: Matrix, codes: &[u8], plane: &[f32], moved: bool) -> Vec<f64> {
    let [rows, depth] = [of.rows, of.depth].map(|size| size as usize);
    let by = usize::from(moved);
    let element = |at: usize| {
        let (row, column) = (at / depth, at % depth);
        let place = match of.pieces {
            Pieces::Nothing => return f64::from(of.dtype.read(&codes[at..=at])),
            Pieces::Whole => 0,
            Pieces::Rows => (row + by) % rows,
            Pieces::OneBy128 => {
                (column / 128 + by) % depth.div_ceil(128) * rows.next_multiple_of(4) + row
            }
            Pieces::Square => {
                let across = depth.div_ceil(128);
                row / 128 * across.next_multiple_of(4) + (column / 128 + by) % across
            }
        };
        f64::from(of.dtype.read(&codes[at..=at])) * f64::from(plane[place])
    };
    (0..codes.len()).map(element).collect()
}

fn product(x: &[f64], w: &[f64], depth: usize) -> Vec<f32> {
    let rows = x.chunks(depth);
    let row = |x: &[f64]| -> Vec<f32> {
        let columns = w.chunks(depth);
        let dot = |w: &[f64]| x.iter().zip(w).map(|(a, b)| a * b).sum::<f64>() as f32;
        columns.map(dot).collect()
    };
    rows.flat_map(row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scales_of_other_pieces_make_other_numbers() {
        let of = Matrix {
            rows: 2,
            depth: 256,
            dtype: Dtype::E4M3,
            pieces: Pieces::OneBy128,
        };
        // A code of 1 everywhere; scales 1 and 3 for the first 128 columns, 2 and 4 for the others.
        let (codes, plane) = ([0x38; 512], [1.0, 3.0, 0.0, 0.0, 2.0, 4.0, 0.0, 0.0]);
        let numbers = dequantised(of, &codes, &plane, false);
        assert_eq!(
            [numbers[0], numbers[128], numbers[256], numbers[511]],
            [1.0, 2.0, 3.0, 4.0]
        );
        assert_eq!(product(&numbers, &numbers, 256)[1], 128.0 * (3.0 + 8.0));
        let moved = dequantised(of, &codes, &plane, true);
        assert_eq!([moved[0], moved[128], moved[256]], [2.0, 1.0, 4.0]);
    }

    /// The comparison is tried with them on the GPU: they must be far enough apart.
    #[test]
    fn operands_of_the_trial_tell_pieces_apart() {
        for pieces in [Pieces::Rows, Pieces::OneBy128, Pieces::Square] {
            let of = Matrix {
                rows: 96,
                depth: 384,
                dtype: Dtype::E4M3,
                pieces,
            };
            let (codes, plane) = quantised(of, 1);
            assert_eq!(plane.len() as u64, of.scales(), "{pieces:?}");
            let [right, moved] = [false, true].map(|moved| dequantised(of, &codes, &plane, moved));
            let apart = |(right, moved): (&f64, &f64)| (right - moved).abs() > 0.2 * right.abs();
            let apart = right.iter().zip(&moved).filter(|it| apart(*it)).count();
            assert!(apart > right.len() / 2, "{pieces:?}: {apart}");
        }
    }
}
