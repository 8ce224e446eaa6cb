//! The operands of a product: how a tile of one lies in a stage, and the loads that put it there.
//!
//! Where K is contiguous, a tile is one box, its rows 128 bytes each. Where its rows are contiguous (`w` of a dgrad,
//! both operands of a wgrad), it is blocks of [`BLOCK_ROWS`] rows, each a box of a 128-byte line for every K.

use super::super::{At, BLOCK_ROWS, Expr, Node};
use super::STAGES;
use super::gemm::{Operand, count, side};
use super::walk::Walk;
use crate::fit;
use crate::kernel::Region;

impl Walk<'_, '_> {
    /// Which of all K steps this is.
    fn step(&self) -> Expr {
        if self.b.product.split > 1 || self.b.product.parts > 1 {
            Expr::var("first_step") + Expr::var("step")
        } else {
            Expr::var("step")
        }
    }

    /// The loads of a product's tile of `region` into that part of the stage; none where it is no tile's.
    pub(super) fn operand(&mut self, part: usize, region: &Region) -> Vec<Node> {
        let tile = self.b.product.tile;
        let Some((axis, var)) = side(region) else {
            return Vec::new();
        };
        let Some((_, _, row, column)) = self.item(var) else {
            return Vec::new();
        };
        let (rows, start) = match axis {
            Operand::Rows => (tile.rows, row * Expr::symbol("TILE_M", tile.rows)),
            Operand::Columns => (tile.columns, column * Expr::symbol("TILE_N", tile.columns)),
        };
        // What the CTAs of a cluster share, each loads a part of: those along rows have the same columns.
        let (down, across) = self.b.product.cluster;
        let (name, ctas) = match axis {
            Operand::Rows => ("TILE_M", across),
            Operand::Columns => ("TILE_N", down),
        };
        let blocked = self.b.kernel.buffers[region.buffer.index()].rows_contiguous;
        let (boxed, block) = if blocked {
            (BLOCK_ROWS, Expr::var("block"))
        } else {
            (rows / ctas, 0.into())
        };
        let mine = if ctas > 1 {
            let cluster = Expr::symbol("CLUSTER", ctas);
            start + Expr::var("half") * (Expr::symbol(name, rows) / cluster)
        } else {
            start
        };
        let map = self.map(region.buffer, boxed, tile.k);
        let start = mine + block.clone() * Expr::symbol("BLOCK_ROWS", BLOCK_ROWS);
        let (row, chunk, rank) = match axis {
            Operand::Rows => self.place(region, map, var, start, None),
            Operand::Columns => (start, 0.into(), 0.into()),
        };
        let load = Node::Load {
            ring: STAGES,
            part,
            index: block,
            map,
            at: At {
                column: self.step() * Expr::symbol("TILE_K", tile.k),
                row,
                chunk,
                rank,
            },
            multicast: (ctas > 1).then(|| self.b.product.rank(Expr::var("share"), 0.into())),
        };
        if blocked {
            vec![count(
                "block",
                blocks(rows).into(),
                1.into(),
                false,
                vec![load],
            )]
        } else {
            vec![load]
        }
    }
}

/// Blocks that hold so many rows; the last may be partly of the next tile's.
pub(super) const fn blocks(rows: u32) -> u32 {
    rows.div_ceil(BLOCK_ROWS)
}

/// Bytes of a tile of an operand in a stage.
pub(super) const fn bytes(rows: u32, k: u32, rows_contiguous: bool) -> u32 {
    fit::staged_rows(rows, rows_contiguous) * k * 2
}
