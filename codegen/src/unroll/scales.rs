//! What products read of scales of blocks, and what stores write.

use super::step::Span;
use crate::encoding::{BLOCK, ScaleBlock};
use crate::kernel::Kernel;
use crate::program::{Side, TensorId, Usage};
use crate::shape::Extent;

impl Kernel {
    /// What a product reads of the scales of an operand's blocks, if they travel: nobody writes others.
    pub(crate) fn scales_read(&self, operand: &Span) -> Option<Span> {
        let (scale, block) = self.block_scale(operand.buffer)?;
        let usage = self.buffers[scale.index()].usage;
        let read = || span_of((scale, usage), block, (operand.rows, operand.columns.len()));
        usage.is_gathered().then(read).map(|span| Span {
            home: operand.home,
            ..span
        })
    }
}

impl Kernel {
    /// What a store of an item writes of the scales of its 1×128 blocks.
    pub(crate) fn scales_made(&self, plane: TensorId, item: &Span) -> Span {
        let blocks = item.columns.in_blocks(BLOCK);
        let (rows, columns) = match self.buffers[plane.index()].usage.operand_rows() {
            Some(Side::Columns) => (blocks, item.rows),
            Some(Side::Rows) | None => (item.rows, blocks),
        };
        Span {
            buffer: plane,
            rows,
            columns,
            ..*item
        }
    }

    /// What a store of a tile writes of its scales, or a sum reads, if stores compute some.
    pub(crate) fn scales_of_tile(&self, tile: &Span) -> Option<Span> {
        Some(self.scales_made(self.made_of(tile.buffer)?, tile))
    }
}

/// Numbers of blocks, for each a number of each row, as the plane has them that is lines of them.
pub(crate) fn as_lines<T: Copy>(usage: Usage, lines: Vec<T>, rows: usize) -> Vec<T> {
    if usage.operand_rows() == Some(Side::Columns) || rows == 0 {
        return lines;
    }
    let blocks = lines.len() / rows;
    let of_row = |row: usize| (0..blocks).map(move |block| block * rows + row);
    (0..rows).flat_map(of_row).map(|at| lines[at]).collect()
}

/// What a scale of blocks has of so many rows and so much of K of its operand, in this rank's memory.
pub(crate) fn span_of(
    (scale, usage): (TensorId, Usage),
    block: ScaleBlock,
    (rows, depth): (Extent, u32),
) -> Span {
    let steps = Extent {
        start: 0,
        end: depth.div_ceil(BLOCK),
    };
    let rows = rows.in_blocks(block.rows());
    let (rows, columns) = match usage.operand_rows() {
        Some(Side::Columns) => (steps, rows),
        Some(Side::Rows) | None => (rows, steps),
    };
    Span {
        buffer: scale,
        home: 0,
        slot: 0,
        rows,
        columns,
    }
}
