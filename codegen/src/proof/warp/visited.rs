//! Statements that a case runs. A statement that none of its ranks runs is not tried, and so not shown.

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
/// Items of a shard at most, where loops select some of them.
pub(super) const MOST_CHOSEN_FROM: u32 = 24;

/// The first thing that a rank of the kernel's own world may do and that no rank of the case does, if there is any: on ranks
/// that a smaller world does not have, or in a loop that selects none of the few items there. `shape` is of the own world and
/// has items in every shard.
pub(super) fn left_out(
    case: &Kernel,
    plans: &[Plan],
    own: &Kernel,
    shape: &Shape,
) -> Option<Diagnostic> {
    let tried = ops(plans.iter().flat_map(|plan| plan.agents.iter()));
    let mut bodies = Vec::new();
    for role in own.roles.iter().filter(|role| !role.kind.sequential()) {
        bodies_of(&role.body, own.variant.world, &mut bodies);
    }
    let is_left_out = |op: &OpId| !tried.contains(op);
    if !bodies.iter().flat_map(|body| &body.ops).any(is_left_out) {
        return None;
    }
    let may = with_all_items(own, shape);
    bodies.iter().find_map(|body| {
        // Where that cannot be told, it may.
        let of_own = |op: &OpId| may.as_ref().is_none_or(|may| may.contains(op));
        let first = *body.ops.iter().find(|op| is_left_out(op) && of_own(op))?;
        let comes_by = |all: &BTreeSet<OpId>| all.contains(&first);
        let of_case = plans.first().and_then(|plan| with_all_items(case, &plan.shape));
        let (at, message, hint) = match body.selected_at {
            Some(at) if of_case.as_ref().is_none_or(comes_by) => (
                at,
                "this loop has no kernel: all warps are tried with few items, and it selects none of those",
                format!("let it visit one where a shard has {MOST_CHOSEN_FROM} items"),
            ),
            _ => (
                own.loc(first),
                "this has no kernel: all warps are tried for few ranks, and none of those does it",
                format!(
                    "let a rank do it in a world of 3, or of 4; what is compiled for at most {MOST} ranks is tried for those, too"
                ),
            ),
        };
        Some(Diagnostic::new(Rule::Resources, at, message).hint(hint))
    })
}

/// Ops of ranks if every loop visits all items: what any sizes would select. None where selections keep ranks in
/// bounds.
fn with_all_items(kernel: &Kernel, shape: &Shape) -> Option<BTreeSet<OpId>> {
    let mut whole = kernel.clone();
    for role in &mut whole.roles {
        select_all(&mut role.body);
    }
    let geometry = Geometry::new(&whole, shape).ok()?;
    Some(ops(&unroll(&whole, &geometry).ok()?))
}

fn ops<'a>(agents: impl IntoIterator<Item = &'a Agent>) -> BTreeSet<OpId> {
    let steps = agents.into_iter().flat_map(|agent| &agent.steps);
    steps.map(|step| step.op).collect()
}

/// Ops of one item.
struct Body {
    ops: Vec<OpId>,
    /// Place of its loop, if that selects some of the items.
    selected_at: Option<Loc>,
}

/// But for those of loops that select nothing, however many items there are.
fn bodies_of(blocks: &[Block], world: u32, found: &mut Vec<Body>) {
    for block in blocks {
        match block {
            Block::ForRanks { body, .. } => bodies_of(body, world, found),
            Block::If {
                then, otherwise, ..
            } => {
                bodies_of(then, world, found);
                bodies_of(otherwise, world, found);
            }
            Block::Items {
                at,
                selection,
                body,
                ..
            } => {
                if selection.least_and_most(1 << 30, world).1 > 0 {
                    found.push(Body {
                        ops: done(body),
                        selected_at: (!selection.is_all()).then_some(*at),
                    });
                }
            }
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
    visit_ops(body, &mut |op| {
        if !matches!(op.kind, OpKind::ForRanks { .. } | OpKind::If { .. }) {
            found.push(op.id);
        }
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
