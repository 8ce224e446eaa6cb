//! The happens-before relation, answered by a walk backwards from the later step.
//!
//! These precede a step: the steps before it in its item; the items of earlier phases of its agent, with what they
//! waited for; and, for every wait before it in its item, the signals that must precede the end of that wait. Other
//! items of the same phase do *not* precede it: they may run on another CTA.
//!
//! This relation belongs to a plan, not to a run. The emulator has its own clocks, of one run. Tests compare the two, so
//! they share nothing. The warp level's verifier orders single accesses ([`crate::verify::pipeline`]): there, an access is
//! complete only when its thread has waited for it, not when the next step begins.

use super::facts::{At, Facts, in_program_order};
use crate::unroll::StepKind;

/// Answers questions about one plan. Keeps the marks of its last walk, so that a walk allocates nothing.
pub(super) struct Happens<'a, 'b> {
    facts: &'b Facts<'a>,
    /// The walk that last saw each item, and up to which step.
    seen: Vec<Vec<(u32, u32)>>,
    /// The walk that last visited each agent's items of earlier phases, and the phase below which it visited all of them.
    whole: Vec<(u32, u32)>,
    walk: u32,
    open: Vec<At>,
    /// Steps that precede the end of the launch of the rank last asked about.
    ended: Option<(u32, Vec<Vec<u32>>)>,
}

impl<'a, 'b> Happens<'a, 'b> {
    pub fn new(facts: &'b Facts<'a>) -> Self {
        let seen = facts
            .plan
            .agents
            .iter()
            .map(|agent| vec![(0, 0); agent.items.len()])
            .collect();
        Happens {
            facts,
            seen,
            whole: vec![(0, 0); facts.plan.agents.len()],
            walk: 0,
            open: Vec::new(),
            ended: None,
        }
    }

    /// True if `a` is before `b` in one launch.
    pub fn before(&mut self, a: At, b: At) -> bool {
        if self.directly(a, b) {
            return true;
        }
        // Nearly always one signal and wait order the two.
        let first = self.facts.plan.agents[b.agent as usize].items[b.item as usize].start;
        for step in first..b.step {
            let wait = At { step, ..b };
            if !lag(self.facts, wait)
                && self
                    .facts
                    .joined(wait)
                    .any(|signal| self.directly(a, signal))
            {
                return true;
            }
        }
        let facts = self.facts;
        self.walk_back(b, |at| in_program_order(facts, a, at))
    }

    /// True if `a` of one launch is before `b` of the next. It is if both are of one rank; if `b` waited for something
    /// that `a`'s rank did in the next launch, or for something of the same launch (a lagging credit) that `a`
    /// precedes; or, if `a` precedes the end of the launch of `quiet_at`, for something that rank did in the next.
    pub fn before_next(&mut self, a: At, b: At, quiet_at: Option<u32>) -> bool {
        let facts = self.facts;
        let done = |rank: u32| rank == facts.rank(a.agent) || Some(rank) == quiet_at;
        if done(facts.rank(b.agent)) {
            return true;
        }
        // Nearly always the item itself waits for the credit.
        let first = facts.plan.agents[b.agent as usize].items[b.item as usize].start;
        for wait in (first..b.step).map(|step| At { step, ..b }) {
            let enough = match lag(facts, wait) {
                false => facts
                    .joined(wait)
                    .any(|signal| done(facts.rank(signal.agent))),
                true => facts.joined(wait).any(|signal| self.directly(a, signal)),
            };
            if enough {
                return true;
            }
        }
        let mut lagging = Vec::new();
        let found = self.walk_back(b, |at| {
            if done(facts.rank(at.agent)) {
                return true;
            }
            let first = facts.plan.agents[at.agent as usize].items[at.item as usize].start;
            lagging.extend(
                (first..at.step)
                    .map(|step| At { step, ..at })
                    .filter(|wait| lag(facts, *wait)),
            );
            false
        });
        found
            || lagging.into_iter().any(|wait| {
                let signals: Vec<At> = facts.joined(wait).collect();
                signals.into_iter().any(|signal| self.before(a, signal))
            })
    }

