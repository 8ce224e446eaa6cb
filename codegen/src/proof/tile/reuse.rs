//! Guarantee 4: the next launch overwrites nothing before its last reader is done, no data arrives after its launch
//! has ended, and no signal of the next launch is mistaken for one of this launch.

use super::facts::{Area, At, Facts, Touch};
use super::happens::Happens;
use crate::diag::{Diagnostic, Rule};
use crate::kernel::{Purpose, RoleKind};
use crate::region::Access;
use crate::unroll::StepKind;

/// The first access of one launch that is not ordered with a conflicting one of the next.
pub(super) fn check(facts: &Facts<'_>, happens: &mut Happens<'_, '_>) -> Option<Diagnostic> {
    for area in facts.areas() {
        for block in facts.blocks_of(area) {
            let touches = facts.touches(block);
            let home = u32::from(area.home);
            if touches
                .iter()
                .all(|touch| facts.rank(touch.at.agent) == home)
            {
                continue;
            }
            if let Some(found) = check_block(facts, happens, area, block, touches) {
                return Some(found);
            }
        }
    }
    None
}

fn check_block(
    facts: &Facts<'_>,
    happens: &mut Happens<'_, '_>,
    area: &Area,
    block: u32,
    touches: &[Touch],
) -> Option<Diagnostic> {
    let home = u32::from(area.home);
    let scratch = facts.kernel.buffers[usize::from(area.buffer)].is_scratch();
    let mut quiet = Vec::with_capacity(touches.len());
    for touch in touches {
        let remote = facts.rank(touch.at.agent) != home;
        let is_quiet = !remote || happens.before_end(touch.at, home);
        // A remote reader of scratch must only be done before the next launch writes. That is checked below.
        let may_linger = scratch && touch.access == Access::Read;
        if !is_quiet && !may_linger {
            return Some(late(facts, area, block, *touch));
        }
        quiet.push(is_quiet);
    }
    for (index, a) in touches.iter().enumerate() {
        for b in touches {
            let quiet_at = quiet[index].then_some(home);
            if a.access.conflicts(b.access) && !happens.before_next(a.at, b.at, quiet_at) {
                return Some(overtaken(facts, area, block, *a, *b));
            }
        }
    }
    None
}

/// The first counter cell where signals of the next launch could be mistaken for this launch's.
pub(super) fn check_attribution(facts: &Facts<'_>) -> Option<Diagnostic> {
    if let Some(found) = stored_by_two(facts) {
        return Some(found);
    }
    let arrivals = &facts.plan.arrivals;
    let mut waits: Vec<(usize, At)> = Vec::new();
    facts.each_step(|at, kind| {
        if let StepKind::Wait { counter, cell, .. } = kind {
            let index = arrivals.index(facts.rank(at.agent) as u16, counter, cell);
            let signals = facts.signals(index);
            let first = signals.first().map(|signal| facts.rank(signal.at.agent));
            if signals
                .iter()
                .any(|signal| Some(facts.rank(signal.at.agent)) != first)
            {
                waits.push((index, at));
            }
        }
    });
    waits.iter().find_map(|(index, wait)| {
        let signals = facts.signals(*index);
        let unguarded = signals
            .iter()
            .find(|signal| !is_held_back(facts, *wait, signal.at));
        unguarded.map(|signal| mistakable(facts, *wait, signal.at))
    })
}

/// True if a signal cannot be made in the next launch before this launch's wait is over, whatever the shapes of the
/// two: its own item first waits for a credit that the waiter's rank grants after that wait. (Any other order may be
/// lost when another launch has fewer rows.)
fn is_held_back(facts: &Facts<'_>, wait: At, signal: At) -> bool {
    let waiter = facts.rank(wait.agent);
    let start = facts.plan.agents[signal.agent as usize].items[signal.item as usize].start;
    (start..signal.step).any(|step| {
        let credit = At { step, ..signal };
        let StepKind::Wait { counter, .. } = facts.step(credit) else {
            return false;
        };
        match facts.kernel.counters[counter.index()].purpose {
            // Granted at the start of the waiter's next launch.
            Purpose::Ready(_) => facts
                .joined(credit)
                .any(|grant| facts.rank(grant.agent) == waiter),
            // Granted at the end of one of the waiter's roles. It counts only if that role is the one that waits.
            Purpose::Free(_) => facts
                .joined(credit)
                .any(|grant| grant.agent == wait.agent && facts.phase(wait) < facts.phase(grant)),
            Purpose::Data | Purpose::Returned(_) => false,
        }
    })
}

