//! Loops over items: which of them a CTA does, and the places in rings that go with it.

use super::Text;
use super::words::slots;
use crate::warp::{Deal, Expr, Node, cluster};
use std::borrow::Cow;

impl Text<'_> {
    /// Where this CTA's items start, and the role's place in each ring it uses.
    pub(super) fn deal(&mut self, deal: Deal, in_turn: bool, rest: &[Node]) {
        let (mut loops, mut looped, mut rings, mut defers, mut gives) =
            (0, false, Vec::new(), false, false);
        let mut turns = false;
        for node in rest {
            let outer = matches!(node, Node::Ranks { .. });
            node.visit(&mut |node| {
                let items = matches!(node, Node::Items { .. });
                loops += u32::from(items);
                looped |= outer && items;
                if let Node::Await { ring, .. } | Node::Advance { ring, .. } = node
                    && !rings.contains(ring)
                {
                    rings.push(*ring);
                }
                defers |= matches!(node, Node::Defer { .. });
                gives |= matches!(node, Node::GiveBack { .. });
                turns |= matches!(node, Node::AwaitTurn);
            });
        }
        self.counts_items = loops > 1 || looped;
        let first = if self.counts_items { ", first = 0" } else { "" };
        const JOINED: &str = "next_item(index, plan.join, COMM_CTAS)";
        let (start, all): (Cow<'_, str>, Cow<'_, str>) = match deal {
            Deal::All if self.pipeline.cta.ctas() > 1 => {
                let ctas = cluster(self.pipeline.cta.beside(), self.pipeline.cta.split());
                let ctas = self.factor(&ctas);
                let (start, all) = (
                    format!("blockIdx.x / {ctas}"),
                    format!("(gridDim.x / {ctas})"),
                );
                (start.into(), all.into())
            }
            Deal::All => ("blockIdx.x".into(), "gridDim.x".into()),
            Deal::Comm => ("blockIdx.x".into(), "COMM_CTAS".into()),
            Deal::Others => (
                "blockIdx.x - COMM_CTAS".into(),
                "(gridDim.x - COMM_CTAS)".into(),
            ),
            Deal::Join => ("first_item(plan.join, COMM_CTAS)".into(), "".into()),
        };
        let why = if self.counts_items {
            "  // this CTA's next item of the loops below, and how many the loops before had"
        } else {
            "  // this CTA's next item"
        };
        let joins = deal == Deal::Join;
        self.line(match (in_turn, joins) {
            (true, false) => format!("u32 index = {start} + consumer * {all}{first};{why}"),
            (true, true) | (false, _) => format!("u32 index = {start}{first};{why}"),
        });
        if in_turn && joins {
            self.line(format!("if (consumer != 0) index = {JOINED};"));
        }
        self.next = match (in_turn, joins) {
            (false, false) => format!("index += {}", bare(&all)),
            (false, true) => format!("index = {JOINED}"),
            (true, false) => format!("index += CONSUMERS * {all}"),
            (true, true) => format!("index = {}", JOINED.replace("index", JOINED)),
        };
        rings.sort();
        let cursors: Vec<String> = rings
            .iter()
            .map(|ring| {
                let ring = self.pipeline.ring(*ring);
                let (name, slots) = (ring.name, slots(ring.name));
                if ring.is_shared() {
                    format!("{name}_parity = 0")
                } else if ring.sets > 1 {
                    format!("{name} = consumer * {slots}, {name}_parity = 0")
                } else {
                    format!("{name} = 0, {name}_parity = 0")
                }
            })
            .collect();
        if !cursors.is_empty() {
            self.line(format!("u32 {};", cursors.join(", ")));
        }
        if turns {
            let whose = if self.pipeline.cta.staggered() {
                "only the second consumer waits for turns"
            } else {
                "the first turn is the first consumer's"
            };
            self.line(format!("u32 turn_parity = consumer ^ 1;  // {whose}"));
        }
        if gives {
            self.line("u32 held = 0, oldest = 0;  // stores whose boxes may not have been read, and the first of those boxes");
        }
        if defers {
            self.line("Counter* unsignalled = nullptr;  // of the item before, while its stores are in flight");
        }
    }

    /// A loop over this CTA's share of items.
    pub(super) fn items(&mut self, count: &Expr, body: &[Node]) {
        let (next, within, all) = (
            self.next.clone(),
            self.expr(&Expr::Within),
            self.expr(count),
        );
        let head = format!("for (; {within} < {all}; {next})");
        if body.is_empty() {
            self.line(format!("{head} {{}}"));
        } else {
            self.block(head, |text| text.list(body));
        }
        if self.counts_items {
            self.line(format!("first += {all};"));
        }
    }
}

/// A factor as a number by itself.
fn bare(factor: &str) -> &str {
    let inside = factor.strip_prefix('(');
    inside
        .and_then(|inside| inside.strip_suffix(')'))
        .unwrap_or(factor)
}
