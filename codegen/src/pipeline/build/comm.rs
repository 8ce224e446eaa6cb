//! A loop over pieces, as the two threads of a CTA that moves data run it: one fetches boxes, the other sends them.
//!
//! A piece travels in units of [`UNIT`] boxes, each sent and signalled by one CTA; units go round the CTAs.

use super::super::{At, BOX_COLUMNS, Expr, Field, Node, Phase, SENDING, Side, UNIT};
use super::gemm::{all_empty, count};
use super::item::{Leaf, leaves, why};
use super::walk::{Bound, Walk, Which};
use super::{BOXES, refuse};
use crate::kernel::{Block, Kernel, Op, OpKind, RoleKind};
use crate::program::{PartitionId, StoreMode, Var};
use crate::rank::RankExpr;

/// Rows of a box: those of the pieces, up to what a TMA box may have.
pub(super) fn box_rows(kernel: &Kernel) -> u32 {
    fn first(kernel: &Kernel, body: &[Block]) -> Option<u32> {
        body.iter().find_map(|block| match block {
            Block::ForRanks { body, .. } => first(kernel, body),
            Block::If { then, .. } => first(kernel, then),
            Block::Items { partition, .. } => kernel.partitions[partition.index()].row_block,
            Block::Once { .. } | Block::Join => None,
        })
    }
    let comm = kernel
        .roles
        .iter()
        .find(|role| matches!(role.kind, RoleKind::Comm { .. }));
    comm.and_then(|comm| first(kernel, &comm.body))
        .unwrap_or(64)
        .min(256)
}

impl Walk<'_, '_> {
    /// A loop over pieces.
    pub fn pieces(
        &mut self,
        var: Var,
        partition: PartitionId,
        chunk: Option<&RankExpr>,
        body: &[Op],
    ) -> Vec<Node> {
        let chunk = chunk.map(|chunk| self.rank(chunk));
        let item = self.b.kernel.partitions[partition.index()].clone();
        let rows = box_rows(self.b.kernel);
        if item.row_block != Some(rows) || item.column_block.is_some() {
            let message = format!("#[comm] moves items of `{}`", item.name);
            let hint = format!("pieces of whole rows, at most 256 of them; here {rows}");
            self.refuse(message, hint);
        }
        let leaves = leaves(self, body);
        let copies: Vec<&Leaf<'_>> = leaves
            .iter()
            .filter(|leaf| matches!(leaf.op.kind, OpKind::Copy { .. }))
            .collect();
        for copy in &copies {
            if let OpKind::Copy { dst, src } = &copy.op.kind
                && let Some(buffer) = [dst, src]
                    .map(|region| &self.b.kernel.buffers[region.buffer.index()])
                    .into_iter()
                    .find(|buffer| buffer.rows_contiguous)
            {
                let message = format!("#[comm] moves `{}`, whose rows are contiguous", buffer.name);
                let at = Some(self.b.kernel.loc(copy.op.id));
                let hint = "tensors whose columns are: layout nt, or nn where it is `a` of the dot";
                self.b.found.push(refuse(at, message, hint));
            }
        }
        let mut nodes = Vec::new();
        let piece_rows = Expr::symbol("PIECE", rows);
        let all = self
            .rows(partition, chunk.as_ref())
            .ceil_div(piece_rows.clone());
        let pieces = self.name(&mut nodes, "pieces", all);
        let name = self.ident(var);
        let (unit, row, items) = if copies.is_empty() {
            (None, Expr::Within, pieces)
        } else {
            let boxes =
                Expr::Field(Field::Size(item.columns)).ceil_div(Expr::symbol("BOX_N", BOX_COLUMNS));
            let units = boxes.ceil_div(Expr::symbol("UNIT", UNIT));
            let units = self.name(&mut nodes, "units", units);
            let items = self.name(&mut nodes, "items", pieces * units.clone());
            (
                Some(Expr::Within % units.clone()),
                Expr::Within / units,
                items,
            )
        };
        let bound = Bound::Item {
            partition,
            chunk,
            row: Expr::var(format!("{name}_row")),
            column: 0.into(),
        };
        self.bind(var, bound);
        let mut work = vec![Node::Let {
            name: format!("{name}_row"),
            value: row,
        }];
        if let Some(unit) = unit {
            work.push(Node::Let {
                name: "unit".into(),
                value: unit,
            });
        }
        let mut body = Vec::new();
        match (self.which, copies.as_slice()) {
            (Which::Fetch, []) => {
                body = self.waits(
                    &leaves
                        .iter()
                        .filter(|leaf| matches!(leaf.op.kind, OpKind::Wait { .. }))
                        .cloned()
                        .collect::<Vec<_>>(),
                );
            }
            (Which::Fetch, [copy]) => {
                let waits = reads(&leaves, self);
                body = self.waits(&waits);
                body.extend(self.fetch(var, copy));
            }
            (Which::Send, [copy]) => {
                let mut waits = writes(&leaves, self);
                nodes.extend(self.hoisted(&mut waits, &items));
                body = self.waits(&waits);
                body.extend(self.send(var, copy, &leaves));
            }
            (Which::Send, []) => {}
            _ => {
                self.at = copies.get(1).map(|copy| self.b.kernel.loc(copy.op.id));
                self.refuse("several copies in one item", "one copy an item");
            }
        }
        self.scope.pop();
        let sends =
            !body.is_empty() && self.which == Which::Send && reads(&leaves, self).is_empty();
        if !body.is_empty() {
            work.append(&mut body);
        } else {
            work.clear();
        }
        nodes.push(Node::Items {
            count: items,
            body: work,
        });
        if sends {
            nodes.push(why(
                "Nothing stays unsignalled across a wait for the next peer.",
            ));
            nodes.push(Node::AwaitStores { pending: 0 });
            nodes.push(Node::Flush { amount: 1 });
        }
        nodes
    }

