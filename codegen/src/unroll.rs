//! A kernel on one world and shape, as the steps of every agent: what verifier, emulator and timeline all consume.
//!
//! An agent is one role of one rank. Its steps stand in program order, cut into items. One CTA does an item's steps
//! in order; items are claimed in order, and are otherwise concurrent unless a join (or a sequential role) stands
//! between them: [`Item::phase`] counts those.

mod places;

use crate::diag::{Diagnostic, Rule};
use crate::kernel::{Axis, Block, Cells, Kernel, Op, OpId, OpKind, Region, ValueId};
use crate::order::RankOrder;
use crate::program::{
    CellIndex, CounterDim, CounterId, Home, Pick, StoreMode, TensorId, TensorKind, Var,
};
use crate::rank::{RankError, RankExpr};
use crate::shape::{self, Extent, Geometry};
use crate::value::AccId;

/// `home` of a span or signal that addresses every rank at once.
pub const EVERYWHERE: u16 = u16::MAX;

/// All steps of one agent in one launch.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Agent {
    /// The rank.
    pub rank: u16,
    /// The index of its role in [`Kernel::roles`].
    pub role: u16,
    /// The steps, item after item.
    pub steps: Vec<Step>,
    /// The items, in the order they are claimed.
    pub items: Vec<Item>,
}

/// One unit of work: a range of an agent's steps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Item {
    /// Its first step.
    pub start: u32,
    /// One past its last step.
    pub end: u32,
    /// How many joins came before it: items of an earlier phase happen before items of a later one.
    pub phase: u32,
}

/// One concrete operation.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Step {
    /// Which op of the kernel it is an instance of.
    pub op: OpId,
    /// What it does.
    pub kind: StepKind,
}

/// What a step does.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum StepKind {
    /// Block until my cell grew by its target.
    Wait {
        /// The set.
        counter: CounterId,
        /// The cell.
        cell: u32,
        /// By how much in this launch; `None`: by all that arrives in one launch.
        at_least: Option<u32>,
    },
    /// Add to a cell of `home`.
    Signal {
        /// The set.
        counter: CounterId,
        /// Whose cell.
        home: u16,
        /// The cell.
        cell: u32,
        /// How much.
        amount: u32,
    },
    /// Move data unchanged.
    Copy {
        /// To where; may be [`EVERYWHERE`].
        dst: Span,
        /// From where.
        src: Span,
    },
    /// `acc += a · bᵀ`.
    Dot {
        /// The accumulator.
        acc: AccId,
        /// Rows of the result.
        a: Span,
        /// Columns of the result (its rows) over the same K.
        b: Span,
    },
    /// `acc += from`; [`EVERYWHERE`] sums over all ranks.
    Reduce {
        /// The accumulator.
        acc: AccId,
        /// What is added.
        from: Span,
    },
    /// `acc = from`.
    Load {
        /// The accumulator.
        acc: AccId,
        /// From where; one row of a vector.
        from: Span,
    },
    /// Write or add to an item; may be [`EVERYWHERE`].
    Store {
        /// To where.
        dst: Span,
        /// Replace or add.
        mode: StoreMode,
        /// What.
        value: ValueId,
    },
}

/// A rectangle of one rank's buffer, in global rows and columns.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Span {
    /// The buffer.
    pub buffer: TensorId,
    /// Whose memory, or [`EVERYWHERE`].
    pub home: u16,
    /// Which slot.
    pub slot: u16,
    /// Which rows.
    pub rows: Extent,
    /// Which columns.
    pub columns: Extent,
}

impl Span {
    /// How many elements.
    pub fn elements(&self) -> u64 {
        u64::from(self.rows.len()) * u64::from(self.columns.len())
    }
    /// Whether both touch a common element of the same memory.
    pub fn overlaps(&self, other: &Span) -> bool {
        self.buffer == other.buffer
            && (self.home == other.home || self.home == EVERYWHERE || other.home == EVERYWHERE)
            && self.slot == other.slot
            && self.rows.overlaps(other.rows)
            && self.columns.overlaps(other.columns)
    }
}

/// The steps of every agent: rank by rank, role by role.
///
/// # Errors
/// The first rank, slot or cell that is out of bounds, with the values that made it so.
pub fn unroll(kernel: &Kernel, geometry: &Geometry) -> Result<Vec<Agent>, Diagnostic> {
    let mut agents = Vec::with_capacity(geometry.world as usize * kernel.roles.len());
    for rank in 0..geometry.world {
        for role in 0..kernel.roles.len() {
            agents.push(agent(kernel, geometry, rank, role)?);
        }
    }
    Ok(agents)
}

/// The steps of one agent.
///
/// # Errors
/// As [`unroll`].
pub fn agent(
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
        out: Agent {
            rank: narrow(rank),
            role: narrow(role as u32),
            ..Agent::default()
        },
    };
    walker.blocks(&kernel.roles[role].body)?;
    Ok(walker.out)
}

