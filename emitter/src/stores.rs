//! Stores from shared memory: by TMA, or by all lanes of a warp.

use super::Text;
use counterflow_codegen::program::StoreMode;
use counterflow_codegen::warp::{Expr, Node, Whose};

impl Text<'_> {
    /// A [`Node::Store`].
    pub(super) fn store(&mut self, node: &Node) {
        let Node::Store {
            ring,
            slice,
            map,
            at,
            mode,
            shard_end,
        } = node
        else {
            return;
        };
        let mut shared = self.shared(*ring, 0, &Expr::Const(0), false);
        shared.push_str(&self.slice(slice));
        match (&at.whose, shard_end) {
            (Whose::Everywhere, _) => {
                let verb = match mode {
                    StoreMode::Write => "multicast_store",
                    StoreMode::Add => "multicast_add",
                };
                let copies = self.every_copy(*map, at, true);
                let (of, place) = (self.box_of(*map), self.place(at));
                self.line(format!("{verb}<{of}>({copies}, {shared}, {place});"));
            }
            (Whose::Rank(rank), Some(end)) => {
                let (of, name) = (self.box_of(*map), &self.pipeline.map(*map).name);
                let place = [&at.column, &at.row, end, &at.shard, rank]
                    .map(|expr| self.expr(expr))
                    .join(", ");
                self.line(format!(
                    "store_part<{of}>({name}_on_ranks, {shared}, {place});"
                ));
            }
            (Whose::Rank(rank), None) => {
                let to = self.clipped(*map, at, true);
                let verb = match mode {
                    StoreMode::Write => "tma_store",
                    StoreMode::Add => "tma_reduce_add",
                };
                // The contiguous dimension comes first.
                let [inner, outer] = match self.pipeline.mn_major(*map) {
                    true => [&at.row, &at.column],
                    false => [&at.column, &at.row],
                };
                let place = self.coordinates([inner, outer, &at.shard, rank]);
                self.line(format!("{verb}({to}, {shared}, {place});"));
            }
        }
        // What was loaded here is released some stores later.
        if self.releases {
            self.line("++held;");
        }
    }
}
