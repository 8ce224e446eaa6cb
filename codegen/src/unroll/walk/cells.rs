//! The cells of waits and signals, as numbers.

use super::{Bound, StepKind, Walker};
use crate::diag::Diagnostic;
use crate::kernel::{Cells, OpId, WhichShard};
use crate::program::{CellIndex, CounterDim, CounterId, Side};
use crate::shape::{self, Extent};

impl Walker<'_> {
    /// Emits one step for each cell, last axis fastest.
    pub(super) fn cells(
        &mut self,
        op: OpId,
        cells: &Cells,
        step: impl Fn(CounterId, u16, u32) -> StepKind,
    ) -> Result<(), Diagnostic> {
        let owner = self.owner(&cells.home, op)?;
        for home in owner.ranks(self.geometry.world) {
            self.cells_of(op, cells, 0, 0, &|walker: &mut Self, cell| {
                walker.push(op, step(cells.counter, home, cell));
            })?;
        }
        Ok(())
    }

    fn cells_of(
        &mut self,
        op: OpId,
        cells: &Cells,
        axis: usize,
        base: u32,
        emit: &impl Fn(&mut Self, u32),
    ) -> Result<(), Diagnostic> {
        let Some(index) = cells.index.get(axis) else {
            emit(self, base);
            return Ok(());
        };
        let size = self.geometry.counter_axes(cells.counter)[axis];
        let base = base * size;
        match index {
            CellIndex::Rank(pick) => {
                // The user's index is a rank if the axis has a cell for each rank.
                let what = match self.kernel.counters[cells.counter.index()].dims[axis] {
                    CounterDim::World => "rank",
                    CounterDim::Count(_) | CounterDim::Items(_) => "cell",
                };
                for at in self.picked(pick, size, what, op)? {
                    self.cells_of(op, cells, axis + 1, base + at, emit)?;
                }
            }
            CellIndex::Item(var) => {
                if let Bound::Item { partition, item } = self.bound[var.index()] {
                    let at = self.geometry.cell(partition, item);
                    self.cells_of(op, cells, axis + 1, base + at, emit)?;
                }
            }
            CellIndex::Along(var, side) => {
                let CounterDim::Items(covered) =
                    self.kernel.counters[cells.counter.index()].dims[axis]
                else {
                    return Ok(());
                };
                let Bound::Item { partition, item } = self.bound[var.index()] else {
                    return Ok(());
                };
                let (rows, columns) = self.geometry.item(partition, item);
                let extent = match side {
                    Side::Rows => rows,
                    Side::Columns => columns,
                };
                let [of, by] = [partition, covered].map(|id| &self.kernel.partitions[id.index()]);
                let Some(along) = by.side_of(of.dim(*side)) else {
                    return Ok(());
                };
                let parts = match by.shard_of((of, *side), |dim| self.kernel.is_sharded(dim)) {
                    WhichShard::Items => vec![(item.shard, extent)],
                    // Where shards end within an item depends on the launch: in one of them, at any of these.
                    WhichShard::Each if self.geometry.is_together() => {
                        let dim = of.dim(*side);
                        let shards = 0..self.geometry.shards(dim);
                        shards
                            .map(|at| (at, self.geometry.shard(dim, at)))
                            .collect()
                    }
                    WhichShard::Each => {
                        let dim = of.dim(*side);
                        let parts = self.geometry.by_shard(dim, extent);
                        let with_shard =
                            |part: Extent| (self.geometry.shard_at(dim, part.start), part);
                        parts.map(with_shard).collect()
                    }
                    // Lowering refuses several.
                    WhichShard::Only | WhichShard::Several => vec![(0, extent)],
                };
                for (shard, part) in parts {
                    let (rows, mut columns) =
                        self.geometry.overlapping(covered, shard, (along, part));
                    if let Some(slab) = self
                        .slab
                        .filter(|slab| self.kernel.same_slabs(slab.of, covered))
                    {
                        columns = columns.start.max(slab.index)..columns.end.min(slab.index + 1);
                    }
                    for row in rows {
                        for column in columns.clone() {
                            let item = shape::Item { shard, row, column };
                            let at = self.geometry.cell(covered, item);
                            self.cells_of(op, cells, axis + 1, base + at, emit)?;
                        }
                    }
                }
            }
        }
        Ok(())
    }
}
