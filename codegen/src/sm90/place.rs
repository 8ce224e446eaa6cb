//! Where the boxes of an item are: the shard that they are in, the first row and column in that, and how a map addresses them.

use super::walk::Walk;
use crate::kernel::{Axis, Buffer, Region};
use crate::program::{PartitionId, Side, TensorId, Var};
use crate::warp::{At, Expr, Field, MapId, View, Whose};

/// Begin of a side of a box.
pub(super) struct Begin {
    /// Shard of the box; `None` where the side is not divided, or the item is in no shard of it.
    pub shard: Option<Expr>,
    /// Behind how much of that.
    pub first: Expr,
}

impl Walk<'_, '_> {
    /// Begin of a side of an item, `first` behind the beginning of its shard.
    pub(super) fn begin(
        &self,
        (partition, shard): (PartitionId, Option<&Expr>),
        side: Side,
        first: Expr,
    ) -> Begin {
        let divided = self.b.kernel.is_sharded_along(partition, side);
        let shard = shard.filter(|_| divided).cloned();
        Begin { shard, first }
    }

    /// Begin among all shards.
    pub(super) fn among_all(
        &self,
        (partition, shard): (PartitionId, Option<&Expr>),
        side: Side,
        first: Expr,
    ) -> Expr {
        let dim = self.b.kernel.partitions[partition.index()].dim(side);
        let begin = self.begin((partition, shard), side, first);
        begin.behind(Field::ShardRows(dim))
    }

    /// Begin of a side of a tensor's box, for an item.
    fn begin_of(&self, item: Var, (tensor, side): (TensorId, Side), first: Expr) -> Begin {
        let item = self.item(item);
        let shard = item.and_then(|(partition, shard, ..)| {
            let own = self.b.kernel.is_shard_of(partition, tensor, side);
            shard.filter(|_| own)
        });
        Begin { shard, first }
    }

    /// Begin of a region in its map, from the row and column in the item's shard on.
    pub fn place(
        &mut self,
        region: &Region,
        map: MapId,
        item: Var,
        (row, column): (Expr, Expr),
        slot: Option<Expr>,
    ) -> At {
        let view = self.b.maps[usize::from(map.0)].view;
        let buffer = &self.b.kernel.buffers[region.buffer.index()];
        let held = buffer.shard_only();
        let rows = self.begin_of(item, (region.buffer, Side::Rows), row);
        let mut columns = self.begin_of(item, (region.buffer, Side::Columns), column);
        if region.columns == Axis::All {
            // A product's K is no column of its items.
            columns.shard = None;
        }
        let whole = matches!(
            view,
            View::Flat | View::ColumnShards | View::SharedShard | View::SharedRows
        );
        if !whole && !held && rows.shard.is_none() && self.b.kernel.is_sharded(buffer.rows) {
            let message = format!("a tile of `{}` in several of its shards", buffer.name);
            self.refuse(
                message,
                "items that the ranks divide as they divide its rows",
            );
        }
        let whose = self.whose(&region.home);
        let rows = match self.is_part(region, item) {
            true => self.in_shard_of(&whose, buffer, rows),
            false => rows,
        };
        let slot = slot.unwrap_or(Expr::Const(0));
        let [of_rows, of_columns] = [buffer.rows, buffer.columns].map(Field::ShardRows);
        let (nobody, mine) = (|| Expr::Const(0), || Whose::Rank(Expr::Const(0)));
        let shard = rows.shard.clone().unwrap_or(Expr::Const(0));
        let (row, column, shard, whose) = match view {
            View::Flat => {
                let row = match held {
                    true => rows.first,
                    false => rows.behind(of_rows),
                };
                (row, columns.behind(of_columns), nobody(), mine())
            }
            View::Shards => (rows.first, columns.first, shard, mine()),
            View::ColumnShards => {
                let shard = columns.shard.unwrap_or(nobody());
                (rows.first, columns.first, shard, mine())
            }
            View::SharedShards
            | View::SharedShard
            | View::SharedSlots
            | View::SharedSlotShards
            | View::SharedRows
                if columns.shard.is_some() =>
            {
                let message = format!(
                    "tiles of `{}`, whose columns are divided over the ranks",
                    buffer.name
                );
                let hint = "Out, Accumulated, or scratch of one slot that no statement reaches on a peer: \
                    they are this rank's alone";
                self.refuse(message, hint);
                (rows.first, columns.first, nobody(), whose)
            }
            View::SharedShards => (rows.first, columns.first, shard, whose),
            View::SharedShard => (rows.first, columns.first, nobody(), whose),
            View::SharedSlots | View::SharedRows => (rows.first, columns.first, slot, whose),
            View::SharedSlotShards => {
                let shard = slot * Expr::world() + shard;
                (rows.first, columns.first, shard, whose)
            }
        };
        At {
            column,
            row,
            shard,
            whose,
        }
    }
}

impl Walk<'_, '_> {
    /// True if memory has one shard of the rows of an item that may be in several: the item's place in it is a part of the item.
    pub(super) fn is_part(&self, region: &Region, item: Var) -> bool {
        let buffer = &self.b.kernel.buffers[region.buffer.index()];
        let across = |(partition, ..): (PartitionId, _, _, _)| {
            self.b.kernel.is_across(partition, buffer.rows)
        };
        buffer.shard_only() && self.item(item).is_some_and(across)
    }

    /// Rows of an item, counted from the first of a rank's shard: below zero, modulo 2^32, where the item begins before it. A
    /// TMA load gives zeros for the rows of a box that are outside on either side.
    fn in_shard_of(&mut self, whose: &Whose, buffer: &Buffer, rows: Begin) -> Begin {
        let Whose::Rank(rank) = whose else {
            let message = format!("parts of a tile of `{}` on every rank at once", buffer.name);
            self.refuse(message, "a loop over ranks, `.on(rank)`");
            return rows;
        };
        let before = rank.clone() * Expr::Field(Field::ShardRows(buffer.rows));
        Begin {
            first: rows.first - before,
            ..rows
        }
    }
}

impl Begin {
    /// First row or column, counted through all shards of `each` rows or columns.
    pub(super) fn behind(self, each: Field) -> Expr {
        match self.shard {
            Some(shard) => shard * Expr::Field(each) + self.first,
            None => self.first,
        }
    }
}
