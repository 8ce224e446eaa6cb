//! Unrolls one agent: runs its loops, evaluates orders, and turns regions and cells into numbers.

mod cells;

use super::picked::Picked;
use super::step::{Agent, Item, Step, StepKind};
use crate::diag::{Diagnostic, Rule};
use crate::kernel::{Axis, Block, DimId, Kernel, Op, OpId, OpKind, Region, Turn};
use crate::order::{Chosen, RankOrder, Selection, left_out};
use crate::program::{Home, Loc, PartitionId, Pick, Var};
use crate::rank::{Cond, RankError, RankExpr};
use crate::region::{Owner, Rectangle};
use crate::shape::{self, Extent, Geometry};

pub(super) fn walk(
    kernel: &Kernel,
    geometry: &Geometry,
    rank: u32,
    role: usize,
) -> Result<Agent, Diagnostic> {
    let mut walker = Walker {
        kernel,
        geometry,
        rank,
        sequential: kernel.roles[role].kind.sequential(),
        bound: vec![Bound::Nothing; kernel.vars.len()],
        phase: 0,
        slot: None,
        slab: None,
        out: Agent {
            rank: narrow(rank),
            role: narrow(role as u32),
            ..Agent::default()
        },
    };
    walker.blocks(&kernel.roles[role].body)?;
    Ok(walker.out)
}

/// A loop variable's value.
#[derive(Clone, Copy)]
enum Bound {
    Nothing,
    Rank(u32),
    Item {
        partition: PartitionId,
        item: shape::Item,
    },
}

struct Walker<'a> {
    kernel: &'a Kernel,
    geometry: &'a Geometry,
    rank: u32,
    sequential: bool,
    bound: Vec<Bound>,
    phase: u32,
    /// The slot whose turn it is, of a sum over several.
    slot: Option<(&'a Pick, u32)>,
    /// The slab whose turn it is, of a product that waits slab by slab.
    slab: Option<Slab>,
    out: Agent,
}

/// A slab of K.
#[derive(Clone, Copy)]
struct Slab {
    /// Partition that it is of.
    of: PartitionId,
    /// Index of the slab.
    index: u32,
    /// Columns of the slab.
    columns: Extent,
}

impl<'a> Walker<'a> {
    fn blocks(&mut self, body: &'a [Block]) -> Result<(), Diagnostic> {
        for block in body {
            match block {
                Block::ForRanks {
                    at,
                    var,
                    order,
                    body,
                } => {
                    for step in 0..self.steps(order, at)? {
                        self.bind_rank(*var, order, step, at)?;
                        self.blocks(body)?;
                    }
                }
                Block::If {
                    at,
                    cond,
                    then,
                    otherwise,
                } => {
                    let holds = self.holds(cond, at)?;
                    self.blocks(if holds { then } else { otherwise })?;
                }
                Block::Items {
                    at,
                    var,
                    partition,
                    shard,
                    order,
                    selection,
                    body,
                } => {
                    let shards = match shard {
                        None => 0..self.geometry.partition_shards(*partition),
                        Some(expr) => {
                            let shard = self.rank_value(
                                expr,
                                self.geometry.partition_shards(*partition),
                                "shard",
                                at,
                            )?;
                            shard..shard + 1
                        }
                    };
                    for shard in shards {
                        let (rows, columns) = self.geometry.grid(*partition, Some(shard));
                        let some = self.some(selection, rows * columns, *partition, at)?;
                        for nth in 0..some.count {
                            let (row, column) = order.at(some.at(nth), rows, columns);
                            let item = shape::Item { shard, row, column };
                            self.bound[var.index()] = Bound::Item {
                                partition: *partition,
                                item,
                            };
                            self.item(body)?;
                        }
                    }
                }
                Block::Once { body } => self.item(body)?,
                Block::Join => self.phase += 1,
            }
        }
        Ok(())
    }

    /// Items that a loop visits, of `count`.
    fn some(
        &self,
        selection: &Selection,
        count: u32,
        partition: PartitionId,
        at: Loc,
    ) -> Result<Chosen<u32>, Diagnostic> {
        let divided = self.kernel.partitions[partition.index()]
            .column_block
            .is_some();
        if self.geometry.is_together() && !selection.is_fixed(divided) {
            // Each of them is visited in one launch or another.
            return Ok(Chosen::all(count));
        }
        let some = selection.of(count, self.rank, self.geometry.world, &self.var());
        some.map_err(|(cut, error)| self.no_value(&cut.text(&self.name()), error, at))
    }