fn mistakable(facts: &Facts<'_>, wait: At, signal: At) -> Diagnostic {
    let (who, deed) = (facts.who(wait.agent), facts.deed(signal));
    let message = format!("{who} may mistake a signal of the next launch for one of this launch");
    Diagnostic::new(Rule::Attribution, facts.loc(wait), message)
        .note(facts.loc(wait), facts.deed(wait))
        .note(
            facts.loc(signal),
            format!("{deed}, perhaps already in the next launch"),
        )
        .note(
            None,
            "several ranks signal that cell, so its count does not show which of them did",
        )
        .hint(
            "give each signaller a cell of its own: `counters(world(), …)`, signalled at `[me()]`",
        )
}

/// A copy engine's signal stores the count (its stream has no atomic add), so nobody else may count in that cell.
fn stored_by_two(facts: &Facts<'_>) -> Option<Diagnostic> {
    let stores = |agent: u32| facts.kernel.roles[facts.role(agent)].kind == RoleKind::CopyEngine;
    (0..facts.plan.arrivals.len()).find_map(|cell| {
        let signals = facts.signals(cell);
        let stored = signals.iter().find(|signal| stores(signal.at.agent))?;
        let other = signals
            .iter()
            .find(|signal| signal.at.agent != stored.at.agent)?;
        Some(
            Diagnostic::new(
                Rule::Attribution,
                facts.loc(stored.at),
                format!(
                    "{} signals a cell that others signal too",
                    facts.who(stored.at.agent)
                ),
            )
            .note(facts.loc(stored.at), facts.deed(stored.at))
            .note(facts.loc(other.at), facts.deed(other.at))
            .note(
                None,
                "a copy engine stores its count, which overwrites the others' counts",
            )
            .hint("give it cells of its own: `counters(world(), …)`, signalled at `[me()]`"),
        )
    })
}

fn late(facts: &Facts<'_>, area: &Area, block: u32, touch: Touch) -> Diagnostic {
    let (rows, columns) = facts.rectangle(area, block);
    let what = facts.rectangle_name(area.buffer, area.slot, rows, columns);
    let does = if touch.access == Access::Read {
        "are read"
    } else {
        "are written"
    };
    Diagnostic::new(
        Rule::Reuse,
        facts.loc(touch.at),
        format!("{what} {does} on rank {} by rank {}, perhaps after rank {0}'s launch has ended", area.home, facts.rank(touch.at.agent)),
    )
    .note(facts.loc(touch.at), facts.deed(touch.at))
    .note(None, format!("no role of rank {} waits for a signal that comes after it", area.home))
    .hint("signal the owner afterwards, and let one of its roles wait for that signal before its launch ends")
}

fn overtaken(facts: &Facts<'_>, area: &Area, block: u32, a: Touch, b: Touch) -> Diagnostic {
    let (rows, columns) = facts.rectangle(area, block);
    let what = facts.rectangle_name(area.buffer, area.slot, rows, columns);
    Diagnostic::new(
        Rule::Reuse,
        facts.loc(b.at),
        format!("the next launch may access {what} on rank {} before this launch has finished with them", area.home),
    )
    .note(facts.loc(a.at), format!("this launch: {}", facts.deed(a.at)))
    .note(facts.loc(b.at), format!("next launch: {}", facts.deed(b.at)))
    .note(None, format!("rank {} does not first wait for a credit from rank {}", facts.rank(b.at.agent), facts.rank(a.at.agent)))
    .hint("grant a credit after the last access of a launch, and wait for it before the first access of the next")
}
