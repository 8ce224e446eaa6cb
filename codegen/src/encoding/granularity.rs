//! Elements that share a scale, and the shape of a tensor's scales in memory.

use super::ScaleBlock;
use std::fmt;

/// Elements of a tensor that share a scale.
///
/// ```
/// use counterflow_codegen::encoding::Granularity;
///
/// let shape = [5, 300]; // rows, and elements along K
/// assert_eq!(Granularity::PerTensor.count(shape), [1, 1]);
/// assert_eq!(Granularity::PerRow.count(shape), [5, 1]);
/// assert_eq!(Granularity::BLOCK_1X128.count(shape), [5, 3]);
/// assert_eq!(Granularity::BLOCK_128X128.count([129, 300]), [2, 3]);
/// assert_eq!(Granularity::BLOCK_1X128.to_string(), "1×128");
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Granularity {
    /// All elements.
    PerTensor,
    /// Elements of a row.
    PerRow,
    /// Elements of a block.
    Block(ScaleBlock),
}

impl Granularity {
    /// 128 adjacent elements of a row. The last block of a row may be short.
    pub const BLOCK_1X128: Granularity = Granularity::Block(ScaleBlock::F32_1X128);
    /// 128 adjacent elements of each of 128 rows. The last blocks may be smaller.
    pub const BLOCK_128X128: Granularity = Granularity::Block(ScaleBlock::F32_128X128);

    /// Rows and columns of the elements that share a scale, in a matrix of that shape.
    pub fn extent(self, [rows, columns]: [usize; 2]) -> [usize; 2] {
        match self {
            Granularity::PerTensor => [rows.max(1), columns.max(1)],
            Granularity::PerRow => [1, columns.max(1)],
            Granularity::Block(block) => [block.rows as usize, block.columns as usize],
        }
    }

    /// Number of scales along the rows and along the columns of a matrix of that shape.
    pub fn count(self, shape: [usize; 2]) -> [usize; 2] {
        let [rows, columns] = self.extent(shape);
        match self {
            Granularity::PerTensor => [1, 1],
            Granularity::PerRow => [shape[0], 1],
            Granularity::Block(_) => [shape[0].div_ceil(rows), shape[1].div_ceil(columns)],
        }
    }

    /// Rows and columns of the tensor that has the scales of a matrix of that shape, as launches read and write it: one
    /// number; a column with a number for each row; 1×128 `[⌈K/128⌉][rows padded to 4]`; 128×128 `[⌈rows/128⌉][⌈K/128⌉ padded to 4]`.
    ///
    /// ```
    /// use counterflow_codegen::encoding::Granularity;
    ///
    /// assert_eq!(Granularity::PerRow.scales([5, 300]), [5, 1]);
    /// assert_eq!(Granularity::BLOCK_1X128.scales([5, 300]), [3, 8]);
    /// assert_eq!(Granularity::BLOCK_128X128.scales([129, 300]), [2, 4]);
    /// ```
    pub fn scales(self, shape: [usize; 2]) -> [usize; 2] {
        let [rows, columns] = self.count(shape);
        match self {
            Granularity::PerTensor | Granularity::PerRow => [rows, columns],
            Granularity::Block(block) => {
                let line = block.line() as usize;
                match block.is_1d() {
                    true => [columns, rows.next_multiple_of(line)],
                    false => [rows, columns.next_multiple_of(line)],
                }
            }
        }
    }
}

impl fmt::Display for Granularity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Granularity::PerTensor => f.write_str("the whole tensor"),
            Granularity::PerRow => f.write_str("each row"),
            Granularity::Block(block) => block.fmt(f),
        }
    }
}
