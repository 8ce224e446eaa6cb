//! Negative tests: schedules and kernels one edit away from the library's, each breaking one rule, each rejected with
//! its trace, each failing in the emulator.
//!
//! A trace's locations are shown as the source line they point at, so that a snapshot holds no line number.

mod accumulated;
mod all_to_all;
mod attribution;
mod bounds;
mod cases;
mod columns;
mod contents;
mod coverage;
mod gathered;
mod planes;
mod progress;
mod race;
mod reuse;
mod slabs;
mod sums;

use cases::{Case, cases, scaled, small};
use counterflow::codegen::interp::{self, Options, Outcome};
use counterflow::codegen::kernel::{Axis, Block, Kernel, OpKind, Region};
use counterflow::codegen::program::{Loc, TensorId, Usage, Var};
use counterflow::codegen::variant::Scales;
use counterflow::codegen::verify;
use counterflow::{Diagnostic, Machine, Plan, Rule, Shape};

fn shape(kernel: &Kernel) -> Shape {
    let shape = Shape::new(29, 24, 16);
    if kernel.dims.iter().any(|dim| dim.name == "z.rows") {
        shape.dim("z.rows", 29)
    } else {
        shape
    }
}

/// Everything the verifier says, shape-independent findings first.
fn findings(
    case: &Case,
    without: Option<Rule>,
) -> Result<(Vec<Diagnostic>, Plan), Vec<Diagnostic>> {
    let kernel = &case.kernel;
    let plan = Plan::new(kernel, &shape(kernel), &Machine::h200());
    let plan = plan.map_err(|found| found.iter().cloned().collect::<Vec<_>>())?;
    let mut found = if without == Some(Rule::Reuse) {
        Vec::new()
    } else {
        verify::kernel_findings(kernel)
    };
    if found.is_empty() {
        found = verify::plan_findings(kernel, &plan, without);
    }
    Ok((found, plan))
}

/// The source line a location points at.
fn source_line(at: Loc) -> String {
    let text = std::fs::read_to_string(at.file()).unwrap_or_default();
    let line = text
        .lines()
        .nth(at.line() as usize - 1)
        .unwrap_or_default()
        .trim();
    let file = at.file().rsplit('/').next().unwrap_or_default();
    format!("{file}: {line}")
}

#[test]
fn every_case_breaks_its_rule_and_has_its_trace() {
    let cases = cases();
    assert!(cases.len() >= 25);
    for case in &cases {
        let found = match findings(case, None) {
            Ok((found, _)) => found,
            Err(found) => found,
        };
        let rules: std::collections::BTreeSet<&str> =
            found.iter().map(|found| found.rule.name()).collect();
        assert_eq!(
            Vec::from_iter(rules),
            [case.rule.name()],
            "{}: {found:?}",
            case.name
        );
        let trace: Vec<String> = found.iter().map(|found| found.text(&source_line)).collect();
        let title = format!("world {}", case.world);
        insta::with_settings!({
            snapshot_path => "traces",
            prepend_module_to_snapshot => false,
            omit_expression => true,
            description => title,
        }, { insta::assert_snapshot!(case.name, trace.join("\n")) });
    }
}

