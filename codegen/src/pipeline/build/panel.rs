//! Panels of a tile, as the roles number them: where each lies, and the boxes that carry it.

use super::super::{Expr, MapId, Node};
use super::nodes::count;
use super::walk::Walk;
use crate::dtype::Dtype;
use crate::program::TensorId;

impl Walk<'_, '_> {
    /// How many a tile has.
    pub(super) fn panels(&self) -> Expr {
        let tile = self.b.tiling().tile();
        if self.b.tiling().swapped() {
            Expr::symbol("TILE_M", tile.rows) / self.panel_rows()
        } else {
            Expr::symbol("TILE_N", tile.columns) / self.panel_columns()
        }
    }

    /// Elements of one.
    pub(super) fn panel_elements(&self) -> Expr {
        let tile = self.b.tiling().tile();
        if self.b.tiling().swapped() {
            self.panel_rows() * Expr::symbol("TILE_N", tile.columns)
        } else {
            Expr::symbol("TILE_M", tile.rows) * self.panel_columns()
        }
    }

    /// The first row and column of panel `part` of the tile in a row and column of tiles, or of a warpgroup's own half of it.
    pub(super) fn panel_at(&self, row: Expr, column: Expr, part: Expr) -> (Expr, Expr) {
        let tile = self.b.tiling().tile();
        let row = row * Expr::symbol("TILE_M", tile.rows);
        let column = column * Expr::symbol("TILE_N", tile.columns);
        let half = |side: Expr, one: Expr| {
            if self.b.cta.staggered() {
                side + Expr::var("consumer") * one
            } else {
                side
            }
        };
        if self.b.tiling().swapped() {
            let column = half(column, self.panel_columns());
            (row + part * self.panel_rows(), column)
        } else {
            let row = half(row, self.panel_rows());
            (row, column + part * self.panel_columns())
        }
    }

    /// The map of a tensor that panels are stored in or loaded from.
    pub(super) fn panel_map(&mut self, tensor: TensorId) -> MapId {
        let (tiling, dtype) = (self.b.tiling(), self.b.kernel.buffers[tensor.index()].dtype);
        let (rows, columns) = (tiling.subtile().rows, tiling.slice_columns(dtype.bytes()));
        self.map(tensor, rows, columns)
    }

    /// What moves a panel of some type from its first column on: once, or slice by slice where it has several.
    pub(super) fn each_slice(
        &self,
        dtype: Dtype,
        column: Expr,
        moves: impl Fn(Expr, Expr) -> Node,
    ) -> Node {
        let tiling = self.b.tiling();
        let (tile, panel) = (tiling.tile(), tiling.subtile());
        let columns = tiling.slice_columns(dtype.bytes());
        if columns == panel.columns {
            return moves(0.into(), column);
        }
        let name = if dtype == Dtype::F32 {
            "SLICE_N_F32"
        } else {
            "SLICE_N"
        };
        let columns = Expr::symbol(name, columns);
        let of = if panel.columns == tile.columns {
            Expr::symbol("TILE_N", tile.columns)
        } else {
            self.panel_columns()
        };
        let slices = of / columns.clone();
        let slice = || Expr::var("slice");
        let node = moves(slice(), column + slice() * columns);
        count("slice", slices, 1.into(), false, vec![node])
    }

    fn panel_columns(&self) -> Expr {
        Expr::symbol("PANEL_N", self.b.tiling().subtile().columns)
    }

    fn panel_rows(&self) -> Expr {
        Expr::symbol("PANEL_M", self.b.tiling().subtile().rows)
    }
}
