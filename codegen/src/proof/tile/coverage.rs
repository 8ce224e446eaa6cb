//! Guarantee 3: every output element is written once, and is the sum that its type promises.
//!
//! - [`AtEnd::Sum`]: every rank's contribution exactly once, or a function of that
//!   sum and of inputs ([`Sums::complete`]).
//! - [`AtEnd::Accumulated`]: its old contents plus every product of the launch exactly once. Each launch adds to it
//!   once and never overwrites it.
//! - [`AtEnd::Gathered`]: its own rows, from the rank that owns them, unchanged.
//! - [`AtEnd::Computed`]: in rows that rank `r` owns any expression that it computed, the same on every rank.
//! - [`AtEnd::Sent`]: in slot `s` any expression that rank `s` computed, at the element's own row and column.
//! - [`AtEnd::Own`]: any expression of complete products and of inputs, at the element's own row and column.
//! - Computed scales: of their output's blocks, each by the store that writes them ([`super::computed_scales`]).
//! - An amax: every element of its output, before the scale, and nothing else ([`amaxes`]).
//!
//! Tracks the sum that each block of memory holds, in the order of the greedy run. If guarantee 2 holds, every other
//! order gives the same sums.

mod amaxes;
mod content;
mod report;

use super::contribution::{NOTHING, SumId, Sums, Term, TermId};
use super::facts::{Area, At, Facts};
use super::race::initially_there;
use crate::diag::{Diagnostic, Rule};
use crate::kernel::ValueId;
use crate::map::Map;
use crate::program::{AtEnd, Side, TensorId};
use crate::region::{Access, Owner, Rectangle};
use crate::shape::Extent;
use crate::undo::{Fix, undone};
use crate::unroll::StepKind;
use crate::value::AccId;
use content::{Content, ContentId, Contents};

/// An accumulator of an agent's current item.
#[derive(Clone, Default)]
struct Acc {
    /// Number of the item, plus one.
    item: u32,
    sum: SumId,
    content: ContentId,
    /// Rows and columns of the item. A vector has all rows.
    rows: Option<Extent>,
    columns: Option<Extent>,
    /// A product that has only a part of K so far: its operands, and where the part ends.
    begun: Option<((TensorId, TensorId), u32)>,
}

/// Tracks sums through a run.
pub(super) struct Coverage<'a, 'b> {
    facts: &'b Facts<'a>,
    sums: Sums<'a>,
    blocks: Vec<SumId>,
    contents: Contents,
    /// Content of each block.
    held: Vec<ContentId>,
    writes: Vec<u8>,
    adds: Vec<u8>,
    accs: Vec<Vec<Acc>>,
    /// Number of elements that each rank's amaxes are of.
    amaxes: Map<(TensorId, u16), u64>,
    /// Place at which a term was first stored that no sum over ranks may have.
    blame: Map<TermId, At>,
}

impl<'a, 'b> Coverage<'a, 'b> {
    pub fn new(facts: &'b Facts<'a>) -> Self {
        let count = facts.blocks() as usize;
        let mut coverage = Coverage {
            facts,
            sums: Sums::new(facts.kernel, facts.plan.geometry.world),
            blocks: vec![NOTHING; count],
            contents: Contents::new(&facts.kernel.values),
            held: vec![ContentId::default(); count],
            writes: vec![0; count],
            adds: vec![0; count],
            accs: vec![vec![Acc::default(); facts.kernel.accs.len()]; facts.plan.agents.len()],
            amaxes: Map::default(),
            blame: Map::default(),
        };
        for area in facts.areas() {
            let tensor = TensorId(area.buffer);
            let input = coverage.contents.id(Content::Input {
                rank: area.home,
                slot: area.slot,
                tensor,
            });
            for block in facts.blocks_of(area) {
                coverage.held[block as usize] = input;
            }
            if !facts.kernel.buffers[tensor.index()].usage.is_gathered() {
                continue;
            }
            let own = coverage.sums.one(Term::Input {
                rank: area.home,
                tensor,
            });
            for block in facts.blocks_of(area) {
                if initially_there(facts, area, block) {
                    coverage.blocks[block as usize] = own;
                    coverage.writes[block as usize] = 1;
                }
            }
        }
        coverage
    }

