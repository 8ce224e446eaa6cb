//! Rows and columns as one concept: the sides of a partition, and which of them is divided over the ranks.

use super::{Axis, DimId, Kernel, Partition};
use crate::program::{PartitionId, Side, TensorId, Var};
use crate::tiling::Tile;

impl Partition {
    /// The dimension that a side of it divides.
    pub const fn dim(&self, side: Side) -> DimId {
        match side {
            Side::Rows => self.rows,
            Side::Columns => self.columns,
        }
    }

    /// Elements of an item along a side; `None`: all of the shard.
    pub const fn block(&self, side: Side) -> Option<u32> {
        match side {
            Side::Rows => self.row_block,
            Side::Columns => self.column_block,
        }
    }

    /// True if its items are tiles of that shape.
    pub(crate) fn is_tile(&self, tile: Tile) -> bool {
        (self.row_block, self.column_block) == (Some(tile.rows), Some(tile.columns))
    }

    /// The side of it that divides a dimension.
    pub fn side_of(&self, dim: DimId) -> Option<Side> {
        Side::ALL.into_iter().find(|side| self.dim(*side) == dim)
    }

    /// Side that its shards divide: its rows if ranks divide those, or else its columns. Its other side is whole in
    /// every shard, also where ranks divide that elsewhere.
    pub(crate) fn sharded_side(&self, sharded: impl Fn(DimId) -> bool) -> Option<Side> {
        let mut sides = Side::ALL.into_iter().filter(|_| !self.across);
        sides.find(|side| sharded(self.dim(*side)))
    }

    /// Shards whose items hold a side of one of another partition's items.
    pub(crate) fn shard_of(
        &self,
        (items, side): (&Partition, Side),
        sharded: impl Fn(DimId) -> bool,
    ) -> WhichShard {
        let along = self.side_of(items.dim(side));
        match self.sharded_side(&sharded) {
            None => WhichShard::Only,
            own if own == along && items.sharded_side(&sharded) == Some(side) => WhichShard::Items,
            Some(own) if items.across && along == Some(own) => WhichShard::Each,
            Some(_) => WhichShard::Several,
        }
    }
}

/// Shard of a partition that something is in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum WhichShard {
    /// There is only one.
    Only,
    /// In that of the item.
    Items,
    /// In those of the shards that the item is in.
    Each,
    /// In several.
    Several,
}

impl Axis {
    /// One side of an item's rectangle.
    pub const fn of(var: Var, side: Side) -> Axis {
        match side {
            Side::Rows => Axis::RowsOf(var),
            Side::Columns => Axis::ColumnsOf(var),
        }
    }
}

impl Kernel {
    /// True if a dimension is divided over the ranks.
    ///
    /// ```
    /// # use counterflow_codegen::{lower::lower, program::{PartitionId, Side}, variant::Variant};
    /// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/example.rs")); }
    /// let kernel = lower(&example::ag_gemm(), &Variant::new(2))?;
    /// let chunks = PartitionId(0);
    /// assert_eq!(kernel.sharded_side(chunks), Some(Side::Rows), "each rank has some rows of x");
    /// assert!(!kernel.is_sharded_along(chunks, Side::Columns));
    /// assert!(kernel.is_sharded(kernel.partitions[0].rows));
    /// # Ok::<(), counterflow_codegen::diag::Diagnostics>(())
    /// ```
    pub fn is_sharded(&self, dim: DimId) -> bool {
        self.dims[usize::from(dim.0)].sharded
    }

    /// True if the shard that a partition's item is in says which shard of a tensor's side its box is in: that side, or the
    /// blocks of it, are what the partition's shards divide.
    pub(crate) fn is_shard_of(&self, partition: PartitionId, tensor: TensorId, side: Side) -> bool {
        let buffer = &self.buffers[tensor.index()];
        let own = match side {
            Side::Rows => buffer.rows,
            Side::Columns => buffer.columns,
        };
        let by = self.sharded_side(partition);
        let by = by.map(|side| self.partitions[partition.index()].dim(side));
        by == Some(own) || by == Some(self.counted_by(own))
    }

    /// True if an item of a partition may have rows of several shards of that dimension, or of blocks of them.
    pub(crate) fn is_across(&self, partition: PartitionId, dim: DimId) -> bool {
        let of = &self.partitions[partition.index()];
        of.across && self.is_sharded(of.rows) && [dim, self.counted_by(dim)].contains(&of.rows)
    }

    /// The size whose blocks a size counts, or itself.
    pub(crate) fn counted_by(&self, dim: DimId) -> DimId {
        let Some(blocks) = &self.dims[usize::from(dim.0)].blocks else {
            return dim;
        };
        let named = self.dims.iter().position(|dim| dim.name == blocks.of);
        named.map_or(dim, |at| DimId(at as u16))
    }

    /// The side that a partition's shards divide: its rows, or else its columns. Its other side is whole in every shard.
    pub fn sharded_side(&self, partition: PartitionId) -> Option<Side> {
        let partition = &self.partitions[partition.index()];
        partition.sharded_side(|dim| self.is_sharded(dim))
    }

    /// True if the shards of a partition divide this side of it.
    pub fn is_sharded_along(&self, partition: PartitionId, side: Side) -> bool {
        self.sharded_side(partition) == Some(side)
    }

    /// Number that the shards of a dimension are multiples of: where it is some tensor's columns, the elements of 16
    /// bytes, so that every shard of a row starts where TMA can; where it is the rows of one with scales of blocks,
    /// what those ask for; and where it is the columns of one that a launch makes scales of, their blocks.
    pub(crate) fn shard_unit(&self, dim: DimId) -> u32 {
        let rows_of =
            |buffer: &&super::Buffer| buffer.columns == dim && !buffer.usage.is_repeated();
        let units = self.buffers.iter().filter(rows_of);
        let units = units.map(|buffer| 16 / buffer.dtype.bytes());
        let scales = self.buffers.iter().filter_map(|buffer| {
            let (of, side, unit) = buffer.usage.shard_unit()?;
            let of = &self.buffers[of.index()];
            ([of.rows, of.columns][side as usize] == dim).then_some(unit)
        });
        units.chain(scales).max().unwrap_or(1)
    }
}