/// What a loop variable stands for.
#[derive(Clone, Copy)]
enum Bound {
    Nothing,
    Rank(u32),
    Item {
        partition: crate::program::PartitionId,
        item: shape::Item,
    },
    Split {
        index: u32,
        count: u32,
    },
}

struct Walker<'a> {
    kernel: &'a Kernel,
    geometry: &'a Geometry,
    rank: u32,
    sequential: bool,
    bound: Vec<Bound>,
    phase: u32,
    out: Agent,
}

impl Walker<'_> {
    fn blocks(&mut self, body: &[Block]) -> Result<(), Diagnostic> {
        for block in body {
            match block {
                Block::ForRanks { var, order, body } => {
                    for step in 0..order.steps(self.geometry.world) {
                        self.bind_rank(*var, *order, step)?;
                        self.blocks(body)?;
                    }
                }
                Block::If {
                    cond,
                    then,
                    otherwise,
                } => {
                    let holds = self.holds(cond, None)?;
                    self.blocks(if holds { then } else { otherwise })?;
                }
                Block::Items {
                    var,
                    partition,
                    chunk,
                    order,
                    body,
                } => {
                    let chunks = match chunk {
                        None => 0..self.geometry.partition_chunks(*partition),
                        Some(expr) => {
                            let op = body.first().map(|op| op.id);
                            let chunk = self.rank_value(
                                expr,
                                self.geometry.partition_chunks(*partition),
                                "chunk",
                                op,
                            )?;
                            chunk..chunk + 1
                        }
                    };
                    for chunk in chunks {
                        let (rows, columns) = self.geometry.grid(*partition, Some(chunk));
                        for index in 0..rows * columns {
                            let (row, column) = order.at(index, rows, columns);
                            let item = shape::Item { chunk, row, column };
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

    fn item(&mut self, body: &[Op]) -> Result<(), Diagnostic> {
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

    fn ops(&mut self, body: &[Op]) -> Result<(), Diagnostic> {
        for op in body {
            match &op.kind {
                OpKind::ForRanks { var, order, body } => {
                    for step in 0..order.steps(self.geometry.world) {
                        self.bind_rank(*var, *order, step)?;
                        self.ops(body)?;
                    }
                }
                OpKind::ForSplits { var, count, body } => {
                    for index in 0..*count {
                        self.bound[var.index()] = Bound::Split {
                            index,
                            count: *count,
                        };
                        self.ops(body)?;
                    }
                }
                OpKind::If {
                    cond,
                    then,
                    otherwise,
                } => {
                    let holds = self.holds(cond, Some(op.id))?;
                    self.ops(if holds { then } else { otherwise })?;
                }
                OpKind::Wait { cells, at_least } => {
                    self.cells(op.id, cells, |counter, _, cell| StepKind::Wait {
                        counter,
                        cell,
                        at_least: *at_least,
                    })?
                }
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
                    let (dst, src) = (self.span(op.id, dst, to)?, self.span(op.id, src, from)?);
                    self.push(op.id, StepKind::Copy { dst, src });
                }
                OpKind::Dot { acc, a, b } => {
                    let (a, b) = (self.span(op.id, a, 0)?, self.span(op.id, b, 0)?);
                    if !a.columns.is_empty() {
                        self.push(op.id, StepKind::Dot { acc: *acc, a, b });
                    }
                }
                OpKind::Reduce { acc, from } => {
                    for slot in self.slots(op.id, from)? {
                        let from = self.span(op.id, from, slot)?;
                        self.push(op.id, StepKind::Reduce { acc: *acc, from });
                    }
                }
                OpKind::Load { acc, from } => {
                    let slot = self.slots(op.id, from)?.next().unwrap_or(0);
                    let from = self.span(op.id, from, slot)?;
                    self.push(op.id, StepKind::Load { acc: *acc, from });
                }
                OpKind::Store { dst, mode, value } => {
                    let slot = self.slots(op.id, dst)?.next().unwrap_or(0);
                    let dst = self.span(op.id, dst, slot)?;
                    self.push(
                        op.id,
                        StepKind::Store {
                            dst,
                            mode: *mode,
                            value: *value,
                        },
                    );
                }
            }
        }
        Ok(())
    }

    fn push(&mut self, op: OpId, kind: StepKind) {
        self.out.steps.push(Step { op, kind });
    }

    fn bind_rank(&mut self, var: Var, order: RankOrder, step: u32) -> Result<(), Diagnostic> {
        let world = self.geometry.world;
        let rank = order.at(self.rank, step, world);
        if rank >= world {
            let name = &self.kernel.vars[var.index()];
            return Err(Diagnostic::new(
                Rule::Bounds,
                None,
                format!("the order of `{name}` is at rank {rank} in step {step} on rank {}, but the world is {world}", self.rank),
            )
            .hint("an order must give a rank below world for every (me, step, world)"));
        }
        self.bound[var.index()] = Bound::Rank(rank);
        Ok(())
    }
}

/// Ranks, roles and slots are bounded by [`shape::MAX_WORLD`] and by lowering.
fn narrow(value: u32) -> u16 {
    u16::try_from(value).unwrap_or(EVERYWHERE)
}