/// Good and bad schedules, in each of several worlds: what a range says of each number of rows is what is said of that
/// shape by itself.
#[test]
fn a_range_says_of_every_shape_what_is_said_of_it_alone() {
    const ROWS: std::ops::RangeInclusive<u32> = 1..=40;
    let machine = Machine::h200();
    let library = counterflow::schedules::ALL.map(|schedule| schedule());
    let cases = [
        progress::wants_two(),
        progress::first_chunk_will_do(),
        race::no_wait(),
        race::ring_too_short(),
        coverage::without_mine(),
        bounds::ring_no_wrap(),
        attribution::start_together(),
    ];
    let (mut accepted, mut refused, mut mixed) = (0, 0, 0);
    for program in library.iter().chain(&cases) {
        for world in 1..=4 {
            let Ok(kernel) = verify::kernel(small(program, world)) else {
                continue;
            };
            let shape = Shape::new(1, 24, 16);
            let decided = verify::range(&kernel, &shape, ROWS, &machine, u64::MAX);
            assert_eq!(decided.undecided, None);
            assert_eq!(decided.shapes(), ROWS.count() as u64, "{}", program.name);
            for m in ROWS {
                let mut of = decided
                    .classes
                    .iter()
                    .filter(|class| class.rows.iter().any(|rows| rows.contains(&m)));
                let (class, None) = (of.next().expect("a class"), of.next()) else {
                    panic!("{} world {world}: {m} is of two classes", program.name);
                };
                let alone = Shape { m, ..shape.clone() };
                let alone = verify::plan(&kernel, &alone, &machine);
                let rule = |found: &counterflow::codegen::diag::Diagnostics| found.first().rule;
                assert_eq!(
                    class.verdict.as_ref().err().map(rule),
                    alone.as_ref().err().map(rule),
                    "{} world {world} m {m}",
                    program.name
                );
                accepted += u32::from(alone.is_ok());
                refused += u32::from(alone.is_err());
            }
            let bad = decided.refused().count();
            mixed += u32::from((1..decided.classes.len()).contains(&bad));
            if bad == 0 && decided.between.is_none() {
                let largest = Shape {
                    m: *ROWS.end(),
                    ..shape
                };
                assert!(verify::series(&kernel, &largest, &machine).is_ok());
            }
            // As many steps as were given, and no more.
            let some = verify::range(&kernel, &Shape::new(1, 24, 16), ROWS, &machine, 0);
            // One rank alone has nothing to move.
            let idle = world == 1 && kernel.gemm().is_none();
            assert!(some.undecided.is_some() || decided.classes.len() == 1 || idle);
        }
    }
    assert!(accepted > 500 && refused > 100, "{accepted} and {refused}");
    assert!(
        mixed > 0,
        "no schedule is good at some rows and bad at others"
    );
}

fn wrong_numbers(kernel: &Kernel, plan: &Plan) -> bool {
    let run = interp::provoke(kernel, &[vec![plan]], &Options::seed(1), interp::uniform(1));
    run.is_ok_and(|outcome| {
        gathers_others(kernel, &outcome) || {
            let expected = interp::reference(kernel, plan, 0, interp::uniform(1));
            interp::compare(&outcome, &expected.expect("a reference")).is_err()
        }
    })
}

/// Whether ranks end with other results than each other where all are to have the same.
fn gathers_others(kernel: &Kernel, outcome: &Outcome) -> bool {
    let results = kernel.buffers.iter().enumerate();
    let mut results = results.filter(|(_, buffer)| buffer.usage == Usage::GATHERED_OUTPUT);
    results.any(|(index, _)| {
        let held = |rank| {
            let output = outcome.output(0, rank, TensorId(index as u16));
            output.expect("an output").values.clone()
        };
        (1..kernel.variant.world).any(|rank| held(rank) != held(0))
    })
}

#[test]
fn every_exhibit_fails_in_the_emulator() {
    for case in &cases() {
        // Bounds are decided while the steps are made: there is nothing to run.
        let Ok((_, plan)) = findings(case, None) else {
            continue;
        };
        let launches = vec![vec![&plan]; 3];
        let fails = (0..200).any(|seed| {
            let options = Options {
                step_limit: 1 << 20,
                ..Options::seed(seed)
            }
            .tags_only();
            interp::provoke(&case.kernel, &launches, &options, |_, _| {}).is_err()
        });
        // Who touches what may be in order, and the numbers wrong all the same.
        let fails = fails || wrong_numbers(&case.kernel, &plan);
        assert!(
            fails,
            "{} runs without a failure: it belongs to the conservative ones",
            case.name
        );
    }
}

