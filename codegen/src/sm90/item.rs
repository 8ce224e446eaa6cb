//! What one item does, sorted by the warp that does it; and the waits and signals all warps share.

use super::builder::{names_an_item, refuse};
use super::nodes::why;
use super::walk::{Bound, Walk};
use crate::kernel::{Block, Cells, Kernel, Op, OpId, OpKind, Region, visit, visit_ops};
use crate::order::RankOrder;
use crate::program::{CellIndex, CounterId, Loc, PartitionId, Pick, TensorKind, Var};
use crate::warp::{Expr, Field, Node, Note, Test};
use std::collections::{BTreeMap, BTreeSet};

/// Who waits for which counter.
pub(super) struct Counters {
    waits: BTreeMap<CounterId, Vec<Vec<CellIndex>>>,
    /// Those that are waited for in items that copy.
    by_batches: BTreeSet<CounterId>,
}

impl Counters {
    pub fn of(kernel: &Kernel) -> Counters {
        let mut waits: BTreeMap<CounterId, Vec<Vec<CellIndex>>> = BTreeMap::new();
        let mut by_batches = BTreeSet::new();
        let on_device = kernel.roles.iter().filter(|role| !role.kind.sequential());
        for role in on_device {
            each_item(&role.body, &mut |item| {
                let (mut waited, mut copies) = (BTreeSet::new(), false);
                visit_ops(item, &mut |op| {
                    copies |= matches!(op.kind, OpKind::Copy { .. });
                    if let OpKind::Wait { cells, .. } = &op.kind {
                        waited.insert(cells.counter);
                    }
                });
                if copies {
                    by_batches.append(&mut waited);
                }
            });
            visit(&role.body, &mut |op| {
                if let OpKind::Wait { cells, .. } = &op.kind {
                    waits
                        .entry(cells.counter)
                        .or_default()
                        .push(cells.index.clone());
                }
            });
        }
        Counters { waits, by_batches }
    }

    /// Whether each cell has one waiter, which can move its base on at once. A piece that is copied has one for each of its
    /// batches.
    pub fn single(&self, counter: CounterId) -> bool {
        !self.by_batches.contains(&counter)
            && matches!(self.waits.get(&counter).map(Vec::as_slice), Some([index]) if names_an_item(index))
    }

    /// Those whose bases the last CTA moves on.
    pub fn shared(&self) -> Vec<CounterId> {
        self.waits
            .keys()
            .copied()
            .filter(|counter| !self.single(*counter))
            .collect()
    }
}

/// A loop over ranks around an op, and where it was written.
pub(super) type Looped = (Var, RankOrder, Loc);

/// Calls `f` with what each loop over items does for one.
fn each_item(body: &[Block], f: &mut impl FnMut(&[Op])) {
    for block in body {
        match block {
            Block::ForRanks { body, .. } => each_item(body, f),
            Block::If {
                then, otherwise, ..
            } => {
                each_item(then, f);
                each_item(otherwise, f);
            }
            Block::Items { body, .. } => f(body),
            Block::Once { .. } | Block::Join => {}
        }
    }
}

/// A leaf op of an item, with the loops over ranks around it.
#[derive(Clone)]
pub(super) struct Leaf<'a> {
    pub loops: Vec<Looped>,
    pub op: &'a Op,
}

/// The leaf ops of an item in order.
pub(super) fn leaves<'a>(walk: &mut Walk<'_, '_>, body: &'a [Op]) -> Vec<Leaf<'a>> {
    fn go<'a>(
        kernel: &Kernel,
        body: &'a [Op],
        loops: &mut Vec<Looped>,
        out: &mut Vec<Leaf<'a>>,
        bad: &mut Option<OpId>,
    ) {
        for op in body {
            match &op.kind {
                OpKind::ForRanks { var, order, body } => {
                    loops.push((*var, *order, kernel.loc(op.id)));
                    go(kernel, body, loops, out, bad);
                    loops.pop();
                }
                OpKind::If { .. } => *bad = bad.or(Some(op.id)),
                OpKind::Wait { .. }
                | OpKind::Signal { .. }
                | OpKind::Copy { .. }
                | OpKind::Dot { .. }
                | OpKind::Reduce { .. }
                | OpKind::Load { .. }
                | OpKind::Store { .. } => out.push(Leaf {
                    loops: loops.clone(),
                    op,
                }),
            }
        }
    }
    let (mut out, mut bad) = (Vec::new(), None);
    let kernel = walk.b.kernel;
    go(kernel, body, &mut Vec::new(), &mut out, &mut bad);
    if let Some(op) = bad {
        walk.b.found.push(refuse(
            Some(kernel.loc(op)),
            "an `if` inside an item",
            "straight items and loops over ranks",
        ));
    }
    out
}

