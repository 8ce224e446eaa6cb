//! Subtiles of a tile, as the roles number them: where each lies, and the boxes that carry it.

use super::epilogue::groups;
use super::everywhere::goes_everywhere;
use super::leaves::Leaf;
use super::nodes::{count, read, read_but, side, why};
use super::passes::Pass;
use super::rings::{SUBTILES, TILES};
use super::walk::Walk;
use crate::dtype::Dtype;
use crate::kernel::{OpKind, Region};
use crate::program::{Home, Pick, StoreMode, TensorId, Var};
use crate::warp::{At, Expr, MapId, Node, Phase, Slot, SlotKind, Symbol, Test, Unroll, Whose};

impl Walk<'_, '_> {
    /// A tile's stores, and its signals, in a pass that may be the only one.
    pub(super) fn store(&mut self, pass: &Pass<'_>, lag: bool, only: bool) -> Vec<Node> {
        let mut nodes = self.waits(&pass.store_waits);
        let parts = pass.stores.iter().any(|leaf| self.is_stored_part(leaf));
        if parts && !nodes.is_empty() {
            // What the first lane waited for, all lanes store behind.
            nodes.push(Node::SyncWarp);
        }
        if pass.stores.is_empty() {
            nodes.extend(self.signals(pass, lag));
            return nodes;
        }
        let mut part = Vec::new();
        let groups = groups(self, pass);
        let per_subtile = groups.len() as u32;
        let late = only && per_subtile == 1 && self.released_late(pass);
        for (_, stores, _) in groups {
            part.push(Node::Await {
                barrier: SUBTILES.full(),
                phase: Phase::ThisPhase,
            });
            for leaf in stores {
                nodes.push(self.note(leaf.op));
                let OpKind::Store {
                    dst, mode, amax, ..
                } = &leaf.op.kind
                else {
                    continue;
                };
                let (dst, mode) = (dst.clone(), *mode);
                self.may_be_a_part(&dst, mode, amax.is_some());
                part.extend(self.inside(&leaf.around, &mut |walk| walk.subtile_to(&dst, mode)));
            }
            if stores.iter().any(|leaf| self.by_lanes(leaf)) {
                part.extend([Node::FenceShared, Node::SyncWarp]);
            }
            part.push(Node::Commit);
            if late {
                part.push(Node::If {
                    test: Test::Differ(Expr::var("part"), 0.into()),
                    body: read_but(1, SUBTILES, Slot::Previous).into(),
                });
            } else if !self.b.cta.aliased() {
                part.extend(self.subtile_read());
            }
            part.push(Node::Advance {
                ring: SUBTILES,
                keep: late,
            });
        }
        nodes.push(self.each_own_subtile(part));
        if late {
            nodes.extend(read(SUBTILES, Slot::Previous));
        }
        if self.b.cta.aliased() {
            nodes.push(why("Then stages may be loaded again where they lay."));
            nodes.extend(read(TILES, Slot::Current));
        }
        let everywhere = pass.stores.iter().any(goes_everywhere);
        if pass.signals.is_empty() {
            nodes.extend(everywhere.then_some(Node::FenceAlias));
            return nodes;
        }
        if lag {
            // All but this tile's stores are complete: the tile before can be announced.
            nodes.push(Node::AwaitStores {
                pending: self.subtiles() * per_subtile,
            });
            nodes.push(Node::Flush {
                amount: amount(&pass.signals[0]),
            });
        } else {
            nodes.push(Node::AwaitStores { pending: 0.into() });
        }
        nodes.extend(everywhere.then_some(Node::FenceAlias));
        nodes.extend(self.signals(pass, lag));
        nodes
    }

