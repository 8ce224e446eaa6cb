//! Shards: the parts of a divided dimension, and who owns them.

use super::{DimGeometry, Extent, Geometry};
use crate::diag::{Diagnostic, Rule};
use crate::kernel::{DimId, Kernel};

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

    /// True if some items may be in several shards.
    pub(crate) fn is_across(&self) -> bool {
        let mut partitions = self.partitions.iter();
        partitions.any(|partition| partition.across && self.chunks(partition.rows) > 1)
    }

    /// Rejects fewer rows than the largest launch has, where items are in several shards: which those are depends on the rows,
    /// and the launches of a series are proved together by items of one shard.
    pub(super) fn check_across(&self, kernel: &Kernel, found: &mut Vec<Diagnostic>) {
        for partition in self.partitions.iter().filter(|partition| partition.across) {
            let DimGeometry { size, largest, .. } = self.dims[usize::from(partition.rows.0)];
            if size == largest || self.chunks(partition.rows) == 1 {
                continue;
            }
            let name = &kernel.dims[usize::from(partition.rows.0)].name;
            let message = format!(
                "{name} is {size} in a series of up to {largest}, and tiles of `{}` are in several shards",
                partition.name
            );
            let hint = format!("make a series for {name} = {size}");
            found.push(Diagnostic::new(Rule::Shape, None, message).hint(hint));
        }
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
            _ => self.chunk_rows(dim),
        };
        rows.divided(0, each)
    }
}
