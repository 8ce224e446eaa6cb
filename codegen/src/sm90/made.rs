//! The scales that an item makes of what it stores, a subtile at a time: it has whole blocks of 1×128.

use super::item::Leaf;
use super::walk::Walk;
use crate::kernel::OpKind;
use crate::program::{TensorId, Var};
use crate::warp::{Elements, Expr, Field, FragmentOp, Node};

impl Walk<'_, '_> {
    /// What makes the scales of these elements of a subtile, unless that was done.
    pub(super) fn make_scales(&mut self, elements: Elements, var: Var, part: &mut Vec<Node>) {
        let made = |node: &Node| matches!(node, Node::Fragment(FragmentOp::MakeScales { elements: known, .. }) if *known == elements);
        if part.iter().any(made) {
            return;
        }
        let extents = self.extents(var).into_iter();
        part.extend(extents.map(|[_, columns]| {
            Node::Fragment(FragmentOp::MakeScales {
                elements,
                part: Expr::var("part"),
                columns,
            })
        }));
    }

    /// What writes them for a store, where it is done.
    pub(super) fn write_scales(
        &mut self,
        leaf: &Leaf<'_>,
        elements: Elements,
        var: Var,
    ) -> Vec<Node> {
        let (Some(tensor), Some([rows, columns])) = (plane(leaf), self.extents(var)) else {
            return Vec::new();
        };
        let all = Field::Size(self.b.kernel.buffers[tensor.index()].columns);
        let op = FragmentOp::WriteScales {
            tensor,
            elements,
            part: Expr::var("part"),
            rows,
            all: [all, Field::Line(tensor)].map(Expr::Field),
            columns,
        };
        self.inside(&leaf.around, &mut |_| vec![Node::Fragment(op.clone())])
    }
}

/// The plane of the scales that a store makes, if it does.
pub(super) fn plane(leaf: &Leaf<'_>) -> Option<TensorId> {
    match leaf.op.kind {
        OpKind::Store { scales, .. } => scales,
        OpKind::Wait { .. }
        | OpKind::Signal { .. }
        | OpKind::Copy { .. }
        | OpKind::Dot { .. }
        | OpKind::Reduce { .. }
        | OpKind::Load { .. }
        | OpKind::ForRanks { .. }
        | OpKind::If { .. } => None,
    }
}
