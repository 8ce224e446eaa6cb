//! Which items a loop visits, as its warps know it.

use super::walk::Walk;
use crate::order::{Chosen, Cut, Selection};
use crate::program::{PartitionId, Var};
use crate::rank::RankExpr;
use crate::warp::{Expr, Node};

/// The items that a loop visits.
#[derive(Clone, Copy)]
pub(super) struct ItemsOf<'a> {
    /// The loop's variable.
    pub var: Var,
    /// Of which partition.
    pub partition: PartitionId,
    /// Of which chunk.
    pub chunk: Option<&'a RankExpr>,
    /// Which of those.
    pub selection: &'a Selection,
}

impl Walk<'_, '_> {
    /// Which of `count` items the loop visits. What that takes has names.
    pub(super) fn chosen(
        &mut self,
        nodes: &mut Vec<Node>,
        items: ItemsOf<'_>,
        count: Expr,
    ) -> Chosen<Expr> {
        if items.selection.is_all() {
            return Chosen::all(count);
        }
        let name = self.ident(items.var);
        let number = |_: &Cut, n: &RankExpr| Ok::<_, std::convert::Infallible>(self.rank(n));
        let Ok(mut some) = items.selection.left(count, number);
        some.count = self.name(nodes, &format!("{name}_count"), some.count);
        if !matches!(some.first, Expr::Const(_)) {
            some.first = self.name(nodes, &format!("{name}_first"), some.first);
        }
        if !matches!(some.step, Expr::Const(_)) {
            some.step = self.name(nodes, &format!("{name}_step"), some.step);
        }
        some
    }
}
