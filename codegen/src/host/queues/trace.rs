//! The trace of a blocked run: what is queued behind what.

use super::super::enqueue::{HostOp, HostOpKind};
use super::Queues;
use super::run::{CounterOp, Run, Step, What};
use crate::diag::{Diagnostic, Rule};
use crate::program::Loc;
use std::collections::BTreeSet;

impl Run<'_> {
    /// The name of an entry: its kind, launch and rank.
    fn who(&self, at: usize) -> String {
        let entry = &self.entries[at];
        let (rank, launch) = (entry.rank, entry.launch + 1);
        match entry.what {
            What::Kernel => format!("the kernel of launch {launch} of rank {rank}"),
            What::Op(_) => format!("the copies' stream of rank {rank} in launch {launch}"),
            What::Mark | What::Await(_) => {
                format!("the order of rank {rank}'s two streams in launch {launch}")
            }
        }
    }

    fn loc(&self, at: usize) -> Option<Loc> {
        match self.entries[at].what {
            What::Op(op) => Some(self.pipeline.kernel.loc(op.op)),
            What::Kernel | What::Mark | What::Await(_) => None,
        }
    }

    fn cell(&self, cell: usize) -> String {
        let (home, counter, at) = self.cells[cell];
        let geometry = &self.plan.geometry;
        let name = geometry.cell_name(&self.pipeline.kernel, counter, at);
        format!("{name} of rank {home}")
    }

    /// The first wait that blocks a running kernel.
    fn stands_at(&self, kernel: usize) -> Option<(Option<Loc>, usize, u64)> {
        let mut agents = self.running.iter().filter(|agent| agent.entry == kernel);
        let entry = &self.entries[kernel];
        agents.find_map(|agent| {
            let steps = &self.steps[entry.rank as usize][agent.role];
            match steps.get(agent.at) {
                Some((at, CounterOp::Wait { cell, more })) => {
                    let wanted = self.all[*cell] * u64::from(entry.launch) + more;
                    Some((Some(*at), *cell, wanted))
                }
                Some((_, CounterOp::Signal { .. })) | None => None,
            }
        })
    }

    /// The first entry that would still signal a cell.
    fn signaller(&self, cell: usize) -> Option<usize> {
        (0..self.entries.len()).find(|at| {
            let entry = &self.entries[*at];
            match entry.what {
                _ if self.done[*at] => false,
                What::Op(HostOp {
                    kind:
                        HostOpKind::Signal {
                            counter,
                            home,
                            cell: of,
                            ..
                        },
                    ..
                }) => self.index(home, counter, of) == cell,
                What::Kernel => {
                    let roles = &self.steps[entry.rank as usize];
                    roles.iter().enumerate().any(|(role, steps)| {
                        let mut agents = self.running.iter();
                        let agent = agents.find(|agent| agent.entry == *at && agent.role == role);
                        let rest = &steps[agent.map_or(0, |agent| agent.at)..];
                        let signals = |step: &Step| match step.1 {
                            CounterOp::Signal { cell: of, .. } => of == cell,
                            CounterOp::Wait { .. } => false,
                        };
                        rest.iter().any(signals)
                    })
                }
                What::Op(_) | What::Mark | What::Await(_) => false,
            }
        })
    }

    /// The cycle of work that is queued behind other work, from a kernel that cannot begin or end, until the cycle closes.
    pub fn trace(&self, queues: &Queues) -> Option<Diagnostic> {
        let is_kernel = |at: &usize| self.entries[*at].what == What::Kernel;
        let open = (0..self.entries.len()).filter(|at| !self.done[*at]);
        let first = open
            .clone()
            .find(is_kernel)
            .or_else(|| open.clone().next())?;
        let plural = if queues.count == 1 { "" } else { "s" };
        let message = format!(
            "{} waits for ever: its GPU has {} hardware queue{plural}",
            self.who(first),
            queues.count
        );
        let mut notes: Vec<(Option<Loc>, String)> = Vec::new();
        let mut seen = BTreeSet::new();
        let mut next = Some(first);
        while let Some(at) = next {
            if !seen.insert(at) {
                let who = self.who(at);
                notes.push((
                    self.loc(at),
                    format!("{who} is in this trace already: the waits form a cycle"),
                ));
                break;
            }
            let entry = &self.entries[at];
            let waits = if self.begun[at] {
                self.stands_at(at)
            } else {
                let head = self.queues[entry.queue][self.heads[entry.queue]];
                if head != at {
                    let text = format!(
                        "{} is queued behind {} in the same hardware queue",
                        self.who(at),
                        self.who(head)
                    );
                    notes.push((self.loc(at), text));
                    next = Some(head);
                    continue;
                }
                if let Some(before) = entry.before.filter(|before| !self.done[*before]) {
                    let text = format!("{} comes after {}", self.who(at), self.who(before));
                    notes.push((self.loc(at), text));
                    next = Some(before);
                    continue;
                }
                if let What::Await(mark) = entry.what {
                    next = Some(mark);
                    continue;
                }
                let wanted = self.wanted(entry);
                wanted.map(|(cell, wanted)| (self.loc(at), cell, wanted))
            };
            let (loc, cell, wanted) = waits?;
            let text = format!(
                "{} waits for {}: seen {}, wanted {wanted}",
                self.who(at),
                self.cell(cell),
                self.counts[cell]
            );
            notes.push((loc, text));
            next = self.signaller(cell);
            if let Some(next) = next {
                let text = format!("{} would signal it", self.who(next));
                notes.push((self.loc(next), text));
            }
        }
        let at = notes.iter().find_map(|(at, _)| *at);
        let found = Diagnostic::new(Rule::Progress, at, message);
        let found = notes
            .into_iter()
            .fold(found, |found, (at, text)| found.note(at, text));
        Some(found.hint("give each stream that waits a hardware queue of its own"))
    }
}