/// The leaves of a tile's item by the warp that does them.
#[derive(Default)]
pub(super) struct Sorted<'a> {
    /// Waits of the loading warp before the operands.
    pub load_waits: Vec<Leaf<'a>>,
    /// The product.
    pub dot: Option<Leaf<'a>>,
    /// Sums, each with the waits for the same slots.
    pub sums: Vec<(Vec<Leaf<'a>>, Leaf<'a>)>,
    /// Stored tiles that the math after the dot reads, each with its waits.
    pub loads: Vec<(Vec<Leaf<'a>>, Leaf<'a>)>,
    /// Vectors that it reads.
    pub vectors: Vec<Leaf<'a>>,
    /// Waits of the storing warp.
    pub store_waits: Vec<Leaf<'a>>,
    /// The stores.
    pub stores: Vec<Leaf<'a>>,
    /// What is applied before each of them.
    pub epilogues: Vec<Option<usize>>,
    /// The signals after them.
    pub signals: Vec<Leaf<'a>>,
}

pub(super) fn sort<'a>(walk: &mut Walk<'_, '_>, leaves: &[Leaf<'a>]) -> Sorted<'a> {
    let mut sorted = Sorted::default();
    let mut waiting: Vec<Leaf<'a>> = Vec::new();
    for (index, leaf) in leaves.iter().enumerate() {
        let kernel = walk.b.kernel;
        // Nobody writes a vector during a launch: what a wait is for comes after it.
        let reads = |leaf: &Leaf<'_>| match &leaf.op.kind {
            OpKind::Dot { .. } | OpKind::Reduce { .. } => true,
            OpKind::Load { from, .. } => !is_vector(kernel, from),
            OpKind::ForRanks { .. }
            | OpKind::If { .. }
            | OpKind::Wait { .. }
            | OpKind::Signal { .. }
            | OpKind::Copy { .. }
            | OpKind::Store { .. } => false,
        };
        let stores = |leaf: &Leaf<'_>| matches!(leaf.op.kind, OpKind::Store { .. });
        // The product's operands are loaded first, and so come after all waits before the product.
        let is_dot = |leaf: &Leaf<'_>| matches!(leaf.op.kind, OpKind::Dot { .. });
        let before_the_dot = leaves[index..].iter().any(is_dot);
        let taken = |waiting: &mut Vec<Leaf<'a>>| match before_the_dot {
            true => Vec::new(),
            false => std::mem::take(waiting),
        };
        let at = walk.b.kernel.loc(leaf.op.id);
        match &leaf.op.kind {
            OpKind::Wait { at_least, .. } => {
                if at_least.is_some() {
                    walk.b.found.push(refuse(
                        Some(at),
                        "a wait for a number",
                        "waits for all the schedule signals",
                    ));
                }
                let rest = &leaves[index + 1..];
                if rest.iter().any(reads) {
                    waiting.push(leaf.clone());
                } else if rest.iter().any(stores) {
                    sorted.store_waits.push(leaf.clone());
                } else {
                    sorted.load_waits.push(leaf.clone());
                }
            }
            OpKind::Dot { .. } => {
                if sorted.dot.is_some() {
                    walk.b.found.push(refuse(
                        Some(at),
                        "a second dot in one item",
                        "one product an item",
                    ));
                }
                sorted.load_waits.append(&mut waiting);
                sorted.dot = Some(leaf.clone());
            }
            OpKind::Reduce { .. } => sorted.sums.push((taken(&mut waiting), leaf.clone())),
            OpKind::Load { from, .. } if is_vector(kernel, from) => {
                sorted.vectors.push(leaf.clone());
            }
            OpKind::Load { .. } => sorted.loads.push((taken(&mut waiting), leaf.clone())),
            OpKind::Store { .. } => sorted.stores.push(leaf.clone()),
            OpKind::Signal { .. } => sorted.signals.push(leaf.clone()),
            OpKind::Copy { .. } => walk.b.found.push(refuse(
                Some(at),
                "a copy in a #[gemm] loop",
                "copies in #[comm] or #[copy_engine]",
            )),
            OpKind::ForRanks { .. } | OpKind::If { .. } => {}
        }
    }
    sorted
}

impl Walk<'_, '_> {
    /// What `leaf` does inside the loops over ranks around an op.
    pub fn in_loops(
        &mut self,
        loops: &[Looped],
        leaf: &mut dyn FnMut(&mut Self) -> Vec<Node>,
    ) -> Vec<Node> {
        match loops.split_first() {
            None => leaf(self),
            Some(((var, order, at), rest)) => {
                let inner = self.at.replace(at);
                let node = self.ranks(*var, *order, |walk| {
                    walk.at = inner;
                    walk.in_loops(rest, leaf)
                });
                self.at = inner;
                node.into_iter().collect()
            }
        }
    }