    /// One step of the run.
    pub fn step(&mut self, at: At, kind: StepKind) {
        let rank = self.facts.rank(at.agent) as u16;
        match kind {
            StepKind::Wait { .. } | StepKind::Signal { .. } => {}
            StepKind::Copy { dst, src } => {
                let mut sum = self.read(rank, &src);
                let mut held = self.held_in(&src);
                if (src.rows, src.columns) != (dst.rows, dst.columns) {
                    let elsewhere = self.sums.one(Term::Elsewhere);
                    sum = self.sums.plus(sum, elsewhere);
                    held = vec![self.contents.fresh()];
                } else if src.tensor != dst.tensor {
                    // Only blocks of one buffer are divided alike.
                    held = vec![self.contents.one_of(&held)];
                }
                self.write(at, kind, sum, &held);
            }
            StepKind::Dot { acc, a, b } => {
                let dim = self.facts.kernel.buffers[a.tensor.index()].columns;
                let whole = self.facts.plan.geometry.size(dim);
                let operands = (a.tensor, b.tensor);
                // A part of K goes on where the part before it ended.
                let begun = self.acc(at, acc).begun.take();
                let goes_on = a.columns == b.columns
                    && begun.unwrap_or((operands, 0)) == (operands, a.columns.start);
                let product = if !goes_on {
                    self.sums.one(Term::Elsewhere)
                } else if a.columns.end == whole {
                    self.sums.one(Term::Product { rank, operands })
                } else {
                    self.acc(at, acc).begun = Some((operands, a.columns.end));
                    NOTHING
                };
                let of = [a, b].map(|span| self.content(&span));
                self.add_content(at, acc, of.into());
                self.fill(at, acc, product, Some(a.rows), Some(b.rows));
            }
            StepKind::Reduce { acc, from } => {
                let mut sum = NOTHING;
                let mut of = Vec::new();
                // Its scales are written with it.
                for home in from.owner.ranks(self.facts.plan.geometry.world) {
                    let owner = Owner::Rank(home);
                    let one = Rectangle { owner, ..from };
                    let there = self.read(rank, &one);
                    sum = self.sums.plus(sum, there);
                    of.push(self.content(&one));
                }
                self.add_content(at, acc, of);
                self.fill(at, acc, sum, Some(from.rows), Some(from.columns));
            }
            StepKind::OwnTerm { acc, value, of } => {
                let (sum, content) = self.value(at, value, &of);
                self.add_content(at, acc, vec![content]);
                self.fill(at, acc, sum, Some(of.rows), Some(of.columns));
            }
            StepKind::Load { acc, from } => {
                let sum = self.read(rank, &from);
                *self.acc(at, acc) = Acc {
                    item: at.item + 1,
                    content: self.content(&from),
                    ..Acc::default()
                };
                let usage = self.facts.kernel.buffers[from.tensor.index()].usage;
                let [rows, columns] = Side::ALL.map(|side| {
                    let mut own = Side::ALL.into_iter();
                    own.find(|own| usage.read_along(*own) == Some(side))
                        .map(|own| match own {
                            Side::Rows => from.rows,
                            Side::Columns => from.columns,
                        })
                });
                self.fill(at, acc, sum, rows, columns);
            }
            StepKind::Store {
                dst, value, amax, ..
            } => {
                if let Some(amax) = amax {
                    *self.amaxes.entry((amax.to, rank)).or_default() += dst.elements();
                }
                let (sum, content) = self.value(at, value, &dst);
                self.write(at, kind, sum, &[content]);
            }
        }
    }

    fn acc(&mut self, at: At, acc: AccId) -> &mut Acc {
        let acc = &mut self.accs[at.agent as usize][usize::from(acc.0)];
        if acc.item != at.item + 1 {
            *acc = Acc {
                item: at.item + 1,
                ..Acc::default()
            };
        }
        acc
    }

    /// Multiplies, or adds, contents into an accumulator.
    fn add_content(&mut self, at: At, acc: AccId, of: Vec<ContentId>) {
        let before = self.acc(at, acc).content;
        let content = self.contents.id(Content::Filled { acc, before, of });
        self.acc(at, acc).content = content;
    }

