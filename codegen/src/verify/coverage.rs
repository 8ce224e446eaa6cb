//! Guarantee 3: every output element is written once, and every rank's contribution is summed once. What launches
//! accumulate is added to once in each and never written: what it holds after is what it held before and that.
//!
//! Follows, in the order of the greedy run, whose contributions each block of memory holds. Where guarantee 2 holds,
//! every other order gives the same.

use super::contribution::{self, AccHolds, Depth, Holds};
use super::facts::{Access, At, Facts, for_spans};
use super::race::initially_there;
use crate::diag::{Diagnostic, Rule};
use crate::kernel::ValueId;
use crate::program::{TensorId, TensorKind};
use crate::shape::Extent;
use crate::unroll::{Span, StepKind};
use crate::value::AccId;

/// An accumulator of the item an agent is at.
#[derive(Clone, Default)]
struct Acc {
    /// The item it belongs to, plus one.
    item: u32,
    /// The products added to it: their operands, and over how many elements of K of how many.
    products: Vec<Product>,
    holds: AccHolds,
}

#[derive(Clone, Copy)]
struct Product {
    operands: (TensorId, TensorId),
    /// What is added up so far, as far as it adjoins.
    over: Extent,
    done: u32,
    all: u32,
}

impl Product {
    /// The part of K it is over, unless that is all of it.
    fn depth(&self) -> Option<Depth> {
        let Product {
            operands,
            over,
            all,
            ..
        } = *self;
        (self.done < all).then_some(Depth {
            operands,
            over,
            all,
        })
    }
}

/// Follows contributions through a run.
pub(super) struct Coverage<'a, 'b> {
    facts: &'b Facts<'a>,
    blocks: Vec<Holds>,
    writes: Vec<u8>,
    adds: Vec<u8>,
    accs: Vec<Vec<Acc>>,
    found: Option<Diagnostic>,
}

impl<'a, 'b> Coverage<'a, 'b> {
    pub fn new(facts: &'b Facts<'a>) -> Self {
        let count = facts.blocks() as usize;
        let mut coverage = Coverage {
            facts,
            blocks: vec![Holds::default(); count],
            writes: vec![0; count],
            adds: vec![0; count],
            accs: vec![vec![Acc::default(); facts.kernel.accs.len()]; facts.plan.agents.len()],
            found: None,
        };
        for area in facts.areas() {
            let gathered =
                facts.kernel.buffers[usize::from(area.buffer)].kind == TensorKind::Gathered;
            for block in facts.blocks_of(area).filter(|_| gathered) {
                if initially_there(facts, area, block) {
                    coverage.blocks[block as usize] = Holds::one(u32::from(area.home));
                    coverage.writes[block as usize] = 1;
                }
            }
        }
        coverage
    }

