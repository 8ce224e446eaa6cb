//! Guarantee 4 between two launches of different shapes.
//!
//! Two launches of a series share what does not depend on a shape: where counter cells lie, who may signal them, and
//! the credits, which every rank grants every other in every launch ([`super::credits`]). Each launch is checked against
//! these alone, so the result holds for any two.
//!
//! - *Parameters.* Other ranks' accesses to a rank's parameter are done when its launch ends. Those of the next launch
//!   wait for the owner's credit, which it grants after its own next launch began. So any two accesses are ordered.
//!   [`super::reuse`] and [`super::credits`] check both.
//! - *Scratch.* Rows move when the shape changes, so any access of one launch meets any write of the next. The write
//!   waits for the owner's credit (every rank's, if others read it there). So every access must precede the grant of
//!   that credit, whether or not anybody of its own launch reads what it wrote.
//! - *Cells.* Two ranks may signal one cell in different launches only, so that no single plan shows both. The union of
//!   all launches ([`crate::shape::Geometry`]) shows all signallers: an item has the same cell in each launch that
//!   contains it, and waits there for the same credits. Which items a loop selects may change with the shape, for a half
//!   say: there the union visits all.

use super::credits;
use super::facts::{Area, At, Facts, Touch};
use super::happens::Happens;
use crate::diag::{Diagnostic, Rule};
use crate::kernel::{Block, Kernel, Purpose};
use crate::program::{CounterId, TensorId};
use crate::region::Access;
use crate::unroll::StepKind;

/// The first access of scratch that a launch of another shape may overtake.
pub(super) fn check(facts: &Facts<'_>, happens: &mut Happens<'_, '_>) -> Option<Diagnostic> {
    let mut counters = facts.kernel.counters.iter().zip(0..);
    counters.find_map(|(counter, id)| match counter.purpose {
        Purpose::Free(scratch) => check_scratch(facts, happens, scratch, CounterId(id)),
        Purpose::Data | Purpose::Ready(_) | Purpose::Returned(_) => None,
    })
}

/// True if some loop visits an item in launches of one size, but not in all that have it.
pub(in crate::proof) fn selects_by_size(kernel: &Kernel) -> bool {
    fn some(kernel: &Kernel, body: &[Block]) -> bool {
        body.iter().any(|block| match block {
            Block::ForRanks { body, .. } => some(kernel, body),
            Block::If {
                then, otherwise, ..
            } => some(kernel, then) || some(kernel, otherwise),
            Block::Items {
                partition,
                selection,
                ..
            } => {
                let divided = kernel.partitions[partition.index()].column_block.is_some();
                !selection.is_fixed(divided)
            }
            Block::Once { .. } | Block::Join => false,
        })
    }
    kernel.roles.iter().any(|role| some(kernel, &role.body))
}

fn check_scratch(
    facts: &Facts<'_>,
    happens: &mut Happens<'_, '_>,
    scratch: TensorId,
    free: CounterId,
) -> Option<Diagnostic> {
    let mut grants = Vec::new();
    facts.each_step(|at, kind| {
        if matches!(kind, StepKind::Signal { counter, .. } if counter == free) {
            grants.push(at);
        }
    });
    let lent = |area: &&Area| facts.kernel.lent_with(TensorId(area.buffer)) == scratch;
    let areas = || facts.areas().iter().filter(lent);
    let from_afar = |home: u32, touch: &Touch| facts.rank(touch.at.agent) != home;
    // A writer of what others read there waits for all ranks' credits, otherwise only for the owner's.
    let pulled = credits::pulled(facts.kernel).contains(&scratch);
    let world = facts.plan.geometry.world;
    if world == 1 {
        return None;
    }
    let mut reached: Option<(u32, Vec<Vec<u32>>)> = None;
    areas().find_map(|area| {
        let home = u32::from(area.home);
        let whose = if pulled { 0 } else { home };
        if reached.as_ref().is_none_or(|(of, _)| *of != whose) {
            let granted = |at: &&At| pulled || facts.rank(at.agent) == home;
            let before = happens.reached(grants.iter().filter(granted).copied());
            reached = Some((whose, before));
        }
        let before = &reached.as_ref()?.1;
        let late = facts.blocks_of(area).find_map(|block| {
            let late = facts.touches(block).iter().find(|touch| {
                let At { agent, item, step } = touch.at;
                // Of two ranks only the other one writes here remotely, and its own launches are ordered.
                let alone = world == 2 && !pulled && from_afar(home, touch);
                !alone && step >= before[agent as usize][item as usize]
            });
            late.map(|touch| (block, *touch))
        });
        late.map(|(block, touch)| overtaken(facts, area, block, touch, free))
    })
}

fn overtaken(
    facts: &Facts<'_>,
    area: &Area,
    block: u32,
    touch: Touch,
    free: CounterId,
) -> Diagnostic {
    let (rows, columns) = facts.rectangle(area, block);
    let what = facts.rectangle_name(area.buffer, area.slot, rows, columns);
    let does = match touch.access {
        Access::Read => "reads",
        Access::Write | Access::Add => "writes",
    };
    let message = format!(
        "rank {} {does} {what} on rank {}, perhaps while a launch of another shape writes there",
        facts.rank(touch.at.agent),
        area.home
    );
    let credit = &facts.kernel.counters[free.index()].name;
    Diagnostic::new(Rule::Reuse, facts.loc(touch.at), message)
        .note(facts.loc(touch.at), facts.deed(touch.at))
        .note(
            None,
            format!(
                "the next launch waits for {credit}, which is granted without waiting for this access"
            ),
        )
        .note(
            None,
            "rows of scratch move in memory when the shape changes",
        )
        .hint("let a role that reads this scratch wait for a signal that comes after the access")
}