    fn item(&mut self, body: &'a [Op]) -> Result<(), Diagnostic> {
        let start = self.out.steps.len() as u32;
        self.ops(body)?;
        let end = self.out.steps.len() as u32;
        if end > start {
            self.out.items.push(Item {
                start,
                end,
                phase: self.phase,
            });
            self.phase += u32::from(self.sequential);
        }
        Ok(())
    }

    fn ops(&mut self, body: &'a [Op]) -> Result<(), Diagnostic> {
        for turn in self.kernel.turns(body) {
            match turn {
                Turn::One(op) => self.op(op)?,
                Turn::Slots {
                    waits,
                    sum,
                    slots,
                    own,
                } => {
                    let own = own.then_some(self.rank);
                    let others = self.picked(slots, self.geometry.world, "slot", sum.id)?;
                    let mut ranks: Vec<u32> = others.chain(own).collect();
                    ranks.sort_unstable();
                    for rank in ranks {
                        self.slot = Some((slots, rank));
                        let waits = waits.iter().filter(|_| own != Some(rank));
                        waits.chain([sum]).try_for_each(|op| self.op(op))?;
                        self.slot = None;
                    }
                }
                Turn::Slabs { waits, dots, of } => {
                    let partition = &self.kernel.partitions[of.index()];
                    let k = self.geometry.size(partition.columns);
                    let width = partition.column_block.unwrap_or(k).max(1);
                    for index in 0..k.div_ceil(width) {
                        let start = index * width;
                        let columns = Extent {
                            start,
                            end: k.min(start + width),
                        };
                        self.slab = Some(Slab { of, index, columns });
                        waits.iter().chain(dots).try_for_each(|op| self.op(op))?;
                        self.slab = None;
                    }
                }
            }
        }
        Ok(())
    }

    fn op(&mut self, op: &'a Op) -> Result<(), Diagnostic> {
        match &op.kind {
            OpKind::ForRanks { var, order, body } => {
                let at = self.kernel.loc(op.id);
                for step in 0..self.steps(order, at)? {
                    self.bind_rank(*var, order, step, at)?;
                    self.ops(body)?;
                }
            }
            OpKind::If {
                cond,
                then,
                otherwise,
            } => {
                let holds = self.holds(cond, self.kernel.loc(op.id))?;
                self.ops(if holds { then } else { otherwise })?;
            }
            OpKind::Wait {
                cells, at_least, ..
            } => self.cells(op.id, cells, |counter, _, cell| StepKind::Wait {
                counter,
                cell,
                at_least: *at_least,
            })?,
            OpKind::Signal { cells, amount } => {
                self.cells(op.id, cells, |counter, home, cell| StepKind::Signal {
                    counter,
                    home,
                    cell,
                    amount: *amount,
                })?
            }
            OpKind::Copy { dst, src } => {
                let to = self.slots(op.id, dst)?.next().unwrap_or(0);
                let from = self.slots(op.id, src)?.next().unwrap_or(0);
                let dst = self.rectangle(op.id, dst, to)?;
                let src = self.rectangle(op.id, src, from)?;
                self.push(op.id, StepKind::Copy { dst, src });
            }
            OpKind::Dot { acc, a, b } => {
                let (mut a, mut b) = (self.rectangle(op.id, a, 0)?, self.rectangle(op.id, b, 0)?);
                if let Some(Slab { columns, .. }) = self.slab {
                    (a.columns, b.columns) = (columns, columns);
                }
                self.push(op.id, StepKind::Dot { acc: *acc, a, b });
            }
            OpKind::Reduce { acc, from, own } => {
                for slot in self.slots(op.id, from)? {
                    let of = self.rectangle(op.id, from, slot)?;
                    let kind = match own.filter(|_| slot == self.rank) {
                        Some(value) => StepKind::OwnTerm {
                            acc: *acc,
                            value,
                            of,
                        },
                        None => StepKind::Reduce {
                            acc: *acc,
                            from: of,
                        },
                    };
                    self.push(op.id, kind);
                }
            }
            OpKind::Load { acc, from } => {
                let slot = self.slots(op.id, from)?.next().unwrap_or(0);
                let from = self.rectangle(op.id, from, slot)?;
                self.push(op.id, StepKind::Load { acc: *acc, from });
            }
            OpKind::Store {
                dst,
                mode,
                value,
                amax,
            } => {
                let slot = self.slots(op.id, dst)?.next().unwrap_or(0);
                let dst = self.rectangle(op.id, dst, slot)?;
                self.push(
                    op.id,
                    StepKind::Store {
                        dst,
                        mode: *mode,
                        value: *value,
                        amax: *amax,
                    },
                );
            }
        }
        Ok(())
    }

