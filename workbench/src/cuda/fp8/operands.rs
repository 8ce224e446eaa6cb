//! Operands of FP8: random numbers, quantised, and the share of them that each rank has.

use super::super::elements;
use super::super::numbers::{Draw, GRID, Numbers};
use super::Fp8;
use counterflow_codegen::dtype::Dtype;
use counterflow_quantise::{
    Fp8 as Codes, Granularity as Shared, Quantiser, Recipe, ScaleRule, Scaling,
};
use counterflow_runtime::cuda::Arguments;
use counterflow_runtime::driver::{Address, Element};
use counterflow_runtime::{Communicator, Error};
use float8::{F8E4M3, F8E5M2};
use half::bf16;

/// Pieces of an operand that have a scale each.
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

/// Address of an operand, and the plane of its scales.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Coded {
    pub codes: Address,
    pub plane: Address,
}

/// The rows of an operand that a rank has: a shard of so many, the one with its number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Share {
    pub rows: u32,
    pub rank: u32,
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

    fn shape(&self) -> [usize; 2] {
        [self.rows, self.depth].map(|size| size as usize)
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

    pub(super) fn give(&self, arguments: &mut Arguments) {
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

/// Source of operands of one kind on a rank.
pub(crate) struct OperandSource<'r> {
    rank: &'r Communicator,
    of: Matrix,
    quantiser: Quantiser<'r>,
}

impl<'r> OperandSource<'r> {
    /// Operands of that size, type and kind of scales: those of TransformerEngine.
    ///
    /// # Errors
    /// What the compiler or the driver refuses.
    pub(crate) fn new(rank: &'r Communicator, of: Matrix) -> Result<OperandSource<'r>, Error> {
        let to = match of.dtype {
            Dtype::E5M2 => Codes::E5M2,
            Dtype::E4M3 | Dtype::Bf16 | Dtype::F16 | Dtype::F32 => Codes::E4M3,
        };
        let rule = ScaleRule::transformer_engine(to);
        let (rule, shared) = match of.pieces {
            // An amax that is taken to be the largest code has the scale 1.
            Pieces::Nothing => (rule.with_eps(of.dtype.largest()), Shared::PerTensor),
            Pieces::Whole => (rule, Shared::PerTensor),
            Pieces::Rows => (rule, Shared::PerRow),
            Pieces::OneBy128 => (rule, Shared::BLOCK_1X128),
            Pieces::Square => (rule, Shared::BLOCK_128X128),
        };
        let recipe = Recipe::new(rule, Scaling::Current(shared), Dtype::Bf16);
        let quantiser = Quantiser::build(rank, recipe, of.shape())?;
        Ok(OperandSource {
            rank,
            of,
            quantiser,
        })
    }

    /// Quantises the normal numbers of a sequence, of bf16 as a model has them. The plane has room for [`Matrix::scales`]
    /// numbers.
    ///
    /// # Errors
    /// What the driver refuses.
    pub(crate) fn write(&self, numbers: &Numbers, to: Coded, seed: u64) -> Result<(), Error> {
        match self.of.dtype {
            Dtype::E5M2 => self.cast::<F8E5M2>(numbers, to, seed),
            Dtype::E4M3 | Dtype::Bf16 | Dtype::F16 | Dtype::F32 => {
                self.cast::<F8E4M3>(numbers, to, seed)
            }
        }
    }

    fn cast<T: Element>(&self, numbers: &Numbers, to: Coded, seed: u64) -> Result<(), Error> {
        let (rank, shape) = (self.rank, self.of.shape());
        let source = rank.zeros::<bf16>(shape)?;
        let draw = Draw {
            seed,
            first: 0,
            count: self.of.count(),
        };
        numbers.normal(source.address(), Dtype::Bf16, draw)?;
        let scales = [self.of.scales() as usize];
        // SAFETY: the caller's memory has a code for each element, and as many scales; both outlive this call, which waits.
        let mut codes = unsafe { rank.tensor_from_raw::<T>(to.codes.get(), shape)? };
        // SAFETY: as above.
        let mut plane = unsafe { rank.tensor_from_raw::<f32>(to.plane.get(), scales)? };
        let launch = self.quantiser.on(rank, shape).x(&source);
        launch.codes(&mut codes).scales(&mut plane).launch()?.wait()
    }
}

impl Fp8 {
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

    /// Shares the numbers of a plane out into `count` numbers. Each shard has those of 1×128 to itself there, as
    /// schedules gather them.
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

    /// Scales of 1×128, gathered shard by shard, as a plane of all rows.
    ///
    /// # Errors
    /// What the driver refuses.
    pub(crate) fn join_shards(
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
        // SAFETY: it reads as many numbers as the shards have and writes some of the plane, which the caller's memory holds.
        unsafe {
            self.join_shards
                .launch(self.stream.cuda()?, GRID, &arguments)
        }
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