#[test]
fn what_the_attribution_exhibit_was_before_its_edit_is_accepted() {
    let kernel = small(&attribution::start_together(), 4);
    let plan = Plan::new(&kernel, &shape(&kernel), &Machine::h200()).unwrap();
    assert!(verify::kernel_findings(&kernel).is_empty());
    assert!(verify::plan_findings(&kernel, &plan, None).is_empty());
}

#[test]
fn sums_that_are_close_to_bad_ones_are_accepted_and_run() {
    let good = [
        sums::ring_sum,
        sums::two_products,
        sums::inputs_summed,
        sums::residual_subtracted,
        sums::bias_at_the_owner,
        sums::bias_before_adds,
        sums::gathers_by_scratch,
        all_to_all::sent_by_the_next,
        all_to_all::sends_a_function,
        all_to_all::sends_rows,
        gathered::gathers_a_function,
        gathered::gathers_by_comm,
        gathered::gathers_around_a_ring,
        contents::gathers_two_reads,
        contents::gathers_two_slots,
    ];
    for program in good {
        for world in 2..=5 {
            let program = program();
            let kernel = small(&program, world);
            let found = verify::kernel_findings(&kernel);
            assert!(found.is_empty(), "{} of {world}: {found:?}", program.name);
            for m in [7, 29] {
                let mut shape = shape(&kernel);
                shape.m = m;
                let plan = Plan::new(&kernel, &shape, &Machine::h200()).unwrap();
                let found = verify::plan_findings(&kernel, &plan, None);
                assert!(found.is_empty(), "{} of {world}: {found:?}", program.name);
                let numbers = || interp::uniform(1);
                let options = Options::seed(1);
                let run = interp::provoke(&kernel, &[vec![&plan]], &options, numbers());
                let run = run.unwrap_or_else(|error| panic!("{}: {error}", program.name));
                let expected = interp::reference(&kernel, &plan, 0, numbers());
                interp::compare(&run, &expected.expect("a reference")).unwrap();
            }
        }
    }
}

/// What the ways to lose a scale were before their edit, and without scales all of them that send the elements.
#[test]
fn scales_by_themselves_are_accepted_and_run() {
    for program in [planes::scales_apart, planes::scales_with_a_counter] {
        for world in 1..=8 {
            let program = program();
            let kinds = [Scales::PerRow, Scales::Blocks1d2d, Scales::Blocks1d1d];
            let of_scales = kinds.map(|scales| scaled(&program, world, scales));
            for kernel in of_scales.into_iter().chain([small(&program, world)]) {
                for m in [1, 7, 29] {
                    let mut shape = shape(&kernel);
                    shape.m = m;
                    let plan = Plan::new(&kernel, &shape, &Machine::h200()).unwrap();
                    let mut found = verify::kernel_findings(&kernel);
                    found.extend(verify::plan_findings(&kernel, &plan, None));
                    assert!(found.is_empty(), "{} of {world}: {found:?}", program.name);
                    let numbers = || interp::uniform(1);
                    let run =
                        interp::provoke(&kernel, &[vec![&plan]], &Options::seed(1), numbers());
                    let run = run.unwrap_or_else(|error| panic!("{}: {error}", program.name));
                    let expected = interp::reference(&kernel, &plan, 0, numbers());
                    interp::compare(&run, &expected.expect("a reference")).unwrap();
                }
            }
        }
    }
}

