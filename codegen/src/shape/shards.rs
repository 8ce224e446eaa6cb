//! Shards: the parts of a divided dimension, and who owns them.

use super::{Extent, Geometry};
use crate::kernel::DimId;

impl Geometry {
    /// The shard that a row is in. There is one if the dimension is not divided.
    pub fn shard(&self, dim: DimId, row: u32) -> u32 {
        match self.chunks(dim) {
            1 => 0,
            _ => row / self.chunk_rows(dim).max(1),
        }
    }

    /// The rank that owns a shard.
    pub const fn owner(&self, shard: u32) -> u32 {
        shard
    }

    /// The rows that a rank owns.
    pub fn owned(&self, dim: DimId, rank: u32) -> Extent {
        self.chunk(dim, rank)
    }

    /// Rows, divided where shards are. What is empty is in one shard.
    pub(crate) fn by_shard(
        &self,
        dim: DimId,
        rows: Extent,
    ) -> impl Iterator<Item = Extent> + Clone + use<> {
        let each = match self.chunks(dim) {
            1 => u32::MAX,
            _ => self.chunk_rows(dim).max(1),
        };
        let last = rows.end.saturating_sub(1).max(rows.start);
        (rows.start / each..=last / each).map(move |shard| Extent {
            start: rows.start.max(shard * each),
            end: rows.end.min(shard.saturating_add(1).saturating_mul(each)),
        })
    }
}
