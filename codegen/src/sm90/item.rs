//! The leaf ops of an item, and the waits and signals that all warps share.

use super::leaves::{Around, Leaf, common, leaves};
use super::names::CELL;
use super::nodes::why;
use super::walk::{Bound, Walk};
use crate::kernel::{Block, Cells, Op, OpKind};
use crate::program::{CounterId, PartitionId, Side, Var};
use crate::warp::{Expr, Field, Node, Note, Test, Whose, counter_name};

const AT_THE_END: &str = "after the last tile, this role may only signal, then wait";
const MOVE_IT: &str =
    "move the copy (or the loop with both) before the `#[gemm]` loop, or into a role of its own";

impl Walk<'_, '_> {
    /// Repeats `leaf` inside the loops over ranks and the branches around an op.
    pub fn inside(
        &mut self,
        around: &[Around],
        leaf: &mut dyn FnMut(&mut Self) -> Vec<Node>,
    ) -> Vec<Node> {
        let Some((outer, rest)) = around.split_first() else {
            return leaf(self);
        };
        let node = match outer {
            Around::Ranks(var, order, at) => {
                let inner = self.at.replace(*at);
                let node = self.ranks(*var, order, |walk| {
                    walk.at = inner;
                    walk.inside(rest, leaf)
                });
                self.at = inner;
                node
            }
            Around::If(cond, holds) => {
                let test = self.cond(cond);
                let test = if *holds { test } else { test.negate() };
                self.when(test, |walk| walk.inside(rest, leaf))
            }
        };
        node.into_iter().collect()
    }

    /// Blocks for cells, without the fence.
    pub fn wait(&mut self, cells: &Cells, at_least: Option<u32>) -> Vec<Node> {
        if at_least.is_some() && self.b.counters.by_batches(cells.counter) {
            self.refuse(
                "a wait for a number of chunks that CTAs copy",
                "waits for all the schedule signals: each batch of a chunk is signalled by itself",
            );
        }
        let counter = cells.counter;
        let lag = self.b.kernel.counters[counter.index()].purpose.lag();
        let single = self.b.counters.single(counter);
        let name = self.cell_name(counter);
        self.each_cell(cells, &mut |cell| {
            let (mut nodes, cell) = named(&name, cell);
            nodes.push(Node::CounterWait {
                counter,
                cell: cell.clone(),
                lag,
                at_least,
            });
            if single {
                nodes.push(Node::CounterAdvance { counter, cell });
            }
            nodes
        })
    }

    fn cell_name(&self, counter: CounterId) -> String {
        format!("{}{CELL}", counter_name(self.b.kernel, counter))
    }

    /// The waits of some leaves, then what TMA needs to follow them.
    pub fn waits(&mut self, leaves: &[Leaf<'_>]) -> Vec<Node> {
        let mut nodes = Vec::new();
        for leaf in leaves {
            if let OpKind::Wait {
                cells, at_least, ..
            } = &leaf.op.kind
            {
                nodes.push(self.note(leaf.op));
                nodes.extend(self.inside(&leaf.around, &mut |walk| walk.wait(cells, *at_least)));
            }
        }
        if !nodes.is_empty() {
            nodes.extend(self.after_waits());
        }
        nodes
    }

    /// Fences between a wait and what it guards.
    pub(super) fn after_waits(&self) -> impl Iterator<Item = Node> + use<> {
        let alias = self.everywhere.then_some(Node::FenceAlias);
        [Node::FenceGlobal].into_iter().chain(alias)
    }

    /// Signals cells of `cells.home`.
    pub fn signal(&mut self, cells: &Cells, amount: u32, deferred: bool) -> Vec<Node> {
        let whose = self.whose(&cells.home);
        let counter = cells.counter;
        let name = self.cell_name(counter);
        self.each_cell(cells, &mut |cell| {
            let (mut nodes, cell) = named(&name, cell);
            nodes.push(match (deferred, whose.clone()) {
                (true, Whose::Rank(rank)) => Node::Defer {
                    counter,
                    rank,
                    cell,
                    amount,
                },
                (_, whose) => Node::CounterAdd {
                    counter,
                    whose,
                    cell,
                    amount,
                },
            });
            nodes
        })
    }

    /// A batch of work without an item: signals and waits.
    pub fn once(&mut self, body: &[Op]) -> Vec<Node> {
        let leaves = leaves(self.b.kernel, body);
        let mut nodes = Vec::new();
        for leaf in &leaves {
            nodes.push(self.note(leaf.op));
            let inner = match &leaf.op.kind {
                OpKind::Wait {
                    cells, at_least, ..
                } => self.inside(&leaf.around, &mut |walk| walk.wait(cells, *at_least)),
                OpKind::Signal { cells, amount } => {
                    self.inside(&leaf.around, &mut |walk| walk.signal(cells, *amount, false))
                }
                OpKind::Copy { .. }
                | OpKind::Dot { .. }
                | OpKind::Reduce { .. }
                | OpKind::Load { .. }
                | OpKind::Store { .. }
                | OpKind::ForRanks { .. }
                | OpKind::If { .. } => {
                    let message = "data that is moved or computed between waits and signals";
                    self.refuse(message, "a loop of its own over chunks or tiles");
                    Vec::new()
                }
            };
            nodes.extend(inner);
        }
        nodes
    }

    /// Work of the last CTA: the signals after the joins of all roles, then the waits, then the bases. Peers may wait
    /// for any of the signals.
    pub fn end(mut self, ends: &[&Block]) -> Vec<Node> {
        let (mut signals, mut waits) = (Vec::new(), Vec::new());
        for block in ends {
            match block {
                Block::Once { body } => {
                    for op in body {
                        match all_of(op) {
                            Some(Of::Signals) => signals.push(op.clone()),
                            Some(Of::Waits) => waits.push(op.clone()),
                            None => {
                                self.at = Some(self.b.kernel.loc(op.id));
                                self.refuse(AT_THE_END, MOVE_IT);
                            }
                        }
                    }
                }
                Block::Join => {}
                Block::ForRanks { .. } | Block::If { .. } | Block::Items { .. } => {
                    self.at = self.b.kernel.block_loc(block);
                    self.refuse(AT_THE_END, MOVE_IT);
                }
            }
        }
        let mut body = self.once(&signals);
        body.extend(self.once(&waits));
        let advance: Vec<(CounterId, Expr)> = self
            .b
            .counters
            .shared()
            .into_iter()
            .map(|counter| (counter, self.cells_of(counter)))
            .collect();
        if body.is_empty() && advance.is_empty() {
            return Vec::new();
        }
        vec![
            Node::SyncCta,
            Node::LastCta {
                of: Expr::Blocks,
                body,
                advance,
            },
        ]
    }

    /// The statement as the kernel has it. What is refused from here on is about it.
    pub fn note(&mut self, op: &Op) -> Node {
        self.at = Some(self.b.kernel.loc(op.id));
        Node::Note(Note {
            words: crate::print::statement(self.b.kernel, op),
            loc: Some(self.b.kernel.loc(op.id)),
        })
    }

    /// Waits that all items of a loop have in common come once, before its first item.
    pub fn hoisted<'a>(&mut self, waits: &mut Vec<Leaf<'a>>, count: &Expr) -> Vec<Node> {
        let (first, each): (Vec<_>, Vec<_>) = waits.drain(..).partition(common);
        *waits = each;
        let body = self.waits(&first);
        if body.is_empty() {
            return body;
        }
        vec![
            why("Without items here there is nothing to wait for."),
            Node::If {
                test: Test::Less(Expr::Within, count.clone()),
                body,
            },
        ]
    }

