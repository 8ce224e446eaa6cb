//! Which items a loop visits, as its warps know it.

use super::walk::{ItemsOf, Walk};
use crate::order::{Chosen, Cut};
use crate::rank::RankExpr;
use crate::warp::{Expr, Node};

impl Walk<'_, '_> {
    /// Item that the loop visits, of `count`. What that takes has names.
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
