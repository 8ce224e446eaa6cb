//! Guarantee 1: no rank can wait for ever, decided by one greedy run in which each role is one sequence.

use super::facts::{At, Facts};
use crate::diag::{Diagnostic, Rule};
use crate::unroll::StepKind;

/// Runs every agent as far as it gets, repeatedly, and calls `done` with each step in an order that respects every
/// wait. The launch before satisfies waits of a lagging credit.
pub(super) fn run(facts: &Facts<'_>, mut done: impl FnMut(At, StepKind)) -> Option<Diagnostic> {
    let arrivals = &facts.plan.arrivals;
    let agents = facts.plan.agents.len();
    let mut counts = vec![0u32; arrivals.len()];
    let mut at: Vec<(u32, u32)> = vec![(0, 0); agents];
    let mut waiters: Vec<Vec<u32>> = vec![Vec::new(); facts.plan.geometry.world as usize];
    let mut ready: Vec<u32> = (0..agents as u32).rev().collect();
    while let Some(agent) = ready.pop() {
        let steps = &facts.plan.agents[agent as usize];
        let (mut item, mut step) = at[agent as usize];
        'agent: while let Some(range) = steps.items.get(item as usize) {
            step = step.max(range.start);
            while step < range.end {
                let kind = steps.steps[step as usize].kind;
                match kind {
                    StepKind::Wait {
                        counter,
                        cell,
                        at_least,
                    } => {
                        let home = facts.rank(agent) as u16;
                        let lag = facts.kernel.counters[counter.index()].purpose.lag();
                        let target = arrivals.target(home, counter, cell, at_least);
                        if lag == 0 && counts[arrivals.index(home, counter, cell)] < target {
                            waiters[usize::from(home)].push(agent);
                            break 'agent;
                        }
                    }
                    StepKind::Signal {
                        counter,
                        home,
                        cell,
                        amount,
                    } => {
                        counts[arrivals.index(home, counter, cell)] += amount;
                        // All of that rank's waiters check again: it has at most one for each role.
                        ready.append(&mut waiters[usize::from(home)]);
                    }
                    StepKind::Copy { .. }
                    | StepKind::Dot { .. }
                    | StepKind::Reduce { .. }
                    | StepKind::OwnTerm { .. }
                    | StepKind::Load { .. }
                    | StepKind::Store { .. } => {}
                }
                done(At { agent, item, step }, kind);
                step += 1;
            }
            item += 1;
        }
        at[agent as usize] = (item, step);
    }
    stuck(facts, &at, &counts)
}

/// The trace of a run that stopped: every blocked role, and the signal it wants.
fn stuck(facts: &Facts<'_>, at: &[(u32, u32)], counts: &[u32]) -> Option<Diagnostic> {
    let arrivals = &facts.plan.arrivals;
    let blocked: Vec<At> = at
        .iter()
        .enumerate()
        .filter(|(agent, (item, _))| (*item as usize) < facts.plan.agents[*agent].items.len())
        .map(|(agent, (item, step))| At {
            agent: agent as u32,
            item: *item,
            step: *step,
        })
        .collect();
    let first = *blocked.first()?;
    let wanted = |wait: At| {
        let StepKind::Wait {
            counter,
            cell,
            at_least,
        } = facts.step(wait)
        else {
            return None;
        };
        let home = facts.rank(wait.agent) as u16;
        let index = arrivals.index(home, counter, cell);
        Some((
            counter,
            cell,
            index,
            counts[index],
            arrivals.target(home, counter, cell, at_least),
        ))
    };
    let (counter, cell, _, seen, target) = wanted(first)?;
    let name = facts.cell_name(counter, cell);
    let mut found = Diagnostic::new(
        Rule::Progress,
        facts.loc(first),
        format!(
            "{} waits for ever: {name} is {seen}, it wants {target}",
            facts.who(first.agent)
        ),
    );
    // Follow who should have signalled, until the cycle closes.
    let mut seen_agents = Vec::new();
    let mut wait = first;
    loop {
        seen_agents.push(wait.agent);
        let Some((counter, cell, index, seen, target)) = wanted(wait) else {
            break;
        };
        let name = facts.cell_name(counter, cell);
        let text = format!(
            "{} waits for {name}: seen {seen}, wanted {target}",
            facts.who(wait.agent)
        );
        found = found.note(facts.loc(wait), text);
        let position = |agent: u32| at[agent as usize];
        let missing = facts.signals(index).iter().find(|signal| {
            let (item, step) = position(signal.at.agent);
            (signal.at.item, signal.at.step) >= (item, step)
        });
        let Some(signal) = missing else {
            let arrives = facts.signals(index).len();
            let text = if arrives == 0 {
                format!(
                    "no statement signals {name} on rank {}",
                    facts.rank(wait.agent)
                )
            } else {
                format!("all {arrives} signals to {name} have been made: {seen} in all")
            };
            found = found.note(None, text);
            break;
        };
        let culprit = signal.at.agent;
        found = found.note(
            facts.loc(signal.at),
            format!(
                "{} would signal it, but has not reached that statement",
                facts.who(culprit)
            ),
        );
        if seen_agents.contains(&culprit) {
            found = found.note(
                None,
                format!(
                    "{} is where this trace began: the waits form a cycle",
                    facts.who(culprit)
                ),
            );
            break;
        }
        let (item, step) = position(culprit);
        wait = At {
            agent: culprit,
            item,
            step,
        };
    }
    if blocked.len() > seen_agents.len() {
        found = found.note(None, format!("{} roles are blocked in all", blocked.len()));
    }
    Some(
        found.hint(
            "each role is one sequence: a wait also holds up everything after it in its role",
        ),
    )
}