    /// Binds an item.
    pub fn bind(&mut self, var: Var, bound: Bound) {
        self.scope.push((var, bound));
    }

    /// The rows and columns of a shard of a partition, or of all of it.
    pub fn shard_sides(&mut self, partition: PartitionId, shard: Option<&Expr>) -> [Expr; 2] {
        if shard.is_none() && self.b.kernel.sharded_side(partition).is_some() {
            let name = &self.b.kernel.partitions[partition.index()].name;
            let message = format!("all shards of `{name}` in one loop");
            self.refuse(message, "one shard at a time: `.of(rank)`");
        }
        let of = &self.b.kernel.partitions[partition.index()];
        if of.across && self.b.kernel.is_sharded(of.columns) {
            let message = format!(
                "`{}`, whose tiles are in several shards of columns",
                of.name
            );
            self.refuse(
                message,
                "tiles of each shard, `.of(rank)`: others run in the emulator",
            );
        }
        Side::ALL.map(|side| self.span(partition, side, shard))
    }

    /// Part of a side that an item of a shard may have: the shard's part, or all that is not divided.
    pub fn span(&self, partition: PartitionId, side: Side, shard: Option<&Expr>) -> Expr {
        let dim = self.b.kernel.partitions[partition.index()].dim(side);
        match shard.filter(|_| self.b.kernel.is_sharded_along(partition, side)) {
            Some(shard) => Expr::RowsOf(dim, Box::new(shard.clone())),
            None => Expr::Field(Field::Size(dim)),
        }
    }
}

/// Action of an op, where it does one thing alone.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Of {
    Signals,
    Waits,
}

/// Action of all that is within an op; `None` where it does several things, or another one.
fn all_of(op: &Op) -> Option<Of> {
    let parts: Vec<&Op> = match &op.kind {
        OpKind::Wait { .. } => return Some(Of::Waits),
        OpKind::Signal { .. } => return Some(Of::Signals),
        OpKind::ForRanks { body, .. } => body.iter().collect(),
        OpKind::If {
            then, otherwise, ..
        } => then.iter().chain(otherwise).collect(),
        OpKind::Copy { .. }
        | OpKind::Dot { .. }
        | OpKind::Reduce { .. }
        | OpKind::Load { .. }
        | OpKind::Store { .. } => return None,
    };
    let mut parts = parts.into_iter().map(all_of);
    let first = parts.next()??;
    parts.all(|part| part == Some(first)).then_some(first)
}

/// A name for the cell, unless it is simple.
fn named(name: &str, cell: Expr) -> (Vec<Node>, Expr) {
    match cell {
        Expr::Binary(..) | Expr::Cell(_) => {
            let name = name.to_string();
            let value = cell;
            (
                vec![Node::Let {
                    name: name.clone(),
                    value,
                }],
                Expr::Var(name),
            )
        }
        simple => (Vec::new(), simple),
    }
}
