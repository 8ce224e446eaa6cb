//! The diagnostic of a block that does not hold what it must.

use super::super::contribution::{Term, TermId, Wrong};
use super::super::facts::{Area, At};
use super::Coverage;
use crate::diag::{Diagnostic, Rule};
use crate::kernel::{Buffer, Kernel, OpKind, visit};
use crate::program::{AtEnd, TensorId};
use crate::region::Access;
use crate::unroll::StepKind;

impl Coverage<'_, '_> {
    pub(super) fn name(&self, area: &Area, block: u32) -> String {
        let (rows, columns) = self.facts.rectangle(area, block);
        let name = self
            .facts
            .rectangle_name(area.buffer, area.slot, rows, columns);
        format!("{name} on rank {}", area.home)
    }

    /// A diagnostic with the statements that write a block.
    pub(super) fn tell(&self, block: u32, message: String, hint: &str) -> Diagnostic {
        self.report(block, None, message, hint)
    }

    /// Reports a sum, with the statement that made an illegal term first.
    pub(super) fn report(
        &self,
        block: u32,
        blame: Option<At>,
        message: String,
        hint: &str,
    ) -> Diagnostic {
        let facts = self.facts;
        let touches = facts.touches(block).iter();
        let writes = touches.filter(|touch| touch.access != Access::Read);
        let mut writers: Vec<At> = writes.map(|touch| touch.at).collect();
        if let Some(at) = blame {
            let same = |write: &At| facts.loc(*write) == facts.loc(at);
            let first = writers.iter().copied().find(same).unwrap_or(at);
            writers.retain(|write| !same(write));
            writers.insert(0, first);
        }
        writers.truncate(4);
        let mut found = Diagnostic::new(Rule::Coverage, None, message);
        found.at = writers.first().map(|at| facts.loc(*at));
        for at in writers {
            found = found.note(facts.loc(at), facts.deed(at));
        }
        found.hint(hint)
    }

    /// The step that makes such a term for these rows and columns, by the agent that first made one.
    pub(super) fn blamed(&self, area: &Area, block: u32, term: TermId) -> Option<At> {
        let facts = self.facts;
        let first = *self.blame.get(&term)?;
        let op = |at: At| facts.plan.agents[at.agent as usize].steps[at.step as usize].op;
        let (rows, columns) = facts.rectangle(area, block);
        let mut found = None;
        facts.each_step(|at, kind| {
            let dst = match kind {
                StepKind::Store { dst, .. } | StepKind::Copy { dst, .. } => dst,
                StepKind::Wait { .. }
                | StepKind::Signal { .. }
                | StepKind::Dot { .. }
                | StepKind::Reduce { .. }
                | StepKind::OwnTerm { .. }
                | StepKind::Load { .. } => return,
            };
            let here = dst.rows.overlaps(rows) && dst.columns.overlaps(columns);
            if found.is_none() && here && at.agent == first.agent && op(at) == op(first) {
                found = Some(at);
            }
        });
        found.or(Some(first))
    }

    /// A term's name in messages.
    fn term(&self, term: Term) -> String {
        let name = |tensor: TensorId| &self.facts.kernel.buffers[tensor.index()].name;
        match term {
            Term::Product {
                operands: (a, b), ..
            } => format!("dot({}, {})", name(a), name(b)),
            Term::Input { tensor, .. } => name(tensor).clone(),
            Term::Constant { .. } => "a constant".into(),
            Term::Function { .. } => "a function's result".into(),
            Term::Early(term) => self.term(self.sums.term(term)),
            Term::Elsewhere | Term::Uneven => "a value of other rows or columns".into(),
        }
    }