#[test]
fn what_is_gathered_is_computed_once() {
    let kernel = small(&contents::gathers_two_dots(), 3);
    let plan = Plan::new(&kernel, &shape(&kernel), &Machine::h200()).unwrap();
    let found = verify::plan_findings(&kernel, &plan, None);
    insta::assert_snapshot!(found.first().expect("is refused").text(&source_line), @"
    error[coverage]: rows 10..14, columns 0..8 of y on rank 0 is computed by another expression, or of other values, than on rank 1, which owns these rows
      --> contents.rs: y.on(peer)[t] = dot(x[t], w[t]);
      = gemm of rank 1 writes rows 10..14, columns 0..8 of y on rank 0
        --> contents.rs: y.on(peer)[t] = dot(x[t], w[t]);
      help: every rank holds the same at the end: compute it once with `let`, and store that here and on every peer
    ");
}

/// What no schedule can say: products of another tile's rows, and over a part of K.
#[test]
fn a_product_of_other_rows_or_of_a_part_of_k_is_no_term() {
    use counterflow::schedules::gemm_rs;
    type Edit = fn(&mut Region, &mut Region, Var);
    let edits: [Edit; 2] = [
        |a, _, earlier| a.rows = Axis::RowsOf(earlier),
        |a, b, earlier| {
            (a.columns, b.columns) = (Axis::ColumnsOf(earlier), Axis::ColumnsOf(earlier));
        },
    ];
    for edit in edits {
        let mut kernel = small(&gemm_rs(), 3);
        let mut seen = None;
        for block in &mut kernel.roles[0].body {
            match block {
                Block::ForRanks { body, .. } => {
                    seen = body.iter().find_map(|block| match block {
                        Block::Items { var, .. } => Some(*var),
                        _ => None,
                    });
                }
                Block::Items { body, .. } => {
                    for op in body {
                        if let OpKind::Dot { a, b, .. } = &mut op.kind {
                            edit(a, b, seen.expect("a loop before"));
                        }
                    }
                }
                _ => {}
            }
        }
        // All tiles are whole, and one has all columns.
        let plan = Plan::new(&kernel, &Shape::new(24, 8, 16), &Machine::h200()).unwrap();
        let found = verify::plan_findings(&kernel, &plan, None);
        let told = &found.first().expect("is refused").message;
        assert!(told.contains("holds other rows or columns"), "{told}");
        assert!(wrong_numbers(&kernel, &plan), "{told}");
    }
}

/// An `Out` may be any expression, but of whole products.
#[test]
fn an_out_holds_no_product_over_a_part_of_k() {
    let mut kernel = small(&counterflow::schedules::ag_gemm(), 3);
    let mut edited = 0;
    for block in kernel.roles.iter_mut().flat_map(|role| &mut role.body) {
        let Block::ForRanks { body, .. } = block else {
            continue;
        };
        for block in body {
            let Block::Items { var, body, .. } = block else {
                continue;
            };
            for op in body {
                if let OpKind::Dot { a, b, .. } = &mut op.kind {
                    (a.columns, b.columns) = (Axis::ColumnsOf(*var), Axis::ColumnsOf(*var));
                    edited += 1;
                }
            }
        }
    }
    assert!(edited > 0, "no product to edit");
    // One tile has all columns, which are half of K.
    let plan = Plan::new(&kernel, &Shape::new(24, 8, 16), &Machine::h200()).unwrap();
    let found = verify::plan_findings(&kernel, &plan, None);
    let told = &found.first().expect("is refused").message;
    assert!(told.contains("not all of K"), "{told}");
    assert!(wrong_numbers(&kernel, &plan), "{told}");
}

#[test]
fn no_rule_can_be_left_out() {
    for rule in [
        Rule::Progress,
        Rule::Race,
        Rule::Coverage,
        Rule::Reuse,
        Rule::Attribution,
    ] {
        let slips_through = cases().into_iter().any(|case| {
            let Ok((found, plan)) = findings(&case, Some(rule)) else {
                return false;
            };
            let launches = vec![vec![&plan]; 3];
            found.is_empty()
                && (0..200).any(|seed| {
                    let options = Options {
                        step_limit: 1 << 20,
                        ..Options::seed(seed)
                    }
                    .tags_only();
                    interp::provoke(&case.kernel, &launches, &options, |_, _| {}).is_err()
                })
        });
        assert!(
            slips_through,
            "without {} nothing bad is accepted: the rule is not needed",
            rule.name()
        );
    }
}