    /// One step of the run.
    pub fn step(&mut self, at: At, kind: StepKind) {
        match kind {
            StepKind::Wait { .. } | StepKind::Signal { .. } => {}
            StepKind::Copy { src, .. } => {
                let input = self.facts.kernel.buffers[src.buffer.index()].kind == TensorKind::Local;
                let me = Holds::one(self.facts.rank(at.agent));
                let holds = if input { me } else { self.read(&src) };
                self.write(at, kind, holds);
            }
            StepKind::Dot { acc, a, b } => {
                let buffer = &self.facts.kernel.buffers[a.buffer.index()];
                let all = self.facts.plan.geometry.size(buffer.columns);
                let acc = self.acc(at, acc.0);
                acc.holds.dotted = true;
                let operands = (a.buffer, b.buffer);
                let known = acc
                    .products
                    .iter()
                    .position(|product| product.operands == operands);
                let known = known.unwrap_or_else(|| {
                    acc.products.push(Product {
                        operands,
                        over: Extent {
                            end: a.columns.start,
                            ..a.columns
                        },
                        done: 0,
                        all,
                    });
                    acc.products.len() - 1
                });
                let product = &mut acc.products[known];
                product.done += a.columns.len();
                if product.over.end == a.columns.start {
                    product.over.end = a.columns.end;
                }
                // One part of K, if nothing else was multiplied; anything but all of K is refused where it ends.
                acc.holds.depth = acc.products[0].depth();
            }
            StepKind::Reduce { acc, .. } => {
                let mut holds = Holds::default();
                let (me, world) = (self.facts.rank(at.agent), self.facts.plan.geometry.world);
                for_spans(kind, me, world, |span, _| {
                    holds = holds.plus(self.read(&span))
                });
                let acc = self.acc(at, acc.0);
                acc.holds.memory = acc.holds.memory.plus(holds);
            }
            StepKind::Load { acc, from } => {
                let kind = self.facts.kernel.buffers[from.buffer.index()].kind;
                let holds = self.read(&from);
                let acc = self.acc(at, acc.0);
                acc.holds.memory = holds;
                acc.holds.input = kind == TensorKind::Local;
            }
            StepKind::Store { dst, value, .. } => {
                let holds = self.value(at, value);
                let scratch = self.facts.kernel.buffers[dst.buffer.index()].is_scratch();
                if let (Some(Depth { over, all, .. }), false) = (holds.depth, scratch || holds.torn)
                {
                    self.unfinished(at, over.len(), all);
                }
                self.write(at, kind, holds);
            }
        }
    }

    fn acc(&mut self, at: At, acc: u16) -> &mut Acc {
        let acc = &mut self.accs[at.agent as usize][usize::from(acc)];
        if acc.item != at.item + 1 {
            acc.item = at.item + 1;
            acc.products.clear();
            acc.holds = AccHolds::default();
        }
        acc
    }

    /// A store of what is not all of a product, and may not be less.
    fn unfinished(&mut self, at: At, done: u32, all: u32) {
        let facts = self.facts;
        let (loc, who) = (facts.loc(at), facts.who(at.agent));
        let message = format!("{who} stores a product over {done} of {all} elements of K");
        self.found.get_or_insert_with(|| {
            Diagnostic::new(Rule::Coverage, loc, message)
                .note(loc, facts.deed(at))
                .hint("visit every part once: `for s in splits(n)`, without conditions; or add the parts that scratch holds")
        });
    }

    /// What an expression holds.
    fn value(&mut self, at: At, value: ValueId) -> Holds {
        let facts = self.facts;
        let value = &facts.kernel.values[usize::from(value.0)];
        for id in value.accs() {
            let products = &self.acc(at, id.0).products;
            let part =
                |product: &Product| products.len() == 1 && product.over.len() == product.done;
            let wrong = products
                .iter()
                .find(|product| {
                    product.done > product.all || product.done < product.all && !part(product)
                })
                .copied();
            if let Some(Product { done, all, .. }) = wrong {
                self.unfinished(at, done, all);
            }
        }
        let (me, world) = (facts.rank(at.agent), facts.plan.geometry.world);
        let accs = &self.accs[at.agent as usize];
        let of_acc = |id: AccId| match &accs[usize::from(id.0)] {
            acc if acc.item == at.item + 1 => acc.holds,
            _ => AccHolds::default(),
        };
        contribution::of_value(value, me, everyone(world), &of_acc)
    }

    /// What a span holds: only what all of its blocks hold counts as there; what any holds twice is twice.
    fn read(&self, span: &Span) -> Holds {
        let mut holds: Option<Holds> = None;
        self.facts.each_block(span, |block| {
            let next = self.blocks[block as usize];
            holds = Some(match holds {
                None => next,
                Some(holds) => Holds {
                    ranks: holds.ranks & next.ranks,
                    twice: holds.twice | next.twice,
                    applied: holds.applied || next.applied,
                    mixed: holds.mixed || next.mixed,
                    torn: holds.torn || next.torn || holds.depth != next.depth,
                    depth: holds.depth,
                },
            });
        });
        holds.unwrap_or_default()
    }

