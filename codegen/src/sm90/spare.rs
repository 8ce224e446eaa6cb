//! A loop of a role of spare warps that copies nothing: one thread of each CTA waits and signals, beside the warps that load,
//! store and multiply.
//!
//! Such a warp computes nothing. Its warpgroup keeps 40 to 72 registers a thread, since the multiplying ones have up to 232 of
//! the 504 that three share, and 32 lanes would hold a subtile of 128x64 in 256 registers each. Beside three stages of
//! 128x256 (144 KiB) and four subtiles (64 KiB), 19 of the 227 KiB are free: two subtiles for a sum of its own do not fit.

use super::walk::{Bound, ItemsOf, Walk};
use crate::kernel::{Op, OpKind, visit_ops};
use crate::program::Side;
use crate::warp::{Expr, Grid, LoopId, Node};

impl Walk<'_, '_> {
    /// A loop over items of any partition: one thread does all there is of an item, in order.
    pub(super) fn beside(&mut self, of: LoopId, items: ItemsOf<'_>, ops: &[Op]) -> Vec<Node> {
        self.waits_and_signals(ops);
        let ItemsOf {
            var,
            partition,
            shard,
            ..
        } = items;
        let shard = shard.map(|shard| self.rank(shard));
        let divided = &self.b.kernel.partitions[partition.index()];
        let blocks = Side::ALL.map(|side| divided.block(side));
        let [rows, columns] = self.shard_sides(partition, shard.as_ref());
        let [rows, columns] = [(rows, blocks[0]), (columns, blocks[1])].map(|(all, block)| {
            match block {
                Some(block) => all.ceil_div(block),
                // All of a shard is an item, if there is any of it.
                None => Expr::Min(all.into(), Box::new(1.into())),
            }
        });
        let mut nodes = Vec::new();
        let name = self.ident(var);
        let rows = self.name(&mut nodes, &format!("{name}_rows"), rows);
        let all = self.name(&mut nodes, "items", rows.clone() * columns.clone());
        let some = self.chosen(&mut nodes, items, all);
        let bound = Bound::Item {
            partition,
            shard,
            row: Expr::var(format!("{name}.row")),
            column: Expr::var(format!("{name}.column")),
        };
        self.bind(var, bound);
        let body = self.once(ops);
        self.scope.pop();
        nodes.push(Node::Items {
            of,
            count: some.count.clone(),
            grid: Some(Grid {
                var: name,
                index: some.at(Expr::Within),
                rows,
                columns,
            }),
            body,
        });
        nodes
    }

    fn waits_and_signals(&mut self, ops: &[Op]) {
        visit_ops(ops, &mut |op| {
            let what = match &op.kind {
                OpKind::Dot { .. }
                | OpKind::Reduce { .. }
                | OpKind::Load { .. }
                | OpKind::Store { .. } => "a #[spare_warps] loop that computes",
                OpKind::Copy { .. }
                | OpKind::Wait { .. }
                | OpKind::Signal { .. }
                | OpKind::ForRanks { .. }
                | OpKind::If { .. } => return,
            };
            self.at = Some(self.b.kernel.loc(op.id));
            let hint = "copies, waits and signals; `#[comm]` roles add and store tiles, `#[gemm]` loops do";
            self.refuse(what, hint);
        });
    }
}
