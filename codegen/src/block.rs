//! Blocks of FP8 operands: how much of K is summed before it is promoted, and which elements share a scale.

/// How much of K is summed by tensor cores before it is promoted.
pub const BLOCK: u32 = 128;

/// Which elements of an operand share a scale.
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
}