    /// Adds to an accumulator.
    fn fill(
        &mut self,
        at: At,
        acc: AccId,
        sum: SumId,
        rows: Option<Extent>,
        columns: Option<Extent>,
    ) {
        let filled = self.acc(at, acc);
        let moved = filled.columns.is_some_and(|known| Some(known) != columns)
            || filled.rows.is_some_and(|known| Some(known) != rows);
        (filled.rows, filled.columns) = (rows, columns);
        let before = filled.sum;
        let mut all = self.sums.plus(before, sum);
        if moved {
            let elsewhere = self.sums.one(Term::Elsewhere);
            all = self.sums.plus(all, elsewhere);
            self.acc(at, acc).content = self.contents.fresh();
        }
        self.acc(at, acc).sum = all;
    }

    /// The sum of an expression that is stored there, and what it is.
    fn value(&mut self, at: At, value: ValueId, dst: &Rectangle) -> (SumId, ContentId) {
        let facts = self.facts;
        let accs = &self.accs[at.agent as usize];
        let live = |id: AccId| Some(&accs[usize::from(id.0)]).filter(|acc| acc.item == at.item + 1);
        let of_acc = |id: AccId| live(id).map_or(NOTHING, |acc| acc.sum);
        let rank = facts.rank(at.agent) as u16;
        let dtype = facts.kernel.buffers[dst.tensor.index()].dtype;
        let sum = self.sums.of_value(value, rank, dtype, &of_acc);
        let content = |id: AccId| live(id).map_or(ContentId::default(), |acc| acc.content);
        let content = self.contents.stored(value, dtype, content);
        let used = facts.kernel.values[usize::from(value.0)].accs();
        // Schedules multiply over all of K. A kernel made by hand may not.
        let moved = used.into_iter().filter_map(live).any(|acc| {
            acc.begun.is_some()
                || acc.columns.is_some_and(|columns| columns != dst.columns)
                || acc.rows.is_some_and(|rows| !rows.contains(dst.rows))
        });
        let sum = self.sums.stored(sum, self.owner(dst));
        if !moved {
            return (sum, content);
        }
        let elsewhere = self.sums.one(Term::Elsewhere);
        (self.sums.plus(sum, elsewhere), self.contents.fresh())
    }

    /// The rank that owns the rows of a rectangle, if rows are divided over ranks and one has them all.
    fn owner(&self, of: &Rectangle) -> Option<u32> {
        let geometry = &self.facts.plan.geometry;
        let rows = self.facts.kernel.buffers[of.tensor.index()].rows;
        let ends = [
            of.rows.start,
            of.rows.end.saturating_sub(1).max(of.rows.start),
        ];
        let [first, last] = ends.map(|row| geometry.shard_at(rows, row));
        (geometry.shards(rows) > 1 && first == last).then(|| geometry.owner(first))
    }

    /// The sum that `rank` reads from a rectangle. All rows and columns that one item reads hold the same sum, since items of
    /// a partition do the same in every shard. If they do not, what is computed from them is part of no sum.
    fn read(&mut self, rank: u16, of: &Rectangle) -> SumId {
        let tensor = of.tensor;
        let usage = self.facts.kernel.buffers[tensor.index()].usage;
        if usage.is_fixed() {
            return self.sums.one(Term::Input { rank, tensor });
        }
        let (mut found, mut even) = (None, true);
        self.facts.blocks_in(of, |block| {
            let next = self.blocks[block as usize];
            even &= *found.get_or_insert(next) == next;
        });
        match found {
            _ if !even => self.sums.one(Term::Uneven),
            Some(sum) => sum,
            // Nobody writes it: it still has its initial contents.
            None if usage.is_gathered() => {
                let rank = self.owner(of).unwrap_or(0) as u16;
                self.sums.one(Term::Input { rank, tensor })
            }
            None => NOTHING,
        }
    }

    /// Contents of each block of a rectangle.
    fn held_in(&mut self, of: &Rectangle) -> Vec<ContentId> {
        let mut found = Vec::new();
        self.facts
            .blocks_in(of, |block| found.push(self.held[block as usize]));
        if found.is_empty() {
            // Nobody writes it.
            let homes = of.owner.ranks(self.facts.plan.geometry.world);
            found.extend(homes.map(|rank| {
                self.contents.id(Content::Input {
                    rank,
                    slot: of.slot,
                    tensor: of.tensor,
                })
            }));
        }
        found
    }

    /// Content of a rectangle.
    fn content(&mut self, of: &Rectangle) -> ContentId {
        let held = self.held_in(of);
        self.contents.one_of(&held)
    }

