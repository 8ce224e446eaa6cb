//! The tile level: what each guarantee requires of a kernel and of a launch's plan.

mod columns;
mod computed_scales;
mod constant;
mod contribution;
mod coverage;
mod credits;
mod facts;
mod happens;
mod launches;
mod order;
mod progress;
mod race;
mod reuse;
mod trace;

use crate::diag::{Diagnostic, Rule};
use crate::kernel::Kernel;
use crate::plan::Plan;
use crate::undo::{Fix, undone};

pub use credits::pulled;

pub(super) use columns::{is_columned_counter, repeated};
pub(super) use launches::selects_by_size;
pub(super) use order::{Accessor, Announced, Before, Order, Part, Wait};

/// Findings in a kernel that hold in every shape.
///
/// ```
/// use counterflow_codegen::verify::{kernel_findings, plan_findings, pulled};
/// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/example.rs")); }
///
/// let (series, plan) = example::proven();
/// assert!(kernel_findings(series.kernel()).is_empty());
/// assert!(plan_findings(series.kernel(), &plan, None).is_empty());
/// assert!(pulled(series.kernel()).is_empty(), "it has no scratch");
/// ```
pub fn kernel_findings(kernel: &Kernel) -> Vec<Diagnostic> {
    let mut found = credits::check(kernel);
    found.extend(computed_scales::check(kernel));
    found.extend(constant::check(kernel));
    found
}

/// Findings in a plan: one of the first guarantee that does not hold, in the order of the table of [`crate::verify`].
/// Each guarantee needs the ones before it (coverage needs a finished run, and racing data has no content), so later
/// ones are not checked. `without` leaves a rule out, to test that it is needed.
pub fn plan_findings(kernel: &Kernel, plan: &Plan, without: Option<Rule>) -> Vec<Diagnostic> {
    let on = |rule: Rule| without != Some(rule);
    let facts = facts::Facts::new(kernel, plan);
    let mut coverage = coverage::Coverage::new(&facts);
    if let Some(stuck) = progress::run(&facts, |at, kind| coverage.step(at, kind)) {
        return if on(Rule::Progress) {
            vec![stuck]
        } else {
            Vec::new()
        };
    }
    let mut happens = happens::Happens::new(&facts);
    let race = if on(Rule::Race) {
        race::check(&facts, &mut happens)
    } else {
        None
    };
    let found = race
        .or_else(|| {
            if on(Rule::Coverage) {
                coverage.end()
            } else {
                None
            }
        })
        .or_else(|| {
            if on(Rule::Reuse) {
                reuse::check(&facts, &mut happens)
            } else {
                None
            }
        })
        .or_else(|| {
            if on(Rule::Reuse) && !undone(Fix::Dimensions) {
                launches::check(&facts, &mut happens)
            } else {
                None
            }
        })
        .or_else(|| {
            if on(Rule::Attribution) {
                reuse::check_attribution(&facts)
            } else {
                None
            }
        });
    found.into_iter().collect()
}

/// Findings in the signals of a plan: two launches may mistake each other's.
pub(super) fn attribution_findings(kernel: &Kernel, plan: &Plan) -> Vec<Diagnostic> {
    let found = reuse::check_attribution(&facts::Facts::of_signals(kernel, plan));
    found.into_iter().collect()
}
