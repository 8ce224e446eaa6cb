//! The amax of what an item stores, taken a subtile at a time.

use super::leaves::Leaf;
use super::walk::Walk;
use crate::kernel::OpKind;
use crate::program::{Side, Var};
use crate::warp::{Elements, Expr, FragmentOp, Node};

impl Walk<'_, '_> {
    /// Makes the amax of a store as large as these elements of a subtile, where the store is done.
    pub(super) fn amax(&mut self, leaf: &Leaf<'_>, elements: Elements, var: Var) -> Vec<Node> {
        let OpKind::Store {
            amax: Some(amax), ..
        } = &leaf.op.kind
        else {
            return Vec::new();
        };
        let Some([rows, columns]) = self.extents(var) else {
            return Vec::new();
        };
        let op = FragmentOp::Amax {
            tensor: amax.to,
            elements,
            part: Expr::var("part"),
            rows,
            columns,
        };
        self.inside(&leaf.around, &mut |_| vec![Node::Fragment(op.clone())])
    }

    /// First row and column of a subtile in its shard, each with one past the last that there is.
    pub(super) fn extents_in_shard(&mut self, var: Var) -> Option<[[Expr; 2]; 2]> {
        let (partition, shard, row, column) = self.item(var)?;
        let (row, column) = self.subtile_at(row, column, Expr::var("part"));
        let end = |side: Side| self.span(partition, side, shard.as_ref());
        Some([[row, end(Side::Rows)], [column, end(Side::Columns)]])
    }

    /// First row and column of a subtile among all, each with one past the last that there is.
    pub(super) fn extents(&mut self, var: Var) -> Option<[[Expr; 2]; 2]> {
        let (partition, shard, row, column) = self.item(var)?;
        let (row, column) = self.subtile_at(row, column, Expr::var("part"));
        let of = (partition, shard.as_ref());
        let side = |side: Side, first: Expr| {
            let end = self.span(partition, side, shard.as_ref());
            [first, end].map(|at| self.among_all(of, side, at))
        };
        Some([side(Side::Rows, row), side(Side::Columns, column)])
    }
}
