//! Operands of FP8: random numbers quantised by the usual recipe, and the exact products that results are compared with.

use super::elements;
use super::numbers::{Difference, GRID};
use counterflow_codegen::dtype::Dtype;
use counterflow_runtime::Error;
use counterflow_runtime::cuda::{Arguments, Function, LaunchConfig, Module};
use counterflow_runtime::driver::{Address, Gpu, Local, Stream};
use counterflow_runtime::jit::{Compiled, Compiler, Source, Target};

const TEXT: &str = concat!(include_str!("numbers.cu"), include_str!("fp8.cu"));

/// Rows and columns of a CTA of `exact`.
const TILE: u32 = 64;

/// What has a scale of its own.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Pieces {
    /// Nothing: elements are what they say.
    Nothing,
    /// The whole operand.
    Whole,
    /// Each row, with K along it.
    Rows,
    /// Each 128 elements of a row.
    OneBy128,
    /// Each 128 elements of 128 rows.
    Square,
}

/// An operand: rows and depth, type, scales.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Matrix {
    pub rows: u32,
    pub depth: u32,
    pub dtype: Dtype,
    pub pieces: Pieces,
}

/// Where an operand is, and the plane of its scales.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Coded {
    pub codes: Address,
    pub plane: Address,
}

/// An exact product: f64 numbers, and how far off f32 sums of tensor cores may be from each.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Exactly {
    pub value: Address,
    pub allowed: Address,
}

/// What makes and checks them on one GPU.
#[derive(Debug)]
pub(crate) struct Fp8 {
    amaxes: Function,
    quantise: Function,
    settle: Function,
    exact: Function,
    differ: Function,
    stream: Stream,
}

impl Pieces {
    /// In a table.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Pieces::Nothing => "no scales",
            Pieces::Whole => "whole",
            Pieces::Rows => "rows",
            Pieces::OneBy128 => "1x128",
            Pieces::Square => "128x128",
        }
    }
}

impl Matrix {
    /// Elements.
    pub(crate) fn count(&self) -> u64 {
        u64::from(self.rows) * u64::from(self.depth)
    }

    /// Numbers in the plane of its scales, with padding. At least one.
    pub(crate) fn scales(&self) -> u64 {
        let [rows, depth] = [self.rows, self.depth].map(u64::from);
        match self.pieces {
            Pieces::Nothing | Pieces::Whole => 1,
            Pieces::Rows => rows,
            Pieces::OneBy128 => depth.div_ceil(128) * rows.next_multiple_of(4),
            Pieces::Square => rows.div_ceil(128) * depth.div_ceil(128).next_multiple_of(4),
        }
    }

    fn give(&self, arguments: &mut Arguments) {
        let pieces = match self.pieces {
            Pieces::Nothing => 0,
            Pieces::Whole => 1,
            Pieces::Rows => 2,
            Pieces::OneBy128 => 3,
            Pieces::Square => 4u32,
        };
        let words = [self.rows, self.depth, pieces, elements::ours(self.dtype)];
        arguments.bytes(words.map(u32::to_le_bytes).as_flattened());
    }
}

impl Fp8 {
    /// Compiles and loads the kernels, and tests them.
    ///
    /// # Errors
    /// What the compiler or the driver refuses.
    pub(crate) fn load(gpu: &Gpu, stream: &Stream, compiler: &Compiler) -> Result<Fp8, Error> {
        let module = Module::load(gpu.cuda()?, &Fp8::compile(compiler)?)?;
        let fp8 = Fp8 {
            amaxes: module.function("amaxes", 0)?,
            quantise: module.function("quantise", 0)?,
            settle: module.function("settle", 0)?,
            exact: module.function("exact", 0)?,
            differ: module.function("differ_exact", 0)?,
            stream: stream.clone(),
        };
        fp8.see_mistakes()?;
        Ok(fp8)
    }

    /// The machine code of all.
    ///
    /// # Errors
    /// What the compiler refuses.
    fn compile(compiler: &Compiler) -> Result<Compiled, Error> {
        compiler.compile(&Source::new("fp8", TEXT), Target::Sm90a)
    }

    /// Quantises the normal numbers of a sequence: a scale makes the largest of a piece the largest that the type has. The
    /// plane has room for [`Matrix::scales`] numbers and holds zeros.
    ///
    /// # Errors
    /// What the driver refuses.
    pub(crate) fn quantised(&self, of: Matrix, to: Coded, seed: u64) -> Result<(), Error> {
        let stream = self.stream.cuda()?;
        let mut arguments = Arguments::new();
        if of.pieces != Pieces::Nothing {
            arguments.address(to.plane);
            of.give(&mut arguments);
            arguments.bytes(&seed.to_le_bytes());
            // SAFETY: it writes as many numbers as the plane has.
            unsafe { self.amaxes.launch(stream, GRID, &arguments) }?;
        }
        arguments.clear();
        arguments.address(to.codes);
        arguments.address(to.plane);
        of.give(&mut arguments);
        arguments.bytes(&seed.to_le_bytes());
        // SAFETY: it reads the plane and writes an element for each code, which the caller's memory holds.
        unsafe { self.quantise.launch(stream, GRID, &arguments) }?;
        if of.pieces == Pieces::Nothing {
            return Ok(());
        }
        arguments.clear();
        arguments.address(to.plane);
        of.give(&mut arguments);
        arguments.bytes(&of.scales().to_le_bytes());
        // SAFETY: it writes as many numbers as the plane has.
        unsafe { self.settle.launch(stream, GRID, &arguments) }
    }

