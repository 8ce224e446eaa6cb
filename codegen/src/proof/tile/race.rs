//! Guarantee 2: every access is ordered after the ones it conflicts with, within one launch.

use super::facts::{Area, At, Facts, Touch};
use super::happens::Happens;
use crate::diag::{Diagnostic, Rule};
use crate::program::{AtEnd, AtStart};
use crate::region::Access;
use crate::unroll::StepKind;

/// The first access that is not ordered after one it conflicts with, if there is one.
pub(super) fn check(facts: &Facts<'_>, happens: &mut Happens<'_, '_>) -> Option<Diagnostic> {
    for area in facts.areas() {
        for block in facts.blocks_of(area) {
            let touches = facts.touches(block);
            if touches.len() < 2 && (touches.is_empty() || touches[0].access != Access::Read) {
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
    let given = initially_there(facts, area, block);
    for touch in touches.iter().filter(|touch| touch.access == Access::Read) {
        let mut writes = touches.iter().filter(|other| other.access == Access::Write);
        if !given && !writes.any(|write| happens.before(write.at, touch.at)) {
            return Some(too_early(facts, area, block, touches, *touch));
        }
    }
    for (index, a) in touches
        .iter()
        .enumerate()
        .filter(|(_, a)| a.access != Access::Read)
    {
        for (other, b) in touches.iter().enumerate() {
            let pair_seen_before = b.access != Access::Read && other <= index;
            let both_add = a.access == Access::Add && b.access == Access::Add;
            // A copy within a rank may read and write the same block in one step.
            if pair_seen_before || both_add || a.at == b.at {
                continue;
            }
            if !happens.before(a.at, b.at) && !happens.before(b.at, a.at) {
                return Some(unordered(facts, area, block, *a, *b));
            }
        }
    }
    None
}

/// True if a block holds data when the launch starts.
pub(super) fn initially_there(facts: &Facts<'_>, area: &Area, block: u32) -> bool {
    let buffer = &facts.kernel.buffers[usize::from(area.buffer)];
    match buffer.usage.at_start() {
        AtStart::Whole => true,
        AtStart::Shard => {
            let mine = facts.plan.geometry.owned(buffer.rows, u32::from(area.home));
            mine.overlaps(facts.rectangle(area, block).0)
        }
        AtStart::Nothing => false,
    }
}

fn too_early(
    facts: &Facts<'_>,
    area: &Area,
    block: u32,
    touches: &[Touch],
    read: Touch,
) -> Diagnostic {
    let (rows, columns) = facts.rectangle(area, block);
    let what = facts.rectangle_name(area.buffer, area.slot, rows, columns);
    let at = facts.loc(read.at);
    let writer = touches.iter().find(|other| other.access == Access::Write);
    let Some(writer) = writer else {
        let usage = facts.kernel.buffers[usize::from(area.buffer)].usage;
        let hint = match usage.at_end == AtEnd::Computed {
            true => {
                "a Gathered tensor that a statement stores to is an output, which holds nothing at the start; an input is only copied"
            }
            false => "every shard that is read must be written on that rank in the same launch",
        };
        return Diagnostic::new(
            Rule::Race,
            at,
            format!(
                "{} reads {what} on rank {}, which nobody has written",
                facts.who(read.at.agent),
                area.home
            ),
        )
        .note(at, facts.deed(read.at))
        .hint(hint);
    };
    let found = Diagnostic::new(
        Rule::Race,
        at,
        format!(
            "{} may read {what} on rank {} before they are written",
            facts.who(read.at.agent),
            area.home
        ),
    )
    .note(facts.loc(writer.at), facts.deed(writer.at));
    with_signals(facts, found, writer.at, read.at)
}

fn unordered(facts: &Facts<'_>, area: &Area, block: u32, a: Touch, b: Touch) -> Diagnostic {
    let (rows, columns) = facts.rectangle(area, block);
    let what = facts.rectangle_name(area.buffer, area.slot, rows, columns);
    let found = Diagnostic::new(
        Rule::Race,
        facts.loc(b.at),
        format!(
            "two accesses to {what} on rank {} are not ordered, and one of them writes",
            area.home
        ),
    )
    .note(facts.loc(a.at), facts.deed(a.at))
    .note(facts.loc(b.at), facts.deed(b.at));
    with_signals(facts, found, a.at, b.at)
}

/// Adds the later signals of the earlier step's item, and the waits before the later step.
fn with_signals(facts: &Facts<'_>, mut found: Diagnostic, earlier: At, later: At) -> Diagnostic {
    let item = |at: At| facts.plan.agents[at.agent as usize].items[at.item as usize];
    let signals: Vec<At> = (earlier.step + 1..item(earlier).end)
        .map(|step| At { step, ..earlier })
        .filter(|at| matches!(facts.step(*at), StepKind::Signal { .. }))
        .collect();
    let early: Vec<At> = (item(earlier).start..earlier.step)
        .map(|step| At { step, ..earlier })
        .filter(|at| matches!(facts.step(*at), StepKind::Signal { .. }))
        .collect();
    let waits: Vec<At> = (item(later).start..later.step)
        .map(|step| At { step, ..later })
        .filter(|at| matches!(facts.step(*at), StepKind::Wait { .. }))
        .collect();
    const SHOWN: usize = 3;
    for signal in signals.iter().take(SHOWN) {
        found = found.note(facts.loc(*signal), format!("then {}", facts.deed(*signal)));
    }
    if signals.is_empty() {
        found = match early.first() {
            Some(signal) => found.note(
                facts.loc(*signal),
                format!("but {} before the data, not after it", facts.deed(*signal)),
            ),
            None => found.note(
                facts.loc(earlier),
                format!(
                    "{} signals nothing after it in that item",
                    facts.who(earlier.agent)
                ),
            ),
        };
    }
    for wait in waits.iter().rev().take(SHOWN) {
        let missed = facts.joined(*wait).next().is_none();
        let nothing = if missed {
            ", but no signal is certain to precede its end"
        } else {
            ""
        };
        found = found.note(facts.loc(*wait), format!("{}{nothing}", facts.deed(*wait)));
    }
    if waits.is_empty() {
        found = found.note(
            facts.loc(later),
            format!(
                "{} waits for nothing before it in that item",
                facts.who(later.agent)
            ),
        );
    }
    found.hint(
        "items of a role run on different CTAs: let the item that writes signal after the data, and the item that \
         reads wait for that same cell",
    )
}
