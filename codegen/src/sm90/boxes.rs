//! The boxes that chunks travel in: their rows, columns and bytes, and where each is.

use super::cta::{SlotKind, spare_rows, staging_rows};
use super::leaves::Leaf;
use super::nodes::count;
use super::walk::{Walk, WarpRole};
use crate::kernel::{OpKind, Region};
use crate::program::{Pick, TensorId, Var};
use crate::warp::{At, BATCH, Expr, MapId, Node, STAGING_COLUMNS, Symbol, Unroll};

impl Walk<'_, '_> {
    /// The box of the current batch, `i`-th of it.
    pub(super) fn staging_at(&mut self, var: Var, region: &Region) -> (MapId, At) {
        let rows = self.box_rows();
        let columns = self.box_columns(region.buffer);
        let map = self.map(region.buffer, var, (rows, columns));
        let start = self
            .item(var)
            .map_or(Expr::Const(0), |(_, _, row, _)| row * self.chunk(rows));
        let slot = match &region.slot {
            None => None,
            Some(Pick::One(slot)) => Some(self.rank(slot)),
            Some(Pick::Others | Pick::All) => {
                let name = &self.b.kernel.buffers[region.buffer.index()].name;
                let message = format!("a copy of several slots of `{name}`");
                self.refuse(message, "one slot at a time: `[rank]`");
                None
            }
        };
        let batch = match self.batches {
            Expr::Const(1) => 0.into(),
            _ => Expr::var("batch") * self.boxes.clone(),
        };
        let within = (batch + Expr::var("i")) * staging_n(columns);
        let slab = self.item(var).and_then(|(partition, _, _, column)| {
            let columns = self.b.kernel.partitions[partition.index()].column_block?;
            Some(column * columns)
        });
        let column = match slab {
            Some(first) => first + within,
            None => within,
        };
        (map, self.place(region, map, var, (start, column), slot))
    }

    /// Rows of a box of this role.
    pub(super) fn box_rows(&self) -> u32 {
        let kernel = self.b.kernel;
        let comm = self.b.comm.as_ref();
        let role = comm.map(|comm| &kernel.roles[comm.roles[self.comm].role]);
        let rows = match self.which {
            WarpRole::Spare => spare_rows(kernel),
            WarpRole::Load
            | WarpRole::Store
            | WarpRole::Multiply
            | WarpRole::Fetch
            | WarpRole::Send
            | WarpRole::End => role.map(|role| staging_rows(kernel, role)),
        };
        rows.unwrap_or(0)
    }

    /// Bytes of a box in shared memory.
    pub(super) fn box_bytes(&self) -> Expr {
        let bytes = self.box_rows() * STAGING_COLUMNS * 2;
        match self.which {
            WarpRole::Spare => Expr::symbol(Symbol::SpareStagingBytes, bytes),
            WarpRole::Load
            | WarpRole::Store
            | WarpRole::Multiply
            | WarpRole::Fetch
            | WarpRole::Send
            | WarpRole::End => {
                // Slots have room for the boxes of the role that has the largest.
                let slot = self
                    .b
                    .cta
                    .region(SlotKind::Staging)
                    .map(|region| region.bytes);
                if slot == Some(bytes) {
                    Expr::symbol(Symbol::StagingBytes, bytes)
                } else {
                    let row = Expr::symbol(Symbol::StagingColumns(2), STAGING_COLUMNS) * 2;
                    Expr::from(self.box_rows()) * row
                }
            }
        }
    }

    /// Columns of a box of a tensor, a line of the widest swizzle; of scales of blocks, those of the tensor that they are for.
    pub(super) fn box_columns(&self, tensor: TensorId) -> u32 {
        let buffers = &self.b.kernel.buffers;
        let usage = buffers[tensor.index()].usage;
        let of = usage.blocks().and_then(|_| usage.scales_of());
        STAGING_COLUMNS * 2 / buffers[of.unwrap_or(tensor).index()].dtype.bytes()
    }

    /// Divides what an item's copies move into batches of boxes: whole rows of so many columns, or a slab of them.
    ///
    /// Of whole rows the last batch may have boxes behind the last column, which move nothing. Behind a slab is another one,
    /// so its batches are as large as each other.
    pub(super) fn batched(&mut self, copies: &[&Leaf<'_>], columns: Expr, slab: Option<u32>) {
        let Some(staged) = self.staging_columns(copies) else {
            self.batches = 1.into();
            return;
        };
        (self.boxes, self.batches) = match slab {
            None => {
                let boxes = Expr::symbol(Symbol::Batch, BATCH);
                let all = columns.ceil_div(staging_n(staged));
                (boxes.clone(), all.ceil_div(boxes))
            }
            Some(columns) => {
                if !columns.is_multiple_of(staged) {
                    let message = format!("slabs of {columns} columns, in boxes of {staged}");
                    self.refuse(message, format!("a multiple of {staged} columns"));
                }
                let all = (columns / staged).max(1);
                let boxes = (1..=BATCH).rev().find(|boxes| all.is_multiple_of(*boxes));
                let boxes = boxes.unwrap_or(1);
                (boxes.into(), (all / boxes).into())
            }
        };
    }

    /// The boxes of a batch, one after the other.
    pub(super) fn batch(&self, body: Vec<Node>) -> Node {
        count("i", self.boxes.clone(), 1.into(), Unroll::Once, body)
    }

    /// Columns of the boxes that an item's copies have in common: they go through the same batches. `None` without copies.
    fn staging_columns(&mut self, copies: &[&Leaf<'_>]) -> Option<u32> {
        let mut columns = None;
        for copy in copies {
            let OpKind::Copy { src, .. } = &copy.op.kind else {
                continue;
            };
            let own = self.box_columns(src.buffer);
            if *columns.get_or_insert(own) != own {
                self.at = Some(self.b.kernel.loc(copy.op.id));
                let message = "copies of elements of several sizes in one item";
                self.refuse(
                    message,
                    "a loop for each: their chunks are other batches of boxes",
                );
            }
        }
        columns
    }
}

/// Columns of a box in the text.
fn staging_n(columns: u32) -> Expr {
    Expr::symbol(
        Symbol::StagingColumns(STAGING_COLUMNS * 2 / columns),
        columns,
    )
}