    fn push(&mut self, op: OpId, kind: StepKind) {
        self.out.steps.push(Step { op, kind });
    }

    fn steps(&self, order: &RankOrder, at: Loc) -> Result<u32, Diagnostic> {
        let steps = order.steps(self.rank, self.geometry.world, &self.var());
        steps.map_err(|error| {
            let fails =
                |n: &&RankExpr| left_out(n, self.rank, self.geometry.world, &self.var()).is_err();
            let n = order.but_lasts().iter().find(fails);
            let text = n.map(|n| n.text(&self.name())).unwrap_or_default();
            self.no_value(&format!("but_last({text})"), error, at)
        })
    }

    fn bind_rank(
        &mut self,
        var: Var,
        order: &RankOrder,
        step: u32,
        at: Loc,
    ) -> Result<(), Diagnostic> {
        let world = self.geometry.world;
        let rank = order.at(self.rank, step, world);
        if rank >= world {
            let name = &self.kernel.vars[var.index()];
            return Err(Diagnostic::new(
                Rule::Bounds,
                at,
                format!("the order of `{name}` is at rank {rank} in step {step} on rank {}, but the world is {world}", self.rank),
            )
            .hint("make the order give a rank below world for every (me, step, world)"));
        }
        self.bound[var.index()] = Bound::Rank(rank);
        Ok(())
    }