    /// A block whose sum breaks its tensor's promise.
    pub(super) fn wrong(&self, area: &Area, block: u32, wrong: Wrong) -> Diagnostic {
        let name = self.name(area, block);
        let accumulated = self.facts.kernel.buffers[usize::from(area.buffer)]
            .usage
            .is_added_to();
        let once = if accumulated {
            "each product must be added once per launch"
        } else {
            "each rank's contribution must be summed once"
        };
        match wrong {
            Wrong::NoTerm(id) => {
                let (message, hint) = match self.sums.term(id) {
                    Term::Elsewhere => (
                        format!("{name} holds other rows or columns, or not all of K"),
                        "store and copy every value to its own row and column, and multiply over all of K",
                    ),
                    Term::Uneven => (
                        format!(
                            "{name} was computed from rows or columns that hold different sums"
                        ),
                        "one item must read one sum: divide the partition where the sums differ",
                    ),
                    Term::Product { .. }
                    | Term::Input { .. }
                    | Term::Constant { .. }
                    | Term::Function { .. }
                    | Term::Early(_) => (
                        format!(
                            "{name} is not a sum over ranks: a function was applied to a part of it"
                        ),
                        "add the terms first (`+`, `.sum()`, `+=`), and apply functions to the complete sum",
                    ),
                };
                self.report(block, self.blamed(area, block, id), message, hint)
            }
            Wrong::Added(id) => {
                let what = self.term(self.sums.term(id));
                let (message, hint) = if accumulated {
                    (
                        format!("every launch adds {what} to {name} again"),
                        "add only products; write anything that belongs there once before the first launch",
                    )
                } else {
                    (
                        format!(
                            "{name} holds {what} once per rank that adds it to its own part of the sum"
                        ),
                        "add it to the complete sum: where the rank that owns the rows adds the other ranks' terms",
                    )
                };
                self.report(block, self.blamed(area, block, id), message, hint)
            }
            Wrong::Another(id) => {
                let term = self.sums.term(id);
                let rank = term
                    .rank()
                    .map_or_else(String::new, |rank| format!(" of rank {rank}"));
                let usage = self.facts.kernel.buffers[usize::from(area.buffer)].usage;
                let (whose, hint) = if usage.at_end == AtEnd::Computed {
                    let owner = self.owner_of(area, block);
                    (
                        format!("these rows are rank {owner}'s"),
                        "each rank computes its own rows, `for t in tiles.of(me())`, and sends them to its peers: `y.on(peer)[t] = …`",
                    )
                } else {
                    (
                        format!("slot {} is rank {}'s", area.slot, area.slot),
                        "send into the slot of the rank that computed it: `y.on(rank)[me()][t] = …`",
                    )
                };
                let message = format!("{name} holds {}{rank}, but {whose}", self.term(term));
                self.report(block, self.blamed(area, block, id), message, hint)
            }
            Wrong::Times(id, times) => {
                let term = self.sums.term(id);
                let whose = match (term, term.rank()) {
                    (Term::Product { .. }, Some(rank)) => {
                        format!("the contribution of rank {rank}")
                    }
                    (_, Some(rank)) => format!("{} of rank {rank}", self.term(term)),
                    (_, None) => self.term(term),
                };
                let message = match times {
                    2 => format!("{name} holds {whose} twice"),
                    3.. => format!("{name} holds {whose} {times} times"),
                    -1 => format!("{name} has {whose} subtracted"),
                    _ => format!("{name} holds {whose} {times} times"),
                };
                // The fault is not where an input is first stored, but where it is subtracted.
                let added = times > 0 || matches!(term, Term::Product { .. });
                let blame = self.blamed(area, block, id).filter(|_| added);
                self.report(block, blame, message, once)
            }
            Wrong::Lacks(ranks, term) => {
                let ranks: Vec<String> = (0..128)
                    .filter(|rank| ranks >> rank & 1 == 1)
                    .map(|rank: u32| rank.to_string())
                    .collect();
                let what = term.map_or("the contribution".into(), |term| self.term(term));
                let message = format!("{name} lacks {what} of rank {}", ranks.join(", "));
                self.tell(block, message, once)
            }
        }
    }
}

impl Coverage<'_, '_> {
    /// Scales that no statement copies, of a tensor whose elements one does.
    pub(super) fn left_behind(kernel: &Kernel, scale: &Buffer, of: TensorId) -> Diagnostic {
        let mut at = None;
        for role in &kernel.roles {
            visit(&role.body, &mut |op| {
                if matches!(&op.kind, OpKind::Copy { dst, .. } if dst.buffer == of) {
                    at.get_or_insert(kernel.loc(op.id));
                }
            });
        }
        let name = &kernel.buffers[of.index()].name;
        let message = format!("no statement copies {}", scale.name);
        Diagnostic::new(Rule::Coverage, at, message).hint(format!(
        "`{name}.data()[c]` moves elements alone: copy `{name}[c]`, or `{name}.scales()[c]` before the signal"
    ))
    }
}
