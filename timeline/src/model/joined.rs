//! The cost of `#[comm]` loops that follow each other on the same CTAs.

use super::timeline::{predict, seconds};
use counterflow_codegen::diag::{Diagnostic, Rule};
use counterflow_codegen::kernel::Kernel;
use counterflow_codegen::lower;
use counterflow_codegen::machine::Machine;
use counterflow_codegen::plan::Plan;
use counterflow_codegen::program::{Role, RoleKind};

/// A smaller share of the time is not worth a warning.
const WORTH: f64 = 0.02;

/// A warning if a `#[comm]` role has several loops, which run one after another on the same CTAs, and the launch would be
/// faster with separate CTAs for each.
pub fn joined(kernel: &Kernel, plan: &Plan, machine: &Machine) -> Option<Diagnostic> {
    let program = &kernel.program;
    let loops = program.roles.iter();
    let loops = loops.filter(|role| matches!(role.kind, RoleKind::Comm { .. }));
    let (first, second) = one_role(loops)?;

    // If separate CTAs are too many, or a wait would never end, there is nothing to compare with.
    let apart = lower::apart(program, &kernel.variant).ok()?;
    let apart_plan = Plan::new(&apart, &plan.shape, machine).ok()?;
    let alone = seconds(&apart, &apart_plan, machine).ok()?;
    let together = predict(kernel, plan, machine).ok()?;
    if alone > together.total * (1.0 - WORTH) {
        return None;
    }
    let cost = |time: f64| {
        format!(
            "{:.1} µs, {:.2} of the bound",
            time * 1e6,
            time / together.bound()
        )
    };
    let warning = Diagnostic::new(
        Rule::Time,
        second.at,
        format!(
            "this {} loop begins when an earlier one ends, on the same CTAs: predicted {}; with separate CTAs {}",
            second.words(),
            cost(together.total),
            cost(alone)
        ),
    );
    Some(
        warning
            .note(first.at, "the earlier loop")
            .hint("give it CTAs of its own by a name, such as `#[comm(name = halo, ctas = 2)]`: loops of one name are one sequence"),
    )
}

/// Two loops of one role, if there are any: the first pair.
fn one_role<'p>(loops: impl Iterator<Item = &'p Role>) -> Option<(&'p Role, &'p Role)> {
    let mut known: Vec<&Role> = Vec::new();
    for role in loops {
        if let Some(earlier) = known.iter().find(|earlier| earlier.name == role.name) {
            return Some((earlier, role));
        }
        known.push(role);
    }
    None
}
