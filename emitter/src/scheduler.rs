//! Nests of loops over items: the tile scheduler of each, and the places in rings that go with it.

use super::Text;
use super::words::order_name;
use counterflow_codegen::warp::{BarrierId, Ctas, Expr, Grid, LoopId, Node, SchedulerId};

impl Text<'_> {
    /// A role's loops: which items of them this CTA has, and the role's place in each ring it uses.
    pub(super) fn schedule(&mut self, scheduler: SchedulerId, body: &[Node]) {
        let scheduler = self.pipeline.scheduler(scheduler);
        self.line(match &scheduler.ctas {
            Ctas::All | Ctas::Comm { .. } | Ctas::Others(_) | Ctas::Spare => {
                let (this, all) = scheduler.among();
                format!(
                    "TileScheduler scheduler({}, {});",
                    self.expr(&this),
                    self.expr(&all)
                )
            }
            Ctas::LateComm(comm) => format!(
                "TileScheduler scheduler = TileScheduler::late_comm(plan.late_join, {});",
                self.expr(comm)
            ),
        });
        if scheduler.alternates(self.run_by) {
            self.line("if (consumer != 0) scheduler.next();  // ping-pong: the CTA's second tile is its second consumer's");
        }
        self.cursors(body);
        self.more_loops = false;
        self.list(body);
    }

    /// Declares a role's places in its rings, and what else it keeps from item to item.
    fn cursors(&mut self, body: &[Node]) {
        let (mut rings, mut defers, mut releases, mut ordered) = (Vec::new(), false, None, false);
        for node in body {
            node.visit(&mut |node| {
                if let Node::Await {
                    barrier: BarrierId { ring, .. },
                    ..
                }
                | Node::AwaitTested { ring }
                | Node::Advance { ring, .. } = node
                    && !rings.contains(ring)
                {
                    rings.push(*ring);
                }
                defers |= matches!(node, Node::Defer { .. });
                if let Node::Release { ring, .. } = node {
                    releases = Some(*ring);
                }
                ordered |= matches!(node, Node::AwaitOrder);
            });
        }
        rings.sort();
        for ring in rings {
            let state = self.state(ring, self.pipeline.ring(ring).of.name());
            self.line(state);
        }
        if ordered {
            let whose = if self.pipeline.cta.staggered() {
                "  // only the second consumer waits"
            } else {
                ""
            };
            self.line(format!(
                "OrderBarrier order(base + ORDER_AT, consumer);{whose}"
            ));
        }
        self.releases = releases.is_some();
        if let Some(ring) = releases {
            self.line("u32 held = 0;  // stores whose staging buffers may not have been read");
            let oldest = self.state(ring, "oldest");
            self.line(format!("{oldest}  // the first of those"));
        }
        if defers {
            self.line("Counter* unsignalled = nullptr;  // of the item before, while its stores are in flight");
        }
    }

    /// A loop over this CTA's share of items.
    pub(super) fn items(&mut self, of: LoopId, count: &Expr, grid: Option<&Grid>, body: &[Node]) {
        let scheduler = self.pipeline.scheduler(of.scheduler);
        let all = self.expr(count);
        let next = if scheduler.alternates(self.run_by) {
            "next_ping_pong"
        } else {
            "next"
        };
        let head = format!("for (; scheduler.has({all}); scheduler.{next}())");
        if body.is_empty() {
            self.line(format!("{head} {{}}"));
        } else {
            self.block(head, |text| {
                if let Some(grid) = grid {
                    let order = order_name(text.pipeline.order(of));
                    let [tile, rows, columns] =
                        [&grid.index, &grid.rows, &grid.columns].map(|number| text.expr(number));
                    let var = &grid.var;
                    text.line(format!(
                        "const Tile {var} = {order}({tile}, {rows}, {columns});"
                    ));
                }
                let tiling = text.pipeline.item_loop(of).tiling;
                let outer = std::mem::replace(&mut text.tiling, tiling);
                if text.group && !text.first_is_alike() {
                    text.declare_first();
                }
                text.probed_item(of, body);
                text.tiling = outer;
            });
        }
        if self.more_loops {
            self.line(format!("scheduler.end_loop({all});"));
        }
    }
}