    fn write(&mut self, at: At, kind: StepKind, holds: Holds) {
        let (facts, blocks) = (self.facts, &mut self.blocks);
        let (writes, adds) = (&mut self.writes, &mut self.adds);
        for_spans(
            kind,
            facts.rank(at.agent),
            facts.plan.geometry.world,
            |span, access| {
                facts.each_block(&span, |block| {
                    let block = block as usize;
                    match access {
                        Access::Read => {}
                        Access::Write => {
                            blocks[block] = holds;
                            writes[block] = writes[block].saturating_add(1);
                        }
                        Access::Add => {
                            blocks[block] = blocks[block].plus(holds);
                            adds[block] = adds[block].saturating_add(1);
                        }
                    }
                });
            },
        );
    }

    /// The first output block that is not as it must be at the end.
    pub fn end(self) -> Option<Diagnostic> {
        let facts = self.facts;
        let everyone = everyone(facts.plan.geometry.world);
        if self.found.is_some() {
            return self.found;
        }
        self.untouched().or_else(|| {
            facts.areas().iter().find_map(|area| {
                let buffer = &facts.kernel.buffers[usize::from(area.buffer)];
                facts.blocks_of(area).find_map(|block| {
                    let (rows, columns) = facts.rectangle(area, block);
                    let wanted = match buffer.kind {
                        TensorKind::Gathered => {
                            let owner =
                                rows.start / facts.plan.geometry.chunk_rows(buffer.rows).max(1);
                            Some(1u128 << owner.min(127))
                        }
                        TensorKind::Scattered | TensorKind::Reduced => Some(everyone),
                        TensorKind::Out => None,
                        TensorKind::Accumulated => {
                            return self.accumulates(block, || {
                                let what =
                                    facts.rectangle_name(area.buffer, area.slot, rows, columns);
                                format!("{what} on rank {}", area.home)
                            });
                        }
                        TensorKind::Local | TensorKind::Vector | TensorKind::Scratch { .. } => {
                            return None;
                        }
                    };
                    if self.is_right(block, wanted) {
                        return None;
                    }
                    let name = facts.rectangle_name(area.buffer, area.slot, rows, columns);
                    Some(self.wrong(&format!("{name} on rank {}", area.home), block, wanted))
                })
            })
        })
    }

    /// An output that no statement writes at all has no blocks.
    fn untouched(&self) -> Option<Diagnostic> {
        let facts = self.facts;
        facts
            .kernel
            .buffers
            .iter()
            .enumerate()
            .find_map(|(index, buffer)| {
                let wanted = match buffer.kind {
                    TensorKind::Out
                    | TensorKind::Accumulated
                    | TensorKind::Scattered
                    | TensorKind::Reduced => true,
                    TensorKind::Gathered => facts.plan.geometry.world > 1,
                    TensorKind::Local | TensorKind::Vector | TensorKind::Scratch { .. } => false,
                };
                (wanted
                    && !facts
                        .areas()
                        .iter()
                        .any(|area| usize::from(area.buffer) == index))
                .then(|| {
                    Diagnostic::new(
                        Rule::Coverage,
                        None,
                        format!("no statement writes {}", buffer.name),
                    )
                    .hint(format!(
                        "{} is {}: every rank must hold all of its part at the end",
                        buffer.name,
                        buffer.kind.name()
                    ))
                })
            })
    }

    fn is_right(&self, block: u32, wanted: Option<u128>) -> bool {
        let holds = self.blocks[block as usize];
        let once = self.writes[block as usize] == 1;
        let whole = holds.depth.is_none() && !holds.torn;
        once && whole
            && wanted
                .is_none_or(|wanted| (holds.ranks, holds.twice, holds.mixed) == (wanted, 0, false))
    }

    /// What is not as it must be with a block that the launch adds to.
    fn accumulates(&self, block: u32, name: impl Fn() -> String) -> Option<Diagnostic> {
        let at = block as usize;
        let (writes, adds) = (self.writes[at], self.adds[at]);
        let tell = |message, hint| Some(self.tell(block, message, hint));
        if writes > 0 {
            return tell(
                format!("{} is written, and what it held before is lost", name()),
                "add to it: `+=`; an output that is written is Out",
            );
        }
        if adds != 1 {
            let message = match adds {
                0 => format!("nobody adds to {}", name()),
                adds => format!("{} is added to {adds} times", name()),
            };
            return tell(
                message,
                "every element that is accumulated is added to once a launch: so its bits do not depend on who comes first",
            );
        }
        self.part_of_k(block, name)
    }

