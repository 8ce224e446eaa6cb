//! Further cases, for combinations of branches that the first one does not run.
//!
//! Branches inside an item are branches around its loop in the kernel's text, so each combination of them is a text of its
//! own. What an item of the kernel's own world does, some item of a case does too. Items are tried one after another, and each
//! leaves the rings of its CTA as it found them: so what two items do need not be tried in every order.

use super::launches::{self, Launches, Refused};
use crate::diag::{Diagnostic, Diagnostics, Rule};
use crate::kernel::{Kernel, OpId, OpKind, visit, visit_ops};
use crate::program::Loc;
use crate::shape::{Geometry, Shape};
use crate::unroll::{Agent, unroll};
use crate::warp::Pipeline;
use std::collections::{BTreeMap, BTreeSet};

/// Ranks of a further case at most.
const MOST: u32 = 16;

/// Ops of one item.
type Done = BTreeSet<OpId>;

/// The cases that run, beside `first`, every combination of branches that the kernel's own world has.
///
/// # Errors
/// The first combination that no world of at most [`MOST`] ranks has, or why there is no list of them.
pub(super) fn further(pipeline: &Pipeline, first: &Launches) -> Result<Vec<Launches>, Refused> {
    let kernel = &pipeline.kernel;
    let branches = branches(kernel);
    let own = kernel.variant.world;
    if branches.is_empty() || own == first.kernel.variant.world {
        return Ok(Vec::new());
    }
    let of_own = of_own(kernel, &launches::shape(pipeline, own, None));
    let mut left = of_own.map_err(|why| Refused::NoCase(not_listed(&why, own).into()))?;
    // What an item does without any branch is tried as a statement.
    left.retain(|done| done.iter().any(|op| branches.contains_key(op)));
    let mut cases = Vec::new();
    let leave_out = |left: &mut BTreeSet<Done>, case: &Launches| {
        let tried = done(case.plans.iter().flat_map(|plan| plan.agents.iter()));
        let before = left.len();
        left.retain(|done| !tried.contains(done));
        left.len() < before
    };
    leave_out(&mut left, first);
    for world in 2..=MOST {
        if left.is_empty() {
            break;
        }
        if let Ok(case) = launches::legal(pipeline, world)
            && leave_out(&mut left, &case)
        {
            cases.push(case);
        }
    }
    match left.iter().flatten().find_map(|op| branches.get(op)) {
        None => Ok(cases),
        Some(at) => Err(Refused::NoCase(not_tried(at).into())),
    }
}

fn not_tried(at: Loc) -> Diagnostic {
    let message = format!(
        "this has no kernel together with the other branches of its item: all warps are tried for at most {MOST} ranks, and \
         none of those takes these branches in one item"
    );
    let hint = format!(
        "let a rank do it in a world of 2 to {MOST}, or put the branches into loops of their own"
    );
    Diagnostic::new(Rule::Resources, at, message).hint(hint)
}

/// Reason that nothing is known of the items of the kernel's own world.
fn not_listed(found: &Diagnostics, own: u32) -> Diagnostic {
    let why = found.first();
    let message = format!(
        "the branches that items take in a world of {own} cannot be listed: {}",
        why.message
    );
    Diagnostic::new(Rule::Resources, why.at, message)
        .hint("make the schedule legal for any number of tiles: `check --worlds .. --rows ..` of the tool says where it is not")
}

/// The statements that stand in branches, each with where the branch is.
fn branches(kernel: &Kernel) -> BTreeMap<OpId, Loc> {
    let mut found = BTreeMap::new();
    for role in kernel.roles.iter().filter(|role| !role.kind.sequential()) {
        visit(&role.body, &mut |op| {
            if let OpKind::If {
                then, otherwise, ..
            } = &op.kind
            {
                let at = kernel.loc(op.id);
                for body in [then, otherwise] {
                    visit_ops(body, &mut |op| _ = found.entry(op.id).or_insert(at));
                }
            }
        });
    }
    found
}

/// Ops of the items of the kernel's own world.
fn of_own(kernel: &Kernel, shape: &Shape) -> Result<BTreeSet<Done>, Diagnostics> {
    let geometry = Geometry::new(kernel, shape)?;
    Ok(done(&unroll(kernel, &geometry)?))
}

fn done<'a>(agents: impl IntoIterator<Item = &'a Agent>) -> BTreeSet<Done> {
    let mut found: BTreeSet<Done> = BTreeSet::new();
    for agent in agents {
        for item in &agent.items {
            let steps = &agent.steps[item.start as usize..item.end as usize];
            found.insert(steps.iter().map(|step| step.op).collect());
        }
    }
    found
}