    fn var(&self) -> impl Fn(Var) -> Option<i64> + '_ {
        |var| match self.bound.get(var.index()) {
            Some(Bound::Rank(index)) => Some(i64::from(*index)),
            Some(Bound::Nothing | Bound::Item { .. }) | None => None,
        }
    }

    fn name(&self) -> impl Fn(Var) -> String + '_ {
        |var| {
            self.kernel
                .vars
                .get(var.index())
                .cloned()
                .unwrap_or_default()
        }
    }

    fn holds(&self, cond: &Cond, at: Loc) -> Result<bool, Diagnostic> {
        cond.eval(self.rank, self.geometry.world, &self.var())
            .map_err(|error| self.no_value(&cond.text(&self.name()), error, at))
    }

    fn no_value(&self, text: &str, error: RankError, at: Loc) -> Diagnostic {
        Diagnostic::new(
            Rule::Bounds,
            at,
            format!("`{text}` has no value on rank {}: {error}", self.rank),
        )
    }

    fn rank_value(
        &self,
        expr: &RankExpr,
        below: u32,
        what: &str,
        at: Loc,
    ) -> Result<u32, Diagnostic> {
        let value = expr
            .eval(self.rank, self.geometry.world, &self.var())
            .map_err(|error| self.no_value(&expr.text(&self.name()), error, at))?;
        match u32::try_from(value) {
            Ok(value) if value < below => Ok(value),
            _ => Err(Diagnostic::new(
                Rule::Bounds,
                at,
                format!(
                    "`{}` is {what} {value} on rank {}, but in a world of {} {what}s end at {}",
                    expr.text(&self.name()),
                    self.rank,
                    self.geometry.world,
                    below.saturating_sub(1)
                ),
            )
            .hint("wrap it with `% world()`, or guard it with `if`")),
        }
    }

    fn picked(&self, pick: &Pick, below: u32, what: &str, op: OpId) -> Result<Picked, Diagnostic> {
        let one = |index: u32| Picked {
            range: index..index + 1,
            without: None,
        };
        if let Some((_, slot)) = self.slot.filter(|(slots, _)| *slots == pick) {
            return Ok(one(slot));
        }
        Ok(match pick {
            Pick::One(expr) => one(self.rank_value(expr, below, what, self.kernel.loc(op))?),
            Pick::All => Picked {
                range: 0..below,
                without: None,
            },
            Pick::Others => Picked {
                range: 0..below,
                without: Some(self.rank),
            },
        })
    }

    fn slots(&self, op: OpId, region: &Region) -> Result<Picked, Diagnostic> {
        let buffer = &self.kernel.buffers[region.buffer.index()];
        match &region.slot {
            None => Ok(Picked {
                range: 0..1,
                without: None,
            }),
            Some(pick) => {
                let world = self.geometry.world;
                let below = match pick {
                    Pick::All => buffer.slots_of_all(world),
                    Pick::One(_) | Pick::Others => buffer.slots(world),
                };
                self.picked(pick, below, "slot", op)
            }
        }
    }

    fn owner(&self, home: &Home, op: OpId) -> Result<Owner, Diagnostic> {
        Ok(match home {
            Home::Me => Owner::Rank(narrow(self.rank)),
            Home::On(expr) => {
                let at = self.kernel.loc(op);
                Owner::Rank(narrow(self.rank_value(
                    expr,
                    self.geometry.world,
                    "rank",
                    at,
                )?))
            }
            Home::Everywhere => Owner::Everywhere,
        })
    }

    fn rectangle(&self, op: OpId, region: &Region, slot: u32) -> Result<Rectangle, Diagnostic> {
        let buffer = &self.kernel.buffers[region.buffer.index()];
        let owner = self.owner(&region.home, op)?;
        let rows = self.axis(region.rows, buffer.rows);
        let rows = match (region.rows, buffer.usage.rows_each()) {
            (Axis::All, _) | (_, 1) => rows,
            (Axis::RowsOf(_) | Axis::ColumnsOf(_), each) => rows.in_blocks(each),
        };
        let columns = self.axis(region.columns, buffer.columns);
        let mut rectangle = Rectangle {
            tensor: region.buffer,
            owner,
            slot: narrow(slot),
            rows,
            columns,
        };
        if let Owner::Rank(home) = owner
            && !rows.is_empty()
            && !buffer.usage.is_repeated()
        {
            let held = self.geometry.held(buffer, u32::from(home));
            // Of an item in several shards, memory that has one has the rows of that.
            if self.is_across(region) {
                rectangle.rows = rows.within(held);
            } else if !held.contains(rows) {
                return Err(Diagnostic::new(
                    Rule::Bounds,
                    self.kernel.loc(op),
                    format!(
                        "rank {} accesses rows {}..{} of {} on rank {home}, which holds only rows {}..{} of it",
                        self.rank, rows.start, rows.end, buffer.name, held.start, held.end
                    ),
                )
                .hint(format!("{} holds on each rank only the shard it owns: address the owner with `.on(rank)`", buffer.name)));
            }
        }
        Ok(rectangle)
    }

    /// True if the rows of a region are those of an item that may be in several shards of them.
    fn is_across(&self, region: &Region) -> bool {
        let Axis::RowsOf(var) = region.rows else {
            return false;
        };
        let dim = self.kernel.buffers[region.buffer.index()].rows;
        match self.bound[var.index()] {
            Bound::Item { partition, .. } => self.kernel.is_across(partition, dim),
            Bound::Nothing | Bound::Rank(_) => false,
        }
    }

    fn axis(&self, axis: Axis, dim: DimId) -> Extent {
        let all = Extent {
            start: 0,
            end: self.geometry.size(dim),
        };
        let bound = |var: Var| self.bound[var.index()];
        match axis {
            Axis::All => all,
            Axis::RowsOf(var) => match bound(var) {
                Bound::Item { partition, item } => self.geometry.item(partition, item).0,
                Bound::Nothing | Bound::Rank(_) => all,
            },
            Axis::ColumnsOf(var) => match bound(var) {
                Bound::Item { partition, item } => self.geometry.item(partition, item).1,
                Bound::Nothing | Bound::Rank(_) => all,
            },
        }
    }
}

/// Ranks, roles and slots are bounded by [`shape::MAX_WORLD`] and by lowering.
fn narrow(value: u32) -> u16 {
    u16::try_from(value).unwrap_or(u16::MAX)
}
