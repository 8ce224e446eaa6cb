//! What a case comes by. What none of its ranks does there is not tried, and so not shown.

use crate::diag::{Diagnostic, Rule};
use crate::kernel::{Block, Kernel, Op, OpId, OpKind, visit_ops};
use crate::order::Selection;
use crate::plan::Plan;
use crate::program::Loc;
use crate::shape::{Geometry, Shape};
use crate::unroll::{Agent, unroll};
use std::collections::BTreeSet;

/// A case may have so many ranks, if the schedule is compiled for as many.
pub(super) const MOST: u32 = 8;
/// Items of a chunk at most, where loops select some of them.
pub(super) const MOST_CHOSEN_FROM: u32 = 24;

/// The first thing that a rank of the kernel's own world may do and that none of the case does, if there is any: on ranks that
/// a smaller world does not have, or in a loop whose selection leaves nothing there. `shape` has items in every chunk.
pub(super) fn left_out(plans: &[Plan], kernel: &Kernel, shape: &Shape) -> Option<Diagnostic> {
    let agents = plans.iter().flat_map(|plan| plan.agents.iter());
    let tried = ops(agents);
    let mut bodies = Vec::new();
    for role in kernel.roles.iter().filter(|role| !role.kind.sequential()) {
        bodies_of(&role.body, &mut bodies);
    }
    let is_left_out = |op: &OpId| !tried.contains(op);
    if !bodies.iter().flat_map(|body| &body.ops).any(is_left_out) {
        return None;
    }
    // With all items of every loop: whatever any sizes would select.
    let mut whole = kernel.clone();
    for role in &mut whole.roles {
        select_all(&mut role.body);
    }
    let geometry = Geometry::new(&whole, shape).ok()?;
    let may = ops(&unroll(&whole, &geometry).ok()?);
    bodies.iter().find_map(|body| {
        let left_out = |op: &&OpId| is_left_out(op) && may.contains(op);
        let first = *body.ops.iter().find(left_out)?;
        Some(match body.selected_at {
            Some(at) if body.ops.iter().all(is_left_out) => {
                let message = "all warps are tried with few items, and this loop selects none of those";
                let hint = format!("let it visit one where a chunk has {MOST_CHOSEN_FROM} items");
                Diagnostic::new(Rule::Resources, at, message).hint(hint)
            }
            _ => {
                let message = "all warps are tried for few ranks, and none of those does this";
                let hint = format!(
                    "let a rank do it in a world of 3, or of 4; what is compiled for at most {MOST} ranks is tried for those, too"
                );
                Diagnostic::new(Rule::Resources, kernel.loc(first), message).hint(hint)
            }
        })
    })
}

fn ops<'a>(agents: impl IntoIterator<Item = &'a Agent>) -> BTreeSet<OpId> {
    let steps = agents.into_iter().flat_map(|agent| &agent.steps);
    steps.map(|step| step.op).collect()
}

/// What one item does.
struct Body {
    ops: Vec<OpId>,
    /// Where its loop is, if that selects some of the items.
    selected_at: Option<Loc>,
}

fn bodies_of(blocks: &[Block], found: &mut Vec<Body>) {
    for block in blocks {
        match block {
            Block::ForRanks { body, .. } => bodies_of(body, found),
            Block::If {
                then, otherwise, ..
            } => {
                bodies_of(then, found);
                bodies_of(otherwise, found);
            }
            Block::Items {
                at,
                selection,
                body,
                ..
            } => found.push(Body {
                ops: done(body),
                selected_at: (!selection.is_all()).then_some(*at),
            }),
            Block::Once { body } => found.push(Body {
                ops: done(body),
                selected_at: None,
            }),
            Block::Join => {}
        }
    }
}

/// The ops that are steps of a plan.
fn done(body: &[Op]) -> Vec<OpId> {
    let mut found = Vec::new();
    visit_ops(body, &mut |op| match op.kind {
        OpKind::ForRanks { .. } | OpKind::If { .. } => {}
        OpKind::Wait { .. }
        | OpKind::Signal { .. }
        | OpKind::Copy { .. }
        | OpKind::Dot { .. }
        | OpKind::Reduce { .. }
        | OpKind::Load { .. }
        | OpKind::Store { .. } => found.push(op.id),
    });
    found
}

fn select_all(blocks: &mut [Block]) {
    for block in blocks {
        match block {
            Block::ForRanks { body, .. } => select_all(body),
            Block::If {
                then, otherwise, ..
            } => {
                select_all(then);
                select_all(otherwise);
            }
            Block::Items { selection, .. } => *selection = Selection::default(),
            Block::Once { .. } | Block::Join => {}
        }
    }
}
