//! Shards: the parts of a divided dimension, and who owns them.

use super::{Extent, Geometry};
use crate::kernel::DimId;

impl Geometry {
    /// The shard that a row is in. There is one if the dimension is not divided.
    pub fn shard_at(&self, dim: DimId, row: u32) -> u32 {
        match self.shards(dim) {
            1 => 0,
            _ => row / self.shard_rows(dim).max(1),
        }
    }

    /// The rank that owns a shard.
    pub const fn owner(&self, shard: u32) -> u32 {
        shard
    }

    /// True if some items may be in several shards.
    pub(crate) fn is_across(&self) -> bool {
        let mut partitions = self.partitions.iter();
        partitions.any(|partition| partition.across && self.shards(partition.rows) > 1)
    }

    /// The rows that a rank owns.
    pub fn owned(&self, dim: DimId, rank: u32) -> Extent {
        self.shard(dim, rank)
    }

    /// Rows, divided where shards are. What is empty is in one shard.
    pub(crate) fn by_shard(
        &self,
        dim: DimId,
        rows: Extent,
    ) -> impl Iterator<Item = Extent> + Clone + use<> {
        let each = match self.shards(dim) {
            1 => u32::MAX,
            _ => self.shard_rows(dim),
        };
        rows.divided(0, each)
    }
}
