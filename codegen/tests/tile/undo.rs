//! Each fix of the verifier is needed: without it, one of the first random schedules that are accepted goes wrong when
//! it runs, and with it the same schedule is rejected.

use crate::generator::judge::{self, Verdict};
use crate::generator::{self, Case, warps};
use counterflow_codegen::kernel::Kernel;
use counterflow_codegen::lower::lower;
use counterflow_codegen::machine::Machine;
use counterflow_codegen::plan::Plan;
use counterflow_codegen::shape::Shape;
use counterflow_codegen::undo::{Fix, undoing};
use counterflow_codegen::variant::Variant;
use counterflow_codegen::verify::{self, Checked};
use counterflow_emulator::{self as interp, FailureKind, Options, integers};

const SEED: u64 = 15;
/// How many cases may be drawn for a fix.
const CASES: u64 = 2000;

/// What goes wrong in the first case that `wrong` finds fault with, which has to be one of the first.
fn first(fix: Fix, wrong: impl Fn(&Case) -> Option<String>) {
    let found = (0..CASES).find_map(|number| {
        let case = generator::case(&generator::bytes(SEED, number));
        wrong(&case).map(|what| (number, what))
    });
    let (number, what) = found.unwrap_or_else(|| panic!("{fix:?} is not needed for {CASES} cases"));
    println!("without {fix:?}, case {number} is accepted: {what}");
}

/// What goes wrong with a case that is accepted without the fix alone.
fn accepted_without(
    fix: Fix,
    case: &Case,
    wrong: impl Fn(&Kernel, &[Plan]) -> Option<String>,
) -> Option<String> {
    let Verdict::Accepted(kernel, plans, ..) = undoing(fix, || judge::verdict(case)) else {
        return None;
    };
    match judge::verdict(case) {
        Verdict::Rejected(.., refused) => {
            wrong(&kernel, &plans).map(|wrong| format!("{wrong}\n{refused}"))
        }
        Verdict::Unplaced | Verdict::Outside | Verdict::Accepted(..) => None,
    }
}

/// What the numbers of outputs show.
fn by_numbers(fix: Fix) {
    first(fix, |case| {
        accepted_without(fix, case, |kernel, plans| {
            judge::wrong_numbers(case, kernel, plans)
        })
    });
}

#[test]
fn a_term_counts_as_often_as_it_was_added() {
    by_numbers(Fix::Multiplicity);
}

#[test]
fn a_bias_or_residual_is_a_term() {
    by_numbers(Fix::AddedTerms);
}

#[test]
fn a_gathered_tensor_holds_what_it_gathers() {
    by_numbers(Fix::Provenance);
}

#[test]
fn what_holds_between_launches_holds_for_every_dimension() {
    first(Fix::Dimensions, |case| {
        accepted_without(Fix::Dimensions, case, |kernel, plans| {
            judge::provoke(kernel, plans, 0..4)
                .err()
                .map(|failure| failure.to_string())
        })
    });
}

#[test]
fn launches_are_of_one_series() {
    first(Fix::Series, |case| {
        let Verdict::Accepted(kernel, plans, ..) = judge::verdict(case) else {
            return None;
        };
        let (series, apart) = judge::apart(&kernel, &plans)?;
        let launches: Vec<&Checked<Plan>> = apart.iter().collect();
        let run = |seed| {
            let options = Options::seed(seed).tags_only();
            interp::run(&series, &launches, &options, integers(1)).err()
        };
        let refused = run(0).map(|failure| *failure.kind);
        if !matches!(refused, Some(FailureKind::OtherSeries { .. })) {
            return None;
        }
        undoing(Fix::Series, || (0..4).find_map(run)).map(|failure| failure.to_string())
    });
}

/// The run is the verifier's own of all warps, with orders not looked at: a fast rank takes rows of a slow one as the launch
/// before left them.
#[test]
fn the_warp_level_keeps_every_order_of_the_tile_level() {
    let found = (0..CASES).find_map(|number| {
        let (program, world) = warps::gather(&generator::bytes(SEED, number));
        let kernel = lower(&program, &Variant::new(world)).and_then(verify::kernel);
        let kernel = kernel.ok()?;
        // The tile level accepts it: what is wrong is the warp level's own.
        let shape = Shape::new(300 * world, 256, 64);
        verify::plan(&kernel, &shape, &Machine::h200()).ok()?;
        let accepted = undoing(Fix::WarpOrder, || verify::warps(&kernel)).ok()?;
        let early = verify::outdated(&accepted).expect("it runs")?;
        let refused = verify::pipeline((*accepted).clone()).err()?;
        let made = verify::warps(&kernel).expect("the warp level can do it");
        assert_eq!(verify::outdated(&made).expect("it runs"), None);
        Some(format!("case {number}: {early}\n{refused}"))
    });
    println!("{}", found.expect("WarpOrder is needed"));
}
