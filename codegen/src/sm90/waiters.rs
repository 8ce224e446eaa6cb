//! Who waits for which counter.

use crate::kernel::{Block, Kernel, Op, OpKind};
use crate::order::RankOrder;
use crate::program::{CellIndex, CounterId, Pick, Var};
use crate::rank::RankExpr;
use std::collections::{BTreeMap, BTreeSet};

/// Waits of a kernel, by counter.
#[derive(Default)]
pub(super) struct Counters {
    /// Number of wait statements, by counter.
    waits: BTreeMap<CounterId, u32>,
    /// Counters whose cells may be waited for more than once in a launch: by several items, batches or steps.
    again: BTreeSet<CounterId>,
    /// Counters that are signalled after copies by CTAs, batch by batch.
    by_batches: BTreeSet<CounterId>,
}

/// Surroundings of a wait.
#[derive(Clone, Default)]
struct At {
    /// The loops over ranks: their variables, and whether each rank is visited once at most.
    loops: Vec<(Var, bool)>,
    /// The ranks that an item, if there is one, is of.
    shard: Option<RankExpr>,
    /// True if its item copies: each of its batches waits.
    copies: bool,
    /// True if its loop visits an item in some launches only: in the others nobody would move the base on.
    selects: bool,
}

impl Counters {
    pub fn of(kernel: &Kernel) -> Counters {
        let mut counters = Counters::default();
        for role in kernel.roles.iter().filter(|role| !role.kind.sequential()) {
            counters.blocks(kernel, &role.body, &At::default());
        }
        counters
    }

    /// True if each cell has one waiter, which can move its base on at once.
    pub fn single(&self, counter: CounterId) -> bool {
        !self.again.contains(&counter) && self.waits.get(&counter) == Some(&1)
    }

    /// True if several arrivals stand for each that the kernel counts.
    pub fn by_batches(&self, counter: CounterId) -> bool {
        self.by_batches.contains(&counter)
    }

    /// Counters whose bases the last CTA moves on.
    pub fn shared(&self) -> Vec<CounterId> {
        let all = self.waits.keys().copied();
        all.filter(|counter| !self.single(*counter)).collect()
    }

    fn blocks(&mut self, kernel: &Kernel, body: &[Block], at: &At) {
        for block in body {
            match block {
                Block::ForRanks {
                    var, order, body, ..
                } => self.blocks(kernel, body, &at.within(*var, order)),
                Block::If {
                    then, otherwise, ..
                } => {
                    self.blocks(kernel, then, at);
                    self.blocks(kernel, otherwise, at);
                }
                Block::Items {
                    partition,
                    shard,
                    selection,
                    body,
                    ..
                } => {
                    let divided = kernel.partitions[partition.index()].column_block.is_some();
                    let at = At {
                        selects: !selection.is_fixed(divided),
                        shard: shard.clone(),
                        copies: copies(body),
                        ..at.clone()
                    };
                    self.ops(body, &at);
                }
                Block::Once { body } => self.ops(body, at),
                Block::Join => {}
            }
        }
    }

    fn ops(&mut self, body: &[Op], at: &At) {
        for op in body {
            match &op.kind {
                OpKind::ForRanks { var, order, body } => self.ops(body, &at.within(*var, order)),
                OpKind::If {
                    then, otherwise, ..
                } => {
                    self.ops(then, at);
                    self.ops(otherwise, at);
                }
                OpKind::Wait { cells, .. } => {
                    *self.waits.entry(cells.counter).or_default() += 1;
                    if !at.once(&cells.index) {
                        self.again.insert(cells.counter);
                    }
                }
                OpKind::Signal { cells, .. } => {
                    if at.copies {
                        self.by_batches.insert(cells.counter);
                    }
                }
                OpKind::Copy { .. }
                | OpKind::Dot { .. }
                | OpKind::Reduce { .. }
                | OpKind::Load { .. }
                | OpKind::Store { .. } => {}
            }
        }
    }
}

impl At {
    fn within(&self, var: Var, order: &RankOrder) -> At {
        let once = match order {
            RankOrder::Ascending => true,
            RankOrder::FromMe { stride, .. } => stride.abs() == 1,
            // Whom a closure visits is not known here.
            RankOrder::Table(_) => false,
        };
        let mut within = self.clone();
        within.loops.push((var, once));
        within
    }

    /// True if no cell of that index is waited for twice: it names the item, and every loop around it goes on to other cells.
    fn once(&self, index: &[CellIndex]) -> bool {
        let item = index
            .iter()
            .any(|index| matches!(index, CellIndex::Item(_)));
        let moves = |var: Var| {
            let rank = RankExpr::Var(var);
            let named = CellIndex::Rank(Pick::One(rank.clone()));
            self.shard == Some(rank) || index.contains(&named)
        };
        item && !self.copies
            && !self.selects
            && self.loops.iter().all(|(var, once)| *once && moves(*var))
    }
}

fn copies(body: &[Op]) -> bool {
    let mut found = false;
    crate::kernel::visit_ops(body, &mut |op| {
        found |= matches!(op.kind, OpKind::Copy { .. })
    });
    found
}
