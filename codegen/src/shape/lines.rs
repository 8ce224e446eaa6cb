//! A rank's part of a buffer in memory: the length of its lines, and the number of chunks in each slot.

use super::Geometry;
use crate::encoding::ScaleBlock;
use crate::kernel::Buffer;

impl Geometry {
    /// Number of chunks of its rows that a rank holds in each slot of a buffer: its own, or all.
    pub fn held_chunks(&self, buffer: &Buffer) -> u32 {
        match buffer.chunk_only() {
            true => 1,
            false => self.chunks(buffer.rows),
        }
    }

    /// Elements of a buffer that are adjacent in memory.
    pub fn contiguous(&self, buffer: &Buffer) -> u32 {
        adjacent(
            buffer,
            self.chunk_rows(buffer.rows),
            self.size(buffer.columns),
        )
    }

    /// Contiguous lines in the largest launch of the series.
    pub(crate) fn most_contiguous(&self, buffer: &Buffer) -> u32 {
        adjacent(
            buffer,
            self.most_chunk_rows(buffer.rows),
            self.most(buffer.columns),
        )
    }
}

/// Elements side by side in a buffer whose chunks and rows are so long.
fn adjacent(buffer: &Buffer, chunk: u32, columns: u32) -> u32 {
    match (buffer.mn_major, buffer.usage.blocks()) {
        (true, block) if buffer.is_scratch() => {
            // Operands in scratch are padded as scales of f32 are.
            chunk.next_multiple_of(block.unwrap_or(ScaleBlock::F32_1X128).line())
        }
        (true, _) => chunk,
        (false, Some(block)) => columns.next_multiple_of(block.line()),
        (false, None) => columns,
    }
}