    /// True if a subtile's place is released behind the store of the next one, not behind its own: where the rank's own memory
    /// adds f32, so that it has the next box to add before it has read all of this one. Measured for gradients of weights in
    /// 128×256, on an H200.
    fn released_late(&self, pass: &Pass<'_>) -> bool {
        let adds = |leaf: &Leaf<'_>| {
            let OpKind::Store { dst, mode, .. } = &leaf.op.kind else {
                return false;
            };
            let dtype = self.b.kernel.buffers[dst.buffer.index()].dtype;
            *mode == StoreMode::Add && dtype == Dtype::F32 && dst.home == Home::Me
        };
        let cta = &self.b.cta;
        let places = cta.region(SlotKind::Subtile).map_or(0, |it| it.slots);
        let alone = cta.split() == 1 && !cta.ordered() && !cta.aliased();
        alone && places > 1 && pass.stores.iter().all(adds)
    }

    fn signals(&mut self, pass: &Pass<'_>, lag: bool) -> Vec<Node> {
        let mut nodes = Vec::new();
        for leaf in &pass.signals {
            if let OpKind::Signal { cells, amount } = &leaf.op.kind {
                nodes.push(self.note(leaf.op));
                nodes.extend(
                    self.inside(&leaf.around, &mut |walk| walk.signal(cells, *amount, lag)),
                );
            }
        }
        nodes
    }

    /// One subtile of a tile to one destination.
    fn subtile_to(&mut self, dst: &Region, mode: StoreMode) -> Vec<Node> {
        let Some((_, var)) = side(dst) else {
            return Vec::new();
        };
        let map = self.subtile_map(dst.buffer, var);
        let part = self.is_part(dst, var);
        if !part {
            self.b.stores_by(map);
        }
        let Some((_, _, row, column)) = self.item(var) else {
            return Vec::new();
        };
        let slot = match &dst.slot {
            Some(Pick::One(slot)) => Some(self.rank(slot)),
            Some(Pick::All | Pick::Others) | None => None,
        };
        let place = self.subtile_at(row, column, Expr::var("part"));
        let at = self.place(dst, map, var, place, slot);
        let buffer = &self.b.kernel.buffers[dst.buffer.index()];
        let (dtype, rows) = (buffer.dtype, buffer.rows);
        let shard_end = match self.whose(&dst.home) {
            Whose::Rank(rank) if part => Some(Expr::RowsOf(rows, rank.into())),
            Whose::Rank(_) | Whose::Everywhere => None,
        };
        vec![
            self.each_slice(dtype, at.column.clone(), |slice, column| Node::Store {
                ring: SUBTILES,
                slice,
                map,
                at: At {
                    column,
                    ..at.clone()
                },
                mode,
                shard_end: shard_end.clone(),
            }),
        ]
    }

    /// True if a store is of a part of its tile.
    fn is_stored_part(&self, leaf: &Leaf<'_>) -> bool {
        let OpKind::Store { dst, .. } = &leaf.op.kind else {
            return false;
        };
        side(dst).is_some_and(|(_, var)| self.is_part(dst, var))
    }

    /// True if all lanes of the storing warp do a store, instead of TMA.
    pub(super) fn by_lanes(&self, leaf: &Leaf<'_>) -> bool {
        goes_everywhere(leaf) || self.is_stored_part(leaf)
    }

    /// Refuses stores that parts of tiles cannot have: adds to memory, and scales or amaxes of whole tiles.
    fn may_be_a_part(&mut self, dst: &Region, mode: StoreMode, measured: bool) {
        if !side(dst).is_some_and(|(_, var)| self.is_part(dst, var)) {
            return;
        }
        let name = &self.b.kernel.buffers[dst.buffer.index()].name;
        let made = measured || self.b.kernel.computed_scale_of(dst.buffer).is_some();
        let what = match mode {
            StoreMode::Add => "an add of a part of a tile",
            StoreMode::Write if made => "scales or an amax of a tile of which a part is stored",
            StoreMode::Write => return,
        };
        self.refuse(
            format!("{what} into `{name}`, which has one shard"),
            "tiles of each shard: `y.tiles(..)`, `.of(rank)`",
        );
    }

    /// Refuses a copy of a part of a tile: TMA may not store a box that begins before its tensor.
    pub(super) fn copies_a_part(&mut self, dst: &Region) {
        if side(dst).is_some_and(|(_, var)| self.is_part(dst, var)) {
            let name = &self.b.kernel.buffers[dst.buffer.index()].name;
            let message = format!("a copy of a part of a tile into `{name}`, which has one shard");
            self.refuse(message, "chunks of each shard: `x.chunks(..)`, `.of(rank)`");
        }
    }

    /// Number of epilogue tiles of one output tile.
    pub(super) fn subtiles(&self) -> Expr {
        if self.tiling().swap_ab() {
            self.tile_rows() / self.subtile_rows()
        } else {
            self.tile_columns() / self.subtile_columns()
        }
    }

    /// Elements of one.
    pub(super) fn subtile_elements(&self) -> Expr {
        if self.tiling().swap_ab() {
            self.subtile_rows() * self.tile_columns()
        } else {
            self.tile_rows() * self.subtile_columns()
        }
    }

    /// The first row and column of subtile `part` of the tile in a row and column of tiles, or of a warpgroup's own half of it.
    pub(super) fn subtile_at(&self, row: Expr, column: Expr, part: Expr) -> (Expr, Expr) {
        let row = row * self.tile_rows();
        let column = column * self.tile_columns();
        let half = |side: Expr, one: Expr| {
            if self.b.cta.staggered() {
                side + Expr::var("consumer") * one
            } else {
                side
            }
        };
        if self.tiling().swap_ab() {
            let column = half(column, self.subtile_columns());
            (row + part * self.subtile_rows(), column)
        } else {
            let row = half(row, self.subtile_rows());
            (row, column + part * self.subtile_columns())
        }
    }

    /// The map of a tensor that subtiles are stored in or loaded from.
    pub(super) fn subtile_map(&mut self, tensor: TensorId, item: Var) -> MapId {
        let (tiling, dtype) = (self.tiling(), self.b.kernel.buffers[tensor.index()].dtype);
        let (rows, columns) = (tiling.subtile().rows, tiling.slice_columns(dtype.bytes()));
        self.map(tensor, item, (rows, columns))
    }

    /// Moves a subtile of some type from its first column on: once, or slice by slice where it has several.
    pub(super) fn each_slice(
        &self,
        dtype: Dtype,
        column: Expr,
        moves: impl Fn(Expr, Expr) -> Node,
    ) -> Node {
        let tiling = self.tiling();
        let (tile, subtile) = (tiling.tile(), tiling.subtile());
        let columns = tiling.slice_columns(dtype.bytes());
        if columns == subtile.columns {
            return moves(0.into(), column);
        }
        let columns = Expr::symbol(Symbol::SliceColumns(dtype.bytes()), columns);
        let of = if subtile.columns == tile.columns {
            self.tile_columns()
        } else {
            self.subtile_columns()
        };
        let slices = of / columns.clone();
        let slice = || Expr::var("slice");
        let node = moves(slice(), column + slice() * columns);
        count("slice", slices, 1.into(), Unroll::Once, vec![node])
    }

    pub(super) fn tile_rows(&self) -> Expr {
        self.b.tile_rows(self.tiling)
    }

    pub(super) fn tile_columns(&self) -> Expr {
        self.b.tile_columns(self.tiling)
    }

    fn subtile_columns(&self) -> Expr {
        Expr::symbol(Symbol::SubtileColumns, self.tiling().subtile().columns)
    }

    fn subtile_rows(&self) -> Expr {
        Expr::symbol(Symbol::SubtileRows, self.tiling().subtile().rows)
    }
}

/// Amount that a signal adds.
pub(super) fn amount(leaf: &Leaf<'_>) -> u32 {
    if let OpKind::Signal { amount, .. } = leaf.op.kind {
        amount
    } else {
        1
    }
}