    /// `held` is what each block of a span gets, in turn, or all of them.
    fn write(&mut self, at: At, kind: StepKind, sum: SumId, held: &[ContentId]) {
        for term in self.sums.suspects(sum) {
            self.blame.entry(term).or_insert(at);
        }
        let (facts, sums, blame) = (self.facts, &mut self.sums, &mut self.blame);
        let (blocks, writes, adds) = (&mut self.blocks, &mut self.writes, &mut self.adds);
        let (all_held, contents) = (&mut self.held, &mut self.contents);
        let (mut home, mut next) = (None, held.iter().cycle());
        facts.boxes(at, kind, |span, access| {
            // Its boxes come rank by rank.
            if home.replace(span.home) != Some(span.home) {
                next = held.iter().cycle();
            }
            let added = contents.fresh();
            facts.each_block(&span, |block| {
                let block = block as usize;
                match access {
                    Access::Read => {}
                    Access::Write => {
                        blocks[block] = sum;
                        all_held[block] = next.next().copied().unwrap_or(added);
                        writes[block] = writes[block].saturating_add(1);
                    }
                    Access::Add => {
                        blocks[block] = sums.plus(blocks[block], sum);
                        for term in sums.suspects(blocks[block]) {
                            blame.entry(term).or_insert(at);
                        }
                        all_held[block] = added;
                        adds[block] = adds[block].saturating_add(1);
                    }
                }
            });
        });
    }

