//! Exact products, and results beside sums of them.

use super::super::elements;
use super::super::numbers::{Difference, GRID};
use super::{Coded, Fp8, Matrix};
use counterflow_codegen::bounds::Magnitude;
use counterflow_codegen::dtype::Dtype;
use counterflow_codegen::shape::Extent;
use counterflow_runtime::Error;
use counterflow_runtime::cuda::{Arguments, LaunchConfig};
use counterflow_runtime::driver::{Address, Local};

/// Rows and columns of a CTA of `exact`.
const TILE: u32 = 64;

/// An exact product: f64 numbers, and how far off f32 sums of tensor cores may be from each.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Exactly {
    pub value: Address,
    pub allowed: Address,
}

/// Terms of a result: exact products, and how they were added.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Terms {
    /// The first.
    pub exact: Exactly,
    /// Bytes from one to the next.
    pub stride: u64,
    /// Number of parts.
    pub parts: u32,
    /// Most times that sums of them were rounded to the result's type before the last time.
    pub rounded: u32,
    /// If they were codes before they were added, or are the result's.
    pub narrowed: Option<Narrowed>,
}

/// Products as codes with scales of 1×128.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Narrowed {
    /// Loss of the least code in each row and 128 columns of the first product, in f32. The others are as far from it
    /// as the products.
    pub least: Address,
    /// Relative loss besides.
    pub loses: f64,
    /// Rows of a shard, if a rank adds its own products of its shard as they are.
    pub shard: Option<u32>,
}

/// A result: those rows of a matrix with so many columns, one after another.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Got {
    pub at: Address,
    pub dtype: Dtype,
    pub rows: Extent,
    pub columns: u32,
    pub scale: Scale,
}

/// The scale of a result.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum Scale {
    /// Multiplied by this.
    Given(f32),
    /// Each row and 128 columns of it are to be multiplied by their number in a plane: lines of so many.
    Plane { at: Address, pitch: u32 },
}

impl Scale {
    pub(super) const NONE: Scale = Scale::Given(1.0);
}

impl Got {
    /// All of a result without scales.
    pub(crate) fn plain((at, dtype): (Address, Dtype), rows: u32, columns: u32) -> Got {
        Got {
            at,
            dtype,
            rows: Extent {
                start: 0,
                end: rows,
            },
            columns,
            scale: Scale::NONE,
        }
    }
}

impl Fp8 {
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

    /// Compares operands of another type, given their product in f32, whose elements may be so far off.
    ///
    /// # Errors
    /// What the driver refuses.
    pub(crate) fn widened(
        &self,
        product: Address,
        (count, off): (u64, f32),
        to: Exactly,
    ) -> Result<(), Error> {
        let mut arguments = Arguments::new();
        for address in [to.value, to.allowed, product] {
            arguments.address(address);
        }
        arguments.bytes(&count.to_le_bytes());
        arguments.bytes(&off.to_le_bytes());
        // SAFETY: it reads `count` elements of the product and writes as many of each matrix.
        unsafe { self.widened.launch(self.stream.cuda()?, GRID, &arguments) }
    }

    /// The largest size in each 128 columns of each row, row by row, once the stream is done.
    ///
    /// # Errors
    /// What the kernels before ended with.
    pub(crate) fn magnitudes(
        &self,
        exact: Exactly,
        [rows, columns]: [u32; 2],
    ) -> Result<Vec<Magnitude>, Error> {
        const NUMBERS: usize = 3;
        let blocks = rows as usize * columns.div_ceil(128) as usize;
        let found: Local<u64> = Local::zeros(&self.stream, NUMBERS * blocks)?;
        let mut arguments = Arguments::new();
        for address in [found.address(), exact.value, exact.allowed] {
            arguments.address(address);
        }
        arguments.number(rows);
        arguments.number(columns);
        // SAFETY: it reads an element of each matrix for each row and column, which the caller's memory holds, and writes three
        // numbers a block.
        unsafe {
            self.magnitudes
                .launch(self.stream.cuda()?, GRID, &arguments)
        }?;
        let found = found.read()?;
        let each = found.chunks_exact(NUMBERS).map(|bits| Magnitude {
            value: f64::from_bits(bits[0]),
            least: f64::from_bits(bits[1]),
            most: f64::from_bits(bits[2]),
        });
        Ok(each.collect())
    }

    /// Compares a result with the sum of exact products on top of what was there before, once the stream is done.
    ///
    /// # Errors
    /// What the kernels before ended with.
    pub(crate) fn differ_exactly(
        &self,
        got: Got,
        terms: Terms,
        before: Option<Address>,
    ) -> Result<Difference, Error> {
        let found: Local<u32> = Local::zeros(&self.stream, 2)?;
        let none = Address::default();
        let (plane, pitch, given) = match got.scale {
            Scale::Given(given) => (none, 0, given),
            Scale::Plane { at, pitch } => (at, pitch, 1.0),
        };
        let bounds = terms.bounds(got.dtype, got.scale);
        let mut arguments = Arguments::new();
        arguments.address(got.at);
        arguments.number(elements::ours(got.dtype));
        arguments.address(plane);
        arguments.number(pitch);
        arguments.bytes(&given.to_le_bytes());
        let narrowed = terms.narrowed;
        let least = narrowed.map_or(none, |narrowed| narrowed.least);
        for address in [terms.exact.value, terms.exact.allowed, least] {
            arguments.address(address);
        }
        arguments.bytes(&terms.stride.to_le_bytes());
        arguments.number(terms.parts);
        arguments.number(narrowed.and_then(|narrowed| narrowed.shard).unwrap_or(0));
        arguments.address(before.unwrap_or_default());
        arguments.number(got.rows.start);
        arguments.number(got.columns);
        let count = u64::from(got.rows.len()) * u64::from(got.columns);
        arguments.bytes(&count.to_le_bytes());
        for number in [bounds.loses, bounds.floor, bounds.limit] {
            arguments.bytes(&number.to_le_bytes());
        }
        for number in [bounds.last, bounds.between] {
            arguments.bytes(&number.to_le_bytes());
        }
        arguments.address(found.address());
        // SAFETY: it reads an element of each matrix for each row and column of the result, and a number of each plane for their
        // blocks, which the caller's memory holds, and writes what was found.
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
            narrowed: None,
        }
    }
}
