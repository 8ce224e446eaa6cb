//! Blocks of FP8 operands: how much of K is summed before it is promoted, and which elements share a scale.

/// Elements of K that tensor cores sum before the sum is promoted.
pub const BLOCK: u32 = 128;

/// A line of scales of blocks is padded to a multiple of so many: cuBLASLt and TransformerEngine have it so, and TMA wants it.
pub(crate) const SCALES_LINE: u32 = 4;

/// Elements of an operand that share a scale.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum ScaleBlock {
    /// 1×128: those of a row.
    Line,
    /// 128×128.
    Square,
}

impl ScaleBlock {
    /// Rows of the operand that it has.
    pub const fn rows(self) -> u32 {
        match self {
            ScaleBlock::Line => 1,
            ScaleBlock::Square => BLOCK,
        }
    }

    /// Number that a rank's rows are a multiple of where ranks divide the operand's rows: TMA begins at 16 bytes of a
    /// line of scales, and no two ranks share a block.
    pub(crate) const fn chunk_unit(self) -> u32 {
        match self {
            ScaleBlock::Line => 4,
            ScaleBlock::Square => BLOCK,
        }
    }
}
