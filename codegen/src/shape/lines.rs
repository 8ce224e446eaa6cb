//! A rank's part of a buffer in memory: the length of its lines, and the number of shards in each slot.

use super::Geometry;
use crate::encoding::ScaleBlock;
use crate::kernel::Buffer;

impl Geometry {
    /// Number of shards of its rows that a rank holds in each slot of a buffer: its own, or all.
    pub fn held_shards(&self, buffer: &Buffer) -> u32 {
        match buffer.shard_only() {
            true => 1,
            false => self.shards(buffer.rows),
        }
    }

    /// Elements of a buffer that are adjacent in memory.
    pub fn contiguous(&self, buffer: &Buffer) -> u32 {
        adjacent(
            buffer,
            self.shard_rows(buffer.rows),
            self.size(buffer.columns),
        )
    }

    /// Contiguous lines in the largest launch of the series.
    pub(crate) fn most_contiguous(&self, buffer: &Buffer) -> u32 {
        adjacent(
            buffer,
            self.most_shard_rows(buffer.rows),
            self.most(buffer.columns),
        )
    }
}

/// Elements side by side in a buffer whose shards and rows are so long.
fn adjacent(buffer: &Buffer, shard: u32, columns: u32) -> u32 {
    match (buffer.mn_major, buffer.usage.blocks()) {
        (true, block) if buffer.is_scratch() => {
            // Operands in scratch are padded as scales of f32 are.
            shard.next_multiple_of(block.unwrap_or(ScaleBlock::F32_1X128).line())
        }
        (true, _) => shard,
        (false, Some(block)) => columns.next_multiple_of(block.line()),
        (false, None) => columns,
    }
}
