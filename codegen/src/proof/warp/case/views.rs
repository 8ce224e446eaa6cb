//! Where a box of a map is: in its tensor's memory, and among all of its rows and columns.

use super::Case;
use crate::program::TensorId;
use crate::proof::warp::step::Box4;
use crate::warp::View;

impl Case<'_> {
    /// A row of a plane of a tensor's map, among all rows of the tensor.
    pub fn row_in_all(&self, at: &Box4, row: u32) -> u32 {
        let geometry = self.geometry(at.plan);
        let dim = self.pipeline.kernel.buffers[at.tensor.index()].rows;
        let rows = geometry.shard_rows(dim);
        match at.view {
            // Without shards each rank has all rows.
            _ if geometry.shards(dim) == 1 => row,
            View::Flat | View::ColumnShards | View::SharedRows => row,
            View::Shards | View::SharedShards => (at.shard * rows).wrapping_add(row),
            // A shard's owner is the rank whose memory it is in.
            View::SharedSlots | View::SharedShard => (at.rank * rows).wrapping_add(row),
            View::SharedSlotShards => (at.shard % self.world * rows).wrapping_add(row),
        }
    }

    /// Slot of the tensor that a box is in.
    pub fn slot(&self, at: &Box4) -> u32 {
        match at.view {
            View::SharedSlots | View::SharedRows => at.shard,
            View::SharedSlotShards => at.shard / self.world,
            View::Flat
            | View::Shards
            | View::ColumnShards
            | View::SharedShards
            | View::SharedShard => 0,
        }
    }

    /// One past the last row of a box that exists: rows beyond the shard's are padding of symmetric memory.
    pub fn exists(&self, at: &Box4) -> u32 {
        let rows = self.pipeline.kernel.buffers[at.tensor.index()].rows;
        let geometry = self.geometry(at.plan);
        let shard = |shard: u32| geometry.shard(rows, shard).len();
        let limit = match at.view {
            // Without shards each rank has all rows.
            _ if geometry.shards(rows) == 1 => at.rows.1,
            View::Flat | View::ColumnShards | View::SharedRows => at.rows.1,
            View::Shards | View::SharedShards => shard(at.shard),
            View::SharedSlots | View::SharedShard => shard(at.rank),
            View::SharedSlotShards => shard(at.shard % self.world),
        };
        at.rows.1.min(limit).max(at.rows.0)
    }

    /// A box with where it is in memory, and among all rows and columns.
    pub fn located(&self, at: Box4) -> Box4 {
        let buffer = &self.pipeline.kernel.buffers[at.tensor.index()];
        let before = |dim| at.shard * self.geometry(at.plan).shard_rows(dim);
        let (above, left) = match at.view {
            View::ColumnShards => (0, before(buffer.columns)),
            View::SharedRows => {
                let shards = self.geometry(at.plan).shards(buffer.rows);
                (before(buffer.rows) * shards, 0)
            }
            View::Flat
            | View::Shards
            | View::SharedShards
            | View::SharedSlots
            | View::SharedSlotShards
            | View::SharedShard => (before(buffer.rows), 0),
        };
        let all = [at.rows.0, self.exists(&at)].map(|row| self.row_in_all(&at, row));
        Box4 {
            lines: (above + at.rows.0, above + at.rows.1),
            columns: (left + at.columns.0, left + at.columns.1),
            origin: (at.origin.0, at.origin.1.wrapping_add(left)),
            all: (all[0], all[1]),
            ..at
        }
    }

    /// Numbers of a scale of rows in a rank's memory, which lie side by side.
    pub fn scales(&self, plan: usize, (tensor, rank): (TensorId, u32), rows: (u32, u32)) -> Box4 {
        self.located(Box4 {
            plan,
            tensor,
            rank,
            shard: 0,
            rows,
            columns: (0, 1),
            origin: (rows.0, 0),
            spills: None,
            view: View::Flat,
            lines: (0, 0),
            all: (0, 0),
        })
    }

    /// The rows and columns that a plane of a tensor's map has in memory, and those of what is divided that a store may
    /// touch.
    pub fn plane(
        &self,
        plan: usize,
        tensor: TensorId,
        (view, shard): (View, u32),
        rank: u32,
    ) -> Plane {
        let buffer = &self.pipeline.kernel.buffers[tensor.index()];
        let geometry = self.geometry(plan);
        let held = geometry.held(buffer, rank).len();
        let columns = geometry.size(buffer.columns);
        let full = |dim| geometry.shard_rows(dim);
        let (rows, columns, allowed) = match view {
            View::Flat => (held, columns, held),
            View::ColumnShards => {
                let allowed = geometry.shard(buffer.columns, shard).len();
                (held, full(buffer.columns), allowed)
            }
            View::Shards => {
                let allowed = geometry.shard(buffer.rows, shard).len();
                (full(buffer.rows), columns, allowed)
            }
            View::SharedRows => {
                let rows = geometry.size(buffer.rows);
                (rows, columns, rows)
            }
            View::SharedShards | View::SharedSlots | View::SharedSlotShards | View::SharedShard => {
                let rows = full(buffer.rows);
                let owner = match view {
                    View::SharedSlots | View::SharedShard => rank,
                    View::SharedSlotShards => shard % self.world,
                    View::SharedShards
                    | View::Flat
                    | View::Shards
                    | View::ColumnShards
                    | View::SharedRows => shard,
                };
                (rows, columns, geometry.shard(buffer.rows, owner).len())
            }
        };
        Plane {
            rows,
            columns,
            allowed,
        }
    }
}

/// Sizes of a plane of a tensor's map.
pub(in crate::proof::warp) struct Plane {
    pub rows: u32,
    pub columns: u32,
    /// Rows, or where those are divided columns, that the shard has: nothing else is the kernel's.
    pub allowed: u32,
}