    /// The first output block that is wrong at the end.
    pub fn end(self) -> Option<Diagnostic> {
        let facts = self.facts;
        self.untouched().or_else(|| self.wrong_amax()).or_else(|| {
            facts.areas().iter().find_map(|area| {
                let usage = facts.kernel.buffers[usize::from(area.buffer)].usage;
                facts.blocks_of(area).find_map(|block| match usage.at_end {
                    _ if usage.amax_of().is_some() => None,
                    AtEnd::Gathered
                    | AtEnd::Computed
                    | AtEnd::Sum { .. }
                    | AtEnd::Sent
                    | AtEnd::Own => self.written(area, block),
                    AtEnd::Accumulated => self.accumulates(area, block),
                    AtEnd::Nothing => None,
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
                let wanted = match buffer.usage.at_end {
                    AtEnd::Own
                    | AtEnd::Computed
                    | AtEnd::Accumulated
                    | AtEnd::Sum { .. }
                    | AtEnd::Sent => buffer.usage.amax_of().is_none(),
                    AtEnd::Gathered => facts.plan.geometry.world > 1,
                    AtEnd::Nothing => false,
                };
                (wanted
                    && !facts
                        .areas()
                        .iter()
                        .any(|area| usize::from(area.buffer) == index))
                .then(|| {
                    if let Some(of) = buffer.usage.given_scale_of() {
                        return Coverage::left_behind(facts.kernel, buffer, of);
                    }
                    Diagnostic::new(
                        Rule::Coverage,
                        None,
                        format!("no statement writes {}", buffer.name),
                    )
                    .hint(format!(
                        "{} is {}: every rank must hold all of its part at the end",
                        buffer.name,
                        buffer.usage.name()
                    ))
                })
            })
    }

    /// Finding in a block that is written.
    fn written(&self, area: &Area, block: u32) -> Option<Diagnostic> {
        let at = block as usize;
        let (writes, adds) = (self.writes[at], self.adds[at]);
        let tell = |message, hint| Some(self.tell(block, message, hint));
        match (writes, adds) {
            (1, _) => {}
            (0, 0) => {
                return tell(
                    format!("nobody writes {}", self.name(area, block)),
                    "every element of an output is written once, on every rank that holds it",
                );
            }
            (0, _) => {
                return tell(
                    format!(
                        "{} is added to, but nobody writes it",
                        self.name(area, block)
                    ),
                    "write it first, or make it Accumulated: the launch then adds to what it held before",
                );
            }
            (2.., _) => {
                return tell(
                    format!("{} is written {writes} times", self.name(area, block)),
                    "every element of an output is written once; `+=` adds to it",
                );
            }
        }
        let sum = self.blocks[at];
        let usage = self.facts.kernel.buffers[usize::from(area.buffer)].usage;
        match usage.at_end {
            AtEnd::Gathered => self.gathered(area, block),
            AtEnd::Computed => {
                let owner = self.owner_of(area, block);
                match self.sums.sent_by(sum, owner) {
                    Err(wrong) => Some(self.wrong(area, block, wrong)),
                    Ok(()) => self.differs(area, block, owner),
                }
            }
            AtEnd::Sum { .. } => {
                let wrong = self.sums.complete(sum).err()?;
                Some(self.wrong(area, block, wrong))
            }
            AtEnd::Sent => {
                let wrong = self.sums.sent_by(sum, area.slot).err()?;
                Some(self.wrong(area, block, wrong))
            }
            AtEnd::Own if usage.is_output() => {
                let wrong = self.sums.in_place(sum).err()?;
                Some(self.wrong(area, block, wrong))
            }
            AtEnd::Own | AtEnd::Accumulated | AtEnd::Nothing => None,
        }
    }

    /// Finding in a block that the launch adds to.
    fn accumulates(&self, area: &Area, block: u32) -> Option<Diagnostic> {
        let at = block as usize;
        let (writes, adds) = (self.writes[at], self.adds[at]);
        let name = || self.name(area, block);
        let tell = |message, hint| Some(self.tell(block, message, hint));
        if writes > 0 {
            return tell(
                format!("{} is overwritten, so what it held before is lost", name()),
                "add to it: `+=`; to overwrite it, make it Out",
            );
        }
        if adds != 1 {
            let message = match adds {
                0 => format!("nobody adds to {}", name()),
                adds => format!("{} is added to {adds} times", name()),
            };
            return tell(
                message,
                "add to every element once per launch, so that its bits do not depend on the order of the adds",
            );
        }
        let wrong = self.sums.accumulates(self.blocks[at]).err()?;
        Some(self.wrong(area, block, wrong))
    }

    /// The rank that owns the rows of a block of a gathered tensor.
    fn owner_of(&self, area: &Area, block: u32) -> u16 {
        let facts = self.facts;
        let geometry = &facts.plan.geometry;
        let rows = facts.kernel.buffers[usize::from(area.buffer)].rows;
        let shard = geometry.shard_at(rows, facts.rectangle(area, block).0.start);
        geometry.owner(shard) as u16
    }

    /// Reports a block of a gathered output that may differ from the owner's copy.
    fn differs(&self, area: &Area, block: u32, owner: u16) -> Option<Diagnostic> {
        let (rows, columns) = self.facts.rectangle(area, block);
        let there = Rectangle {
            tensor: TensorId(area.buffer),
            owner: Owner::Rank(owner),
            slot: area.slot,
            rows,
            columns,
        };
        let held = |block: u32| self.held[block as usize];
        let (here, mut same) = (held(block), true);
        self.facts
            .blocks_in(&there, |other| same &= held(other) == here);
        (!same && !undone(Fix::Provenance)).then(|| {
            let name = self.name(area, block);
            self.tell(
                block,
                format!("{name} is computed by another expression, or of other values, than on rank {owner}, which owns these rows"),
                "every rank holds the same at the end: compute it once with `let`, and store that here and on every peer",
            )
        })
    }

    /// Finding in a block of a gathered tensor.
    fn gathered(&self, area: &Area, block: u32) -> Option<Diagnostic> {
        let facts = self.facts;
        let tensor = TensorId(area.buffer);
        let buffer = &facts.kernel.buffers[tensor.index()];
        let rank = self.owner_of(area, block);
        let own = Term::Input { rank, tensor };
        let parts = self.sums.parts(self.blocks[block as usize]);
        let held: Vec<Term> = parts.iter().map(|part| self.sums.term(part.0)).collect();
        let unlike = undone(Fix::Provenance) && held.len() == 1 && held[0].rank() == Some(rank);
        if unlike || (held == [own] && parts[0].1 == 1) {
            return None;
        }
        let what = match held[..] {
            [Term::Elsewhere] | [_, Term::Elsewhere] => "other rows or columns".into(),
            [Term::Input { rank, tensor }] => {
                format!(
                    "rows of {} of rank {rank}",
                    facts.kernel.buffers[tensor.index()].name
                )
            }
            _ => "computed values".into(),
        };
        let blame = parts
            .first()
            .and_then(|part| self.blamed(area, block, part.0));
        Some(self.report(
            block,
            blame,
            format!(
                "{} holds {what}, not the rows of {} that rank {rank} owns",
                self.name(area, block),
                buffer.name
            ),
            "a Gathered tensor is filled with its own rows, unchanged: `x.on(peer)[c] = x[c]`",
        ))
    }
}