    /// The product of the first operand and the transpose of the second, of the numbers that codes and scales stand for.
    ///
    /// # Errors
    /// What the driver refuses.
    pub(crate) fn exactly(
        &self,
        (x, of_x): (Matrix, Coded),
        (w, of_w): (Matrix, Coded),
        to: Exactly,
    ) -> Result<(), Error> {
        let mut arguments = Arguments::new();
        for (matrix, place) in [(x, of_x), (w, of_w)] {
            arguments.address(place.codes);
            arguments.address(place.plane);
            matrix.give(&mut arguments);
        }
        arguments.address(to.value);
        arguments.address(to.allowed);
        let tiles = |of: Matrix| of.rows.div_ceil(TILE);
        let grid = LaunchConfig::of(tiles(x) * tiles(w), 256);
        // SAFETY: it reads both operands with their planes and writes an element of each matrix for each pair of rows.
        unsafe { self.exact.launch(self.stream.cuda()?, grid, &arguments) }
    }

    /// Compares a result of so many elements with an exact product on top of what was there before, once the stream is done.
    ///
    /// # Errors
    /// What the kernels before ended with.
    pub(crate) fn differ_exactly(
        &self,
        (got, dtype): (Address, Dtype),
        exact: Exactly,
        before: Option<Address>,
        count: u64,
    ) -> Result<Difference, Error> {
        let found: Local<u32> = Local::zeros(&self.stream, 2)?;
        let mut arguments = Arguments::new();
        arguments.address(got);
        arguments.number(elements::ours(dtype));
        for address in [exact.value, exact.allowed, before.unwrap_or_default()] {
            arguments.address(address);
        }
        arguments.bytes(&count.to_le_bytes());
        // One rounding to the type, and a hundredth for the quotient in f32.
        let relative = 1.01 * dtype.unit_roundoff() as f32;
        arguments.bytes(&relative.to_le_bytes());
        arguments.address(found.address());
        // SAFETY: it reads `count` elements of each matrix, which the caller's memory holds, and writes what was found.
        unsafe { self.differ.launch(self.stream.cuda()?, GRID, &arguments) }?;
        Difference::read(&found)
    }

    /// Tests the comparison on a product by cuBLASLt's layout of planes, computed here, and on one with a scale of another
    /// piece: a comparison that cannot fail says nothing.
    fn see_mistakes(&self) -> Result<(), Error> {
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
            let [codes_x, codes_w] =
                [x, w].map(|of| Local::<u8>::zeros(&self.stream, of.count() as usize));
            let [plane_x, plane_w] =
                [x, w].map(|of| Local::<f32>::zeros(&self.stream, of.scales() as usize));
            let (codes_x, codes_w, plane_x, plane_w) = (codes_x?, codes_w?, plane_x?, plane_w?);
            let coded = |codes: &Local<u8>, plane: &Local<f32>| Coded {
                codes: codes.address(),
                plane: plane.address(),
            };
            let (at_x, at_w) = (coded(&codes_x, &plane_x), coded(&codes_w, &plane_w));
            self.quantised(x, at_x, 1)?;
            self.quantised(w, at_w, 2)?;
            let count = x.rows as usize * w.rows as usize;
            let value: Local<u64> = Local::zeros(&self.stream, count)?;
            let allowed: Local<f32> = Local::zeros(&self.stream, count)?;
            let exact = Exactly {
                value: value.address(),
                allowed: allowed.address(),
            };
            self.exactly((x, at_x), (w, at_w), exact)?;
            let both = [
                (x, codes_x.read()?, plane_x.read()?),
                (w, codes_w.read()?, plane_w.read()?),
            ];
            let wrong = |moved: bool| -> Result<u64, Error> {
                let numbers = both
                    .each_ref()
                    .map(|(of, codes, plane)| dequantised(*of, codes, plane, moved));
                let got = Local::of(&self.stream, &product(&numbers[0], &numbers[1], 384))?;
                let found =
                    self.differ_exactly((got.address(), Dtype::F32), exact, None, count as u64)?;
                Ok(u64::from(found.wrong))
            };
            let (right, moved) = (wrong(false)?, wrong(true)?);
            let got = Local::of(&self.stream, &vec![f32::NAN; count])?;
            let nan =
                self.differ_exactly((got.address(), Dtype::F32), exact, None, count as u64)?;
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
    use crate::toolkit::compiler;

    #[test]
    fn what_measurements_of_fp8_run_on_the_gpu_compiles() {
        let Some(compiler) = compiler() else { return };
        let compiled = Fp8::compile(&compiler).unwrap_or_else(|error| panic!("{error}"));
        let frames = |name: &str| {
            let mut facts = compiled.facts.iter();
            let found = facts.find(|facts| facts.name == name);
            found.map(|facts| (facts.frame, facts.parameter_count))
        };
        let all = ["amaxes", "differ_exact", "exact", "quantise", "settle"].map(frames);
        assert_eq!(all, [3, 8, 8, 4, 3].map(|parameters| Some((0, parameters))));
    }

    #[test]
    fn planes_have_room_for_their_padding() {
        let of = |pieces| Matrix {
            rows: 130,
            depth: 272,
            dtype: Dtype::E4M3,
            pieces,
        };
        let all = [
            Pieces::Nothing,
            Pieces::Whole,
            Pieces::Rows,
            Pieces::OneBy128,
            Pieces::Square,
        ];
        let scales = all.map(|pieces| of(pieces).scales());
        assert_eq!(scales, [1, 1, 130, 3 * 132, 2 * 4]);
    }

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
}
