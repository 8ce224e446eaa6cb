//! Loops over items: which of them a CTA does, and the places in rings that go with it.

use super::Text;
use super::words::order_name;
use crate::warp::{BarrierId, CONSUMERS, Ctas, Expr, Grid, LoopId, Node, Scheduler, SchedulerId};

/// The prelude's rule for CTAs that join late.
const NEXT_OF_LATE: &str = "next_item(index, plan.join, COMM_CTAS)";

impl Text<'_> {
    /// A role's loops: where this CTA's items start, and the role's place in each ring it uses.
    pub(super) fn schedule(&mut self, scheduler: SchedulerId, several: bool, body: &[Node]) {
        let scheduler = self.pipeline.scheduler(scheduler);
        self.several = several;
        let (first, why) = if several {
            (
                ", first = 0",
                "this CTA's next item of the loops below, and how many the loops before had",
            )
        } else {
            ("", "this CTA's next item")
        };
        let in_turn = scheduler.alternates(self.place);
        let (this, all) = scheduler.among();
        match scheduler.ctas {
            Ctas::All | Ctas::Comm(_) | Ctas::Others(_) => {
                let start = if in_turn {
                    this + Expr::var("consumer") * all
                } else {
                    this
                };
                let start = self.expr(&start);
                self.line(format!("u32 index = {start}{first};  // {why}"));
            }
            Ctas::LateComm(_) => {
                self.line(format!(
                    "u32 index = first_item(plan.join, COMM_CTAS){first};  // {why}"
                ));
                if in_turn {
                    self.line(format!("if (consumer != 0) index = {NEXT_OF_LATE};"));
                }
            }
        }
        self.cursors(body);
        self.list(body);
    }

    /// Where a role stands in its rings, and what else it keeps from item to item.
    fn cursors(&mut self, body: &[Node]) {
        let (mut rings, mut defers, mut gives, mut turns) = (Vec::new(), false, None, false);
        for node in body {
            node.visit(&mut |node| {
                if let Node::Await {
                    barrier: BarrierId { ring, .. },
                    ..
                }
                | Node::Advance { ring, .. } = node
                    && !rings.contains(ring)
                {
                    rings.push(*ring);
                }
                defers |= matches!(node, Node::Defer { .. });
                if let Node::GiveBack { ring, .. } = node {
                    gives = Some(*ring);
                }
                turns |= matches!(node, Node::AwaitTurn);
            });
        }
        rings.sort();
        for ring in rings {
            let state = self.state(ring, self.pipeline.ring(ring).name);
            self.line(state);
        }
        if turns {
            let whose = if self.pipeline.cta.staggered() {
                "  // only the second consumer waits"
            } else {
                ""
            };
            self.line(format!(
                "OrderBarrier order(base + TURN_AT, consumer);{whose}"
            ));
        }
        if let Some(ring) = gives {
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
        let next = self.next(self.pipeline.scheduler(of.scheduler));
        let [within, all] = [&Expr::Within, count].map(|expr| self.expr(expr));
        let head = format!("for (; {within} < {all}; {next})");
        if body.is_empty() {
            self.line(format!("{head} {{}}"));
        } else {
            self.block(head, |text| {
                if let Some(grid) = grid {
                    let order = order_name(text.pipeline.order(of));
                    let [rows, columns] = [&grid.rows, &grid.columns].map(|side| text.expr(side));
                    let var = &grid.var;
                    text.line(format!(
                        "const Place {var} = {order}({within}, {rows}, {columns});"
                    ));
                }
                text.list(body);
            });
        }
        if self.several {
            self.line(format!("first += {all};"));
        }
    }

    /// How the current role goes on to its next item.
    fn next(&self, scheduler: &Scheduler) -> String {
        let (in_turn, (_, all)) = (scheduler.alternates(self.place), scheduler.among());
        match (scheduler.ctas, in_turn) {
            (Ctas::All | Ctas::Comm(_) | Ctas::Others(_), false) => {
                format!("index += {}", self.expr(&all))
            }
            (Ctas::All | Ctas::Comm(_) | Ctas::Others(_), true) => {
                let both = Expr::symbol("CONSUMERS", CONSUMERS) * all;
                format!("index += {}", self.expr(&both))
            }
            (Ctas::LateComm(_), false) => format!("index = {NEXT_OF_LATE}"),
            (Ctas::LateComm(_), true) => {
                format!("index = {}", NEXT_OF_LATE.replace("index", NEXT_OF_LATE))
            }
        }
    }
}