    fn fetch(&mut self, var: Var, copy: &Leaf<'_>) -> Vec<Node> {
        let OpKind::Copy { src, .. } = &copy.op.kind else {
            return Vec::new();
        };
        let note = self.note(copy.op);
        let (map, at) = self.box_at(var, src);
        let bytes = Expr::symbol("BOX_BYTES", box_rows(self.b.kernel) * BOX_COLUMNS * 2);
        let body = vec![
            Node::Await {
                ring: BOXES,
                side: Side::Empty,
                phase: Phase::LapBefore,
            },
            Node::Expect { ring: BOXES, bytes },
            Node::Load {
                ring: BOXES,
                part: 0,
                index: 0.into(),
                slice: 0.into(),
                map,
                at,
                multicast: None,
                strips: None,
            },
            Node::Advance {
                ring: BOXES,
                keep: false,
            },
        ];
        vec![note, boxes(body)]
    }

    fn send(&mut self, var: Var, copy: &Leaf<'_>, leaves: &[Leaf<'_>]) -> Vec<Node> {
        let OpKind::Copy { dst, .. } = &copy.op.kind else {
            return Vec::new();
        };
        let note = self.note(copy.op);
        let (map, at) = self.box_at(var, dst);
        let body = vec![
            Node::Await {
                ring: BOXES,
                side: Side::Full,
                phase: Phase::ThisLap,
            },
            Node::Store {
                ring: BOXES,
                slice: 0.into(),
                map,
                at,
                mode: StoreMode::Write,
            },
            Node::Commit,
            Node::Advance {
                ring: BOXES,
                keep: false,
            },
            Node::AwaitRead { pending: SENDING },
            Node::GiveBack {
                ring: BOXES,
                held: SENDING,
            },
        ];
        let mut nodes = vec![note, boxes(body)];
        // Where fetching waits for a peer, that peer may wait for the signal of the unit before.
        let lag = reads(leaves, self).is_empty();
        let signals: Vec<_> = leaves
            .iter()
            .filter(|leaf| matches!(leaf.op.kind, OpKind::Signal { .. }))
            .collect();
        if lag {
            // All but this unit's boxes are complete: the unit before can be announced.
            nodes.push(Node::AwaitStores { pending: UNIT });
            nodes.push(Node::Flush { amount: 1 });
        } else {
            nodes.push(Node::AwaitStores { pending: 0 });
        }
        if signals.len() != 1 || !signals[0].loops.is_empty() {
            let message = format!("{} signals after a copy", signals.len());
            self.refuse(message, "one signal a piece");
        }
        for leaf in signals {
            if let OpKind::Signal { cells, amount } = &leaf.op.kind {
                nodes.push(self.note(leaf.op));
                if *amount != 1 {
                    self.refuse(format!("a signal of {amount} after a copy"), "1");
                }
                if !self
                    .b
                    .scale
                    .iter()
                    .any(|(counter, _)| *counter == cells.counter)
                {
                    self.b.scale.push((cells.counter, self.units()));
                }
                nodes.extend(self.signal(cells, *amount, lag));
            }
        }
        nodes
    }

    /// Units of a piece, as a number of the plan's.
    fn units(&self) -> Expr {
        self.declared
            .iter()
            .rev()
            .find(|(name, _)| name == "units")
            .map_or(Expr::Const(1), |(_, units)| units.clone())
    }

    /// The box of the current unit, `i`-th of it.
    fn box_at(&mut self, var: Var, region: &crate::kernel::Region) -> (super::super::MapId, At) {
        let rows = box_rows(self.b.kernel);
        let map = self.map(region.buffer, rows, BOX_COLUMNS);
        let start = self.item(var).map_or(Expr::Const(0), |(_, _, row, _)| {
            row * Expr::symbol("PIECE", rows)
        });
        let (row, chunk, rank) = self.place(region, map, var, start, None);
        let column = (Expr::var("unit") * Expr::symbol("UNIT", UNIT) + Expr::var("i"))
            * Expr::symbol("BOX_N", BOX_COLUMNS);
        (
            map,
            At {
                column,
                row,
                chunk,
                rank,
            },
        )
    }

    /// At the end of fetching: every box has left, so the memory is free for the stages.
    pub fn drained(&mut self) -> Vec<Node> {
        let slots =
            super::rings::lay_out(self.b.product, true, self.b.kernel)[usize::from(BOXES.0)].slots;
        vec![
            why("All boxes have left: stages and panels may lie over them."),
            all_empty(BOXES, Expr::symbol("BOXES", slots)),
        ]
    }

    /// At the end of sending, when all stores are complete: the slots still held go back.
    pub fn all_given_back(&mut self) -> Vec<Node> {
        vec![
            why("All stores are complete: the last boxes go back."),
            Node::GiveBack {
                ring: BOXES,
                held: 0,
            },
        ]
    }
}

fn boxes(body: Vec<Node>) -> Node {
    count("i", Expr::symbol("UNIT", UNIT), 1.into(), false, body)
}

/// Waits for what a copy reads: all but those for a credit to write.
fn reads<'a>(leaves: &[Leaf<'a>], walk: &Walk<'_, '_>) -> Vec<Leaf<'a>> {
    of(leaves, walk, false)
}

/// Waits for credits to write.
fn writes<'a>(leaves: &[Leaf<'a>], walk: &Walk<'_, '_>) -> Vec<Leaf<'a>> {
    of(leaves, walk, true)
}

fn of<'a>(leaves: &[Leaf<'a>], walk: &Walk<'_, '_>, credits: bool) -> Vec<Leaf<'a>> {
    let is = |leaf: &&Leaf<'a>| {
        if let OpKind::Wait { cells, .. } = &leaf.op.kind {
            walk.b.kernel.counters[cells.counter.index()]
                .purpose
                .is_credit()
                == credits
        } else {
            false
        }
    };
    leaves.iter().filter(is).cloned().collect()
}