    /// Blocks for cells, without the fence.
    pub fn wait(&mut self, cells: &Cells) -> Vec<Node> {
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
            });
            if single {
                nodes.push(Node::CounterAdvance { counter, cell });
            }
            nodes
        })
    }

    fn cell_name(&self, counter: CounterId) -> String {
        format!("{}_cell", self.b.kernel.counters[counter.index()].name)
    }

    /// The waits of some leaves, then what TMA needs to follow them.
    pub fn waits(&mut self, leaves: &[Leaf<'_>]) -> Vec<Node> {
        let mut nodes = Vec::new();
        for leaf in leaves {
            if let OpKind::Wait { cells, .. } = &leaf.op.kind {
                nodes.push(self.note(leaf.op));
                nodes.extend(self.in_loops(&leaf.loops, &mut |walk| walk.wait(cells)));
            }
        }
        if !nodes.is_empty() {
            nodes.push(Node::FenceGlobal);
        }
        nodes
    }

    /// Signals cells of `cells.home`.
    pub fn signal(&mut self, cells: &Cells, amount: u32, deferred: bool) -> Vec<Node> {
        let rank = self.home(&cells.home);
        let counter = cells.counter;
        let name = self.cell_name(counter);
        self.each_cell(cells, &mut |cell| {
            let rank = rank.clone();
            let (mut nodes, cell) = named(&name, cell);
            nodes.push(if deferred {
                Node::Defer {
                    counter,
                    rank,
                    cell,
                    amount,
                }
            } else {
                Node::CounterAdd {
                    counter,
                    rank,
                    cell,
                    amount,
                }
            });
            nodes
        })
    }

    /// A batch of work without an item: signals and waits.
    pub fn once(&mut self, body: &[Op]) -> Vec<Node> {
        let leaves = leaves(self, body);
        let mut nodes = Vec::new();
        for leaf in &leaves {
            nodes.push(self.note(leaf.op));
            let inner = match &leaf.op.kind {
                OpKind::Wait { cells, .. } => {
                    self.in_loops(&leaf.loops, &mut |walk| walk.wait(cells))
                }
                OpKind::Signal { cells, amount } => {
                    self.in_loops(&leaf.loops, &mut |walk| walk.signal(cells, *amount, false))
                }
                OpKind::Copy { .. }
                | OpKind::Dot { .. }
                | OpKind::Reduce { .. }
                | OpKind::Load { .. }
                | OpKind::Store { .. }
                | OpKind::ForRanks { .. }
                | OpKind::If { .. } => Vec::new(),
            };
            nodes.extend(inner);
        }
        nodes
    }

    /// What the last CTA does: the signals and waits after the joins, then the bases.
    pub fn end(mut self, ends: &[&Block]) -> Vec<Node> {
        let mut body = Vec::new();
        for block in ends {
            match block {
                Block::Once { body: ops } => body.extend(self.once(ops)),
                Block::Join => {}
                Block::ForRanks { .. } | Block::If { .. } | Block::Items { .. } => {
                    self.at = self.b.kernel.block_loc(block);
                    self.refuse("a loop after a join", "signals and waits");
                }
            }
        }
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

    /// The rows of a chunk of a partition, or of all of it.
    pub fn rows(&mut self, partition: PartitionId, chunk: Option<&Expr>) -> Expr {
        let item = &self.b.kernel.partitions[partition.index()];
        if chunk.is_none() && self.b.kernel.dims[usize::from(item.rows.0)].chunked {
            let message = format!("all chunks of `{}` in one loop", item.name);
            self.refuse(message, "one chunk at a time: `.of(rank)`");
        }
        self.rows_in(partition, chunk)
    }

    /// The same of a loop that is known to be legal.
    pub fn rows_in(&self, partition: PartitionId, chunk: Option<&Expr>) -> Expr {
        let rows = self.b.kernel.partitions[partition.index()].rows;
        match chunk {
            Some(chunk) => Expr::RowsOf(rows, Box::new(chunk.clone())),
            None => Expr::Field(Field::Size(rows)),
        }
    }
}

/// Whether all items of a loop make the same wait.
pub(super) fn common(leaf: &Leaf<'_>) -> bool {
    let one = |index: &CellIndex| matches!(index, CellIndex::Rank(Pick::One(_)));
    matches!(&leaf.op.kind, OpKind::Wait { cells, .. } if leaf.loops.is_empty() && cells.index.iter().all(one))
}

/// A name for the cell, unless it is simple.
fn named(name: &str, cell: Expr) -> (Vec<Node>, Expr) {
    match cell {
        Expr::Binary(..) => {
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

/// Whether a load is of a vector along the columns.
pub(super) fn is_vector(kernel: &Kernel, region: &Region) -> bool {
    kernel.buffers[region.buffer.index()].kind == TensorKind::Vector
}