    /// True if `a` is before the end of that rank's launch.
    pub fn before_end(&mut self, a: At, rank: u32) -> bool {
        let facts = self.facts;
        if facts.rank(a.agent) == rank {
            return true;
        }
        // Nearly always the item itself signals, and that rank waits for it.
        let end = facts.plan.agents[a.agent as usize].items[a.item as usize].end;
        if (a.step + 1..end).any(|step| facts.is_waited_for(At { step, ..a }, rank)) {
            return true;
        }
        if self.ended.as_ref().is_none_or(|(ended, _)| *ended != rank) {
            let reached = self.reached_by_end(rank);
            self.ended = Some((rank, reached));
        }
        let reached = self
            .ended
            .as_ref()
            .map(|(_, reached)| reached[a.agent as usize][a.item as usize]);
        reached.is_some_and(|step| a.step < step)
    }

    /// For every item, the step up to which it is before the end of that rank's launch.
    fn reached_by_end(&mut self, rank: u32) -> Vec<Vec<u32>> {
        let facts = self.facts;
        let roles = facts.kernel.roles.len() as u32;
        let ends = (rank * roles..(rank + 1) * roles).flat_map(|agent| {
            let items = facts.plan.agents[agent as usize].items.iter();
            items.zip(0..).map(move |(range, item)| At {
                agent,
                item,
                step: range.end,
            })
        });
        self.reached(ends)
    }

    /// For every item, the step up to which it is before some of these.
    pub fn reached(&mut self, from: impl IntoIterator<Item = At>) -> Vec<Vec<u32>> {
        self.walk += 1;
        self.open.clear();
        from.into_iter().for_each(|at| self.visit(at));
        self.follow(|_| false);
        let walk = self.walk;
        let up_to = |(seen, step): &(u32, u32)| if *seen == walk { *step } else { 0 };
        self.seen
            .iter()
            .map(|items| items.iter().map(up_to).collect())
            .collect()
    }

    fn directly(&self, a: At, b: At) -> bool {
        in_program_order(self.facts, a, b)
    }

    /// Visits what precedes `from` in its launch, nearest first, until `found` is true. Lagging waits join signals of an
    /// earlier launch and lead to nothing in this one.
    fn walk_back(&mut self, from: At, mut found: impl FnMut(At) -> bool) -> bool {
        self.walk += 1;
        self.open.clear();
        self.visit(from);
        self.follow(&mut found)
    }

    fn follow(&mut self, mut found: impl FnMut(At) -> bool) -> bool {
        let facts = self.facts;
        while let Some(at) = self.open.pop() {
            if found(at) {
                return true;
            }
            let item = facts.plan.agents[at.agent as usize].items[at.item as usize];
            for step in item.start..at.step {
                let wait = At { step, ..at };
                if !lag(facts, wait) {
                    facts.joined(wait).for_each(|signal| self.visit(signal));
                }
            }
            self.visit_earlier_phases(at);
        }
        false
    }

    /// Opens the ends of all items of an agent that are of earlier phases than an item.
    fn visit_earlier_phases(&mut self, at: At) {
        let items = &self.facts.plan.agents[at.agent as usize].items;
        let phase = items[at.item as usize].phase;
        let (walk, below) = self.whole[at.agent as usize];
        let below = if walk == self.walk { below } else { 0 };
        if phase <= below {
            return;
        }
        self.whole[at.agent as usize] = (self.walk, phase);
        // Items are sorted by phase.
        let first = items.partition_point(|item| item.phase < below);
        let earlier = items[first..].iter().zip(first as u32..);
        for (item, index) in earlier.take_while(|(item, _)| item.phase < phase) {
            self.visit(At {
                agent: at.agent,
                item: index,
                step: item.end,
            });
        }
    }

    /// Opens a step unless this walk has visited it or a later step of its item.
    fn visit(&mut self, at: At) {
        let seen = &mut self.seen[at.agent as usize][at.item as usize];
        if seen.0 != self.walk || seen.1 < at.step {
            *seen = (self.walk, at.step);
            self.open.push(at);
        }
    }
}

fn lag(facts: &Facts<'_>, wait: At) -> bool {
    let StepKind::Wait { counter, .. } = facts.step(wait) else {
        return false;
    };
    facts.kernel.counters[counter.index()].purpose.lag() > 0
}
