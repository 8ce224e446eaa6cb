//! The layout of a buffer.

use crate::setup::Setup;
use counterflow_codegen::program::TensorId;
use counterflow_codegen::region::Span;
use counterflow_codegen::shape::Extent;

/// A buffer's layout in one rank's memory.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Layout {
    /// Distance of adjacent rows and of adjacent columns.
    pub strides: (usize, usize),
    /// The first row it holds.
    pub first: usize,
    /// Rows of a shard and the distance between shards, if rows are contiguous. Otherwise a single shard.
    pub shard: (usize, usize),
    /// Distance of slots.
    pub slot: usize,
    pub len: usize,
}

impl Layout {
    pub fn new(setup: &Setup<'_>, launch: u32, rank: u16, id: TensorId) -> Layout {
        let plan = setup.plan(launch, rank);
        let buffer = &setup.kernel.buffers[id.index()];
        let geometry = &plan.geometry;
        let held = setup.held(launch, rank, id);
        let columns = geometry.size(buffer.columns) as usize;
        let ld = plan.shape.ld.get(&buffer.name).copied();
        let ld = ld.unwrap_or_else(|| geometry.contiguous(buffer)) as usize;
        let slots = buffer.slots(setup.world as u32) as usize;
        let rows = held.len() as usize;
        let (strides, shard, slot) = if buffer.mn_major {
            let shard = geometry.shard_rows(buffer.rows) as usize;
            (
                (1, ld),
                (shard, columns * ld),
                rows.div_ceil(shard) * columns * ld,
            )
        } else {
            ((ld, 1), (usize::MAX, 0), rows * ld)
        };
        Layout {
            strides,
            first: held.start as usize,
            shard,
            slot,
            len: slots * slot,
        }
    }

    /// The start of a rectangle that stays within one shard.
    pub fn at(&self, slot: usize, row: usize, column: usize) -> usize {
        let row = row - self.first;
        let (shard, row) = (row / self.shard.0, row % self.shard.0);
        slot * self.slot + shard * self.shard.1 + row * self.strides.0 + column * self.strides.1
    }

    /// Rows, divided where one matrix ends and the next begins. What is empty is in one.
    pub fn matrices(&self, rows: Extent) -> impl Iterator<Item = Extent> + use<> {
        let (first, each) = (
            self.first as u32,
            u32::try_from(self.shard.0).unwrap_or(u32::MAX),
        );
        rows.divided(first, each)
    }

    /// The start of such a rectangle. `None` if it is empty.
    pub fn begin(&self, span: &Span) -> Option<usize> {
        let (row, column) = (span.rows.start as usize, span.columns.start as usize);
        (span.elements() > 0).then(|| self.at(usize::from(span.slot), row, column))
    }
}