    /// What does not hold one product over all of K.
    fn part_of_k(&self, block: u32, name: impl Fn() -> String) -> Option<Diagnostic> {
        let holds = self.blocks[block as usize];
        if let Some(Depth { over, all, .. }) = holds.depth.filter(|_| !holds.torn) {
            let message = format!(
                "{} holds a product over {} of {all} elements of K",
                name(),
                over.len()
            );
            let hint = "visit every part once: `for s in splits(n)`, without conditions; or add the parts that were stored";
            return Some(self.tell(block, message, hint));
        }
        holds.torn.then(|| {
            let message = format!("{} adds up parts of K that do not make up one product", name());
            let hint = "add all parts of one product, neighbours to neighbours, and apply functions to the complete sum";
            self.tell(block, message, hint)
        })
    }

    /// A diagnostic with the statements that write a block.
    fn tell(&self, block: u32, message: String, hint: &str) -> Diagnostic {
        let facts = self.facts;
        let mut found = Diagnostic::new(Rule::Coverage, None, message);
        let touches = facts
            .touches(block)
            .iter()
            .filter(|touch| touch.access != Access::Read);
        for (shown, touch) in touches.enumerate() {
            if shown == 0 {
                found.at = Some(facts.loc(touch.at));
            }
            if shown < 4 {
                found = found.note(facts.loc(touch.at), facts.deed(touch.at));
            }
        }
        found.hint(hint)
    }

    fn wrong(&self, name: &str, block: u32, wanted: Option<u128>) -> Diagnostic {
        let holds = self.blocks[block as usize];
        let writes = self.writes[block as usize];
        let adds = self.adds[block as usize];
        let list = |ranks: u128| {
            let ranks: Vec<String> = (0..128)
                .filter(|rank| ranks >> rank & 1 == 1)
                .map(|rank: u32| rank.to_string())
                .collect();
            ranks.join(", ")
        };
        let tell = |message: String, hint: &str| self.tell(block, message, hint);
        if writes == 0 && adds > 0 {
            return tell(
                format!("{name} is added to, and nobody writes it"),
                "write it first, or make it Accumulated: then the launch adds to what it held before",
            );
        }
        if writes == 0 {
            return tell(
                format!("nobody writes {name}"),
                "every element of an output is written once, on every rank that holds it",
            );
        }
        if writes > 1 {
            return tell(
                format!("{name} is written {writes} times"),
                "every element of an output is written once; `+=` adds to it",
            );
        }
        if let Some(found) = self.part_of_k(block, || name.into()) {
            return found;
        }
        if holds.twice != 0 {
            return tell(
                format!(
                    "{name} holds the contribution of rank {} twice",
                    list(holds.twice)
                ),
                "each rank's contribution is summed once",
            );
        }
        if holds.mixed {
            return tell(
                format!("{name} is no sum over ranks: a function was applied to a part of it"),
                "add the terms first (`+`, `.sum()`, `+=`), and apply functions to the complete sum",
            );
        }
        let missing = list(wanted.unwrap_or(0) & !holds.ranks);
        if !missing.is_empty() {
            return tell(
                format!("{name} lacks the contribution of rank {missing}"),
                "each rank's contribution is summed once",
            );
        }
        tell(
            format!(
                "{name} holds what belongs to rank {}",
                list(holds.ranks & !wanted.unwrap_or(0))
            ),
            "a chunk of a Gathered tensor is its owner's, unchanged",
        )
    }
}

/// The set of all ranks of a world.
fn everyone(world: u32) -> u128 {
    (0..world).fold(0, |ranks, rank| ranks | 1 << rank)
}
