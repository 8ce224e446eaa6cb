//! How the numbers of a tensor are encoded: their type, the scale that belongs to them, and who computes it.

mod asked;
mod block;
pub mod bounds;
mod granularity;
pub mod rule;
mod scales;

use crate::dtype::Dtype;
pub use asked::{Asked, Encodings, Tensors};
pub use block::{PROMOTION_INTERVAL, ScaleBlock};
pub use granularity::Granularity;
use rule::ScaleRule;
pub use scales::Scales;
use std::fmt;

/// Encoding of the numbers of a tensor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Encoding {
    /// Their type.
    pub element: Dtype,
    /// The scale that belongs to them, if there is one.
    pub scale: Option<Scaling>,
    /// A launch measures their largest absolute value, before the scale.
    pub amax: bool,
}

/// A scale: what it is of, and who computes it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Scaling {
    /// Given by the caller: an operand of products is multiplied by it, an output before it is rounded; a hidden layer is so stored, and
    /// products of it are divided by it.
    Given(Along),
    /// Stores compute it by that rule, for each block of an output or of partial sums ([`Scaling::blocks`]).
    Computed(ScaleRule),
}

impl Scaling {
    /// The blocks of which it has a number each, if it is of blocks.
    pub const fn blocks(self) -> Option<ScaleBlock> {
        match self {
            Scaling::Given(Along::Blocks(block)) => Some(block),
            Scaling::Computed(rule) => Some(rule.block()),
            Scaling::Given(Along::All | Along::Rows | Along::Columns) => None,
        }
    }

    /// The rule by which stores compute it, if they do.
    pub const fn rule(self) -> Option<ScaleRule> {
        match self {
            Scaling::Computed(rule) => Some(rule),
            Scaling::Given(_) => None,
        }
    }

    /// Elements of the tensor that share a scale.
    pub const fn granularity(self) -> Granularity {
        match (self, self.blocks()) {
            (_, Some(block)) => Granularity::Block(block),
            (Scaling::Given(Along::Rows | Along::Columns), None) => Granularity::PerRow,
            (Scaling::Given(Along::All | Along::Blocks(_)) | Scaling::Computed(_), None) => {
                Granularity::PerTensor
            }
        }
    }
}

impl fmt::Display for Along {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Along::All => f.write_str("whole"),
            Along::Rows | Along::Columns => f.write_str("rows"),
            Along::Blocks(block) => block.fmt(f),
        }
    }
}

/// Elements of a product that share a scale's number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Along {
    /// All have the only one.
    All,
    /// Rows: a number for each row of the first operand.
    Rows,
    /// Columns: a number for each row of the second operand.
    Columns,
    /// None has: each block of the operand has one, which goes into every sum over the columns of a block. Rows of the plane are
    /// blocks of K for blocks of one row, and its columns the operand's rows; otherwise they are blocks of the operand's rows and of
    /// K. Lines of the plane are padded ([`ScaleBlock::line`]). Where scales of blocks of one row travel, each shard is a plane of
    /// its own, and in a kernel the rows are the operand's, which lie side by side in memory.
    Blocks(ScaleBlock),
}
