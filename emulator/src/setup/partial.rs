//! Waits for less than all arrivals: the signals without which they cannot end.

use super::{Needed, Partial, Setup};
use counterflow_codegen::plan::Plan;
use counterflow_codegen::program::CounterId;
use counterflow_codegen::unroll::StepKind;
use std::collections::BTreeMap;
use std::rc::Rc;

impl Setup<'_> {
    /// For every wait for less than all: each signal without which (and without those that follow it in its agent) the
    /// others do not reach the wait's number.
    pub(super) fn find_partial(&self) -> BTreeMap<Partial, Rc<[Needed]>> {
        let mut found = BTreeMap::new();
        for (launch, plans) in self.plans.iter().enumerate() {
            for (home, plan) in plans.iter().enumerate() {
                let home = home as u16;
                for agent in plan.agents.iter().filter(|agent| agent.rank == home) {
                    for step in &agent.steps {
                        let StepKind::Wait {
                            counter,
                            cell,
                            at_least: Some(amount),
                        } = step.kind
                        else {
                            continue;
                        };
                        let flat = self.flat(counter, cell);
                        let all = Setup::arrivals(plan, home, counter, cell);
                        if u64::from(amount) < all {
                            found
                                .entry((launch, home, flat, amount))
                                .or_insert_with(|| needed(plans, home, counter, cell, amount));
                        }
                    }
                }
            }
        }
        found
    }
}

fn needed(plans: &[&Plan], home: u16, counter: CounterId, cell: u32, amount: u32) -> Rc<[Needed]> {
    // Rank, role, phase, item, step, amount.
    let mut signals: Vec<(u16, u16, u32, usize, u32, u32)> = Vec::new();
    for (rank, plan) in plans.iter().enumerate() {
        for agent in plan.agents.iter().filter(|a| usize::from(a.rank) == rank) {
            for (index, item) in agent.items.iter().enumerate() {
                for at in item.start..item.end {
                    match agent.steps[at as usize].kind {
                        StepKind::Signal {
                            counter: c,
                            home: h,
                            cell: i,
                            amount,
                        } if (c, h, i) == (counter, home, cell) => {
                            signals.push((agent.rank, agent.role, item.phase, index, at, amount));
                        }
                        StepKind::Signal { .. }
                        | StepKind::Wait { .. }
                        | StepKind::Copy { .. }
                        | StepKind::Dot { .. }
                        | StepKind::Reduce { .. }
                        | StepKind::OwnTerm { .. }
                        | StepKind::Load { .. }
                        | StepKind::Store { .. } => {}
                    }
                }
            }
        }
    }
    signals
        .iter()
        .filter(|s| {
            let without: u64 = signals
                .iter()
                .filter(|other| {
                    let follows = (other.0, other.1) == (s.0, s.1)
                        && (other.2 > s.2 || (other.3 == s.3 && other.4 >= s.4));
                    !follows
                })
                .map(|other| u64::from(other.5))
                .sum();
            without < u64::from(amount)
        })
        .map(|s| (s.0, s.1, s.4))
        .collect()
}
