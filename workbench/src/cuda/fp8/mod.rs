//! Operands of FP8: random numbers quantised by the usual recipe, and the exact products that results are compared with.

mod mistakes;

use super::elements;
use super::numbers::{Difference, GRID};
use counterflow_codegen::dtype::Dtype;
use counterflow_runtime::Error;
use counterflow_runtime::cuda::{Arguments, Function, LaunchConfig, Module};
use counterflow_runtime::driver::{Address, Gpu, Local, Stream};
use counterflow_runtime::jit::{Compiled, Compiler, Source, Target};

const TEXT: &str = concat!(include_str!("../numbers.cu"), include_str!("fp8.cu"));

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

/// What a result is the sum of: exact products, and how they were added.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Terms {
    /// The first.
    pub exact: Exactly,
    /// Bytes from one to the next.
    pub stride: u64,
    /// How many.
    pub parts: u32,
    /// How often sums of them were rounded to the result's type before the last time, at most.
    pub rounded: u32,
}

/// The rows of an operand that a rank has: a chunk of so many, the one with its number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Share {
    pub rows: u32,
    pub rank: u32,
}

/// What makes and checks them on one GPU.
#[derive(Debug)]
pub(crate) struct Fp8 {
    amaxes: Function,
    quantise: Function,
    settle: Function,
    share_codes: Function,
    share_scales: Function,
    join_chunks: Function,
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
            share_codes: module.function("share_codes", 0)?,
            share_scales: module.function("share_scales", 0)?,
            join_chunks: module.function("join_chunks", 0)?,
            exact: module.function("exact", 0)?,
            differ: module.function("differ_exact", 0)?,
            stream: stream.clone(),
        };
        fp8.see_mistakes()?;
        fp8.see_missing_terms()?;
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

    /// A rank's share of codes in memory for all of them, and NaN where its peers' come.
    ///
    /// # Errors
    /// What the driver refuses.
    pub(crate) fn share_codes(
        &self,
        of: Matrix,
        (from, to): (Address, Address),
        share: Share,
    ) -> Result<(), Error> {
        let arguments = shared((to, from), of, share);
        // SAFETY: it reads and writes an element for each code, which the caller's memory holds.
        unsafe {
            self.share_codes
                .launch(self.stream.cuda()?, GRID, &arguments)
        }
    }

    /// The same of a plane, into `count` numbers. Each chunk has those of 1×128 to itself there, as schedules gather them.
    ///
    /// # Errors
    /// What the driver refuses.
    pub(crate) fn share_scales(
        &self,
        of: Matrix,
        (from, to): (Address, Address),
        (share, count): (Share, u64),
    ) -> Result<(), Error> {
        let mut arguments = shared((to, from), of, share);
        arguments.bytes(&count.to_le_bytes());
        // SAFETY: it reads the plane of all rows and writes `count` numbers, which the caller's memory holds.
        unsafe {
            self.share_scales
                .launch(self.stream.cuda()?, GRID, &arguments)
        }
    }

    /// Scales of 1×128, gathered chunk by chunk, as a plane of all rows.
    ///
    /// # Errors
    /// What the driver refuses.
    pub(crate) fn join_chunks(
        &self,
        of: Matrix,
        (from, to): (Address, Address),
        rows: u32,
    ) -> Result<(), Error> {
        let mut arguments = Arguments::new();
        arguments.address(to);
        arguments.address(from);
        of.give(&mut arguments);
        arguments.number(rows);
        // SAFETY: it reads as many numbers as the chunks have and writes some of the plane, which the caller's memory holds.
        unsafe {
            self.join_chunks
                .launch(self.stream.cuda()?, GRID, &arguments)
        }
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

    /// Compares a result of so many elements with the sum of exact products on top of what was there before, once the stream
    /// is done.
    ///
    /// # Errors
    /// What the kernels before ended with.
    pub(crate) fn differ_exactly(
        &self,
        (got, dtype): (Address, Dtype),
        terms: Terms,
        before: Option<Address>,
        count: u64,
    ) -> Result<Difference, Error> {
        let found: Local<u32> = Local::zeros(&self.stream, 2)?;
        let mut arguments = Arguments::new();
        arguments.address(got);
        arguments.number(elements::ours(dtype));
        for address in [terms.exact.value, terms.exact.allowed] {
            arguments.address(address);
        }
        arguments.bytes(&terms.stride.to_le_bytes());
        arguments.number(terms.parts);
        arguments.address(before.unwrap_or_default());
        arguments.bytes(&count.to_le_bytes());
        for bound in terms.bounds(dtype) {
            arguments.bytes(&bound.to_le_bytes());
        }
        arguments.address(found.address());
        // SAFETY: it reads `count` elements of each matrix, which the caller's memory holds, and writes what was found.
        unsafe { self.differ.launch(self.stream.cuda()?, GRID, &arguments) }?;
        Difference::read(&found)
    }
}

impl Exactly {
    /// One product.
    pub(crate) fn alone(self) -> Terms {
        Terms {
            exact: self,
            stride: 0,
            parts: 1,
            rounded: 0,
        }
    }
}

impl Terms {
    /// What roundings may change: the last one, of the result's size, and those before, of the sizes of all terms together.
    fn bounds(&self, dtype: Dtype) -> [f32; 2] {
        // A hundredth more, for the quotient in f32.
        let last = 1.01 * dtype.unit_roundoff() as f32;
        // Sums in f32 are rounded, too. What is rounded again is larger by what it was rounded before.
        let of_f32 = self.parts.saturating_sub(1) as f32 * Dtype::F32.unit_roundoff() as f32;
        let between = 1.02 * (self.rounded as f32 * dtype.unit_roundoff() as f32 + of_f32);
        [last, between]
    }
}

/// The arguments of what shares something out.
fn shared((to, from): (Address, Address), of: Matrix, share: Share) -> Arguments {
    let mut arguments = Arguments::new();
    arguments.address(to);
    arguments.address(from);
    of.give(&mut arguments);
    arguments.number(share.rows);
    arguments.number(share.rank);
    arguments
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
        let kernels = [
            ("amaxes", 3),
            ("differ_exact", 11),
            ("exact", 8),
            ("join_chunks", 4),
            ("quantise", 4),
            ("settle", 3),
            ("share_codes", 5),
            ("share_scales", 6),
        ];
        for (name, parameters) in kernels {
            assert_eq!(frames(name), Some((0, parameters)), "{name}");
        }
    }

    /// A lost term is larger than what is allowed for all of them, in worlds as large as are measured.
    #[test]
    fn what_sums_are_allowed_hides_no_term() {
        let exact = Exactly {
            value: Address::default(),
            allowed: Address::default(),
        };
        let terms = |parts, rounded| Terms {
            parts,
            rounded,
            ..exact.alone()
        };
        let unit = Dtype::Bf16.unit_roundoff() as f32;
        let [last, between] = exact.alone().bounds(Dtype::Bf16);
        assert!(last > unit && last < 1.02 * unit && between == 0.0);
        for parts in 2..=8 {
            let [_, once] = terms(parts, 1).bounds(Dtype::Bf16);
            let [_, each] = terms(parts, parts).bounds(Dtype::Bf16);
            assert!(once > unit && once < 1.03 * unit, "{parts}: {once}");
            assert!(each > parts as f32 * unit && parts as f32 * each < 0.5);
        }
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
}
