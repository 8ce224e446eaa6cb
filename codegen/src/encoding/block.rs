//! Blocks of elements that share a scale, and how much of K is summed before it is promoted.

use crate::dtype::Dtype;
use std::fmt;

/// Elements of K that tensor cores sum before the sum is promoted, where no scale of blocks says how many.
pub const PROMOTION_INTERVAL: u32 = 128;

/// Bytes that a line of scales of blocks is padded to: cuBLASLt and TransformerEngine have it so, and TMA wants it.
const LINE_BYTES: u32 = 16;

/// Block of an operand's elements that share a scale, and the type of that scale in memory.
///
/// ```
/// use counterflow_codegen::dtype::Dtype;
/// use counterflow_codegen::encoding::ScaleBlock;
///
/// let ScaleBlock { rows, columns, element } = ScaleBlock::F32_1X128;
/// assert_eq!((rows, columns, element), (1, 128, Dtype::F32));
/// assert_eq!(ScaleBlock::ALL.map(|block| block.to_string()), ["1×128", "128×128"]);
/// assert!(ScaleBlock::F32_1X128.is_1d() && !ScaleBlock::F32_128X128.is_1d());
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ScaleBlock {
    /// Adjacent rows; the last block may have fewer.
    pub rows: u32,
    /// Adjacent columns, which are along K; the last block may have fewer.
    pub columns: u32,
    /// Element type of the scale.
    pub element: Dtype,
}

impl ScaleBlock {
    /// 128 elements of a row, with a scale of f32.
    pub const F32_1X128: ScaleBlock = ScaleBlock {
        rows: 1,
        columns: 128,
        element: Dtype::F32,
    };
    /// 128 elements of each of 128 rows, with a scale of f32.
    pub const F32_128X128: ScaleBlock = ScaleBlock {
        rows: 128,
        columns: 128,
        element: Dtype::F32,
    };
    /// Blocks that operands may have.
    pub const ALL: [ScaleBlock; 2] = [ScaleBlock::F32_1X128, ScaleBlock::F32_128X128];

    /// True if a block is part of one row.
    pub const fn is_1d(self) -> bool {
        self.rows == 1
    }

    /// Number of scales that a line of them is padded to a multiple of.
    pub const fn line(self) -> u32 {
        LINE_BYTES / self.element.bytes()
    }

    /// Number that a rank's rows are a multiple of where ranks divide the operand's rows: TMA begins at 16 bytes of a
    /// line of scales, and no two ranks share a block.
    pub(crate) const fn shard_unit(self) -> u32 {
        match self.is_1d() {
            true => self.line(),
            false => self.rows,
        }
    }
}

/// Rows by columns; the scale's type where it is not f32.
impl fmt::Display for ScaleBlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}×{}", self.rows, self.columns)?;
        match self.element {
            Dtype::F32 => Ok(()),
            element => write!(f, " of {element}"),
        }
    }
}
