//! Several gathers, several products, and sums that are waited for in turn, in one kernel: right warps, or a rule that names a
//! statement.
//!
//! `SEVERAL_CASES` says how many accepted random schedules are looked at, 6 by default and 200 with `WIDE`.

use crate::fixtures::handed::{self, Move, PAIRS};
use crate::fixtures::wide::{in_turn, wide};
use crate::generator::warps::{Accepted, Warps, accepted_of_several, rule, warps};
use crate::reach::names_stand_once;
use counterflow_codegen::kernel::Kernel;
use counterflow_codegen::lower::lower;
use counterflow_codegen::program::Program;
use counterflow_codegen::variant::Variant;
use counterflow_codegen::verify::{self, Checked};
use std::collections::BTreeMap;

fn kernel(program: &Program, world: u32) -> Checked<Kernel> {
    let kernel = lower(program, &Variant::new(world)).and_then(verify::kernel);
    kernel.unwrap_or_else(|found| panic!("{} in a world of {world}: {found}", program.name))
}

fn has_right_warps(program: &Program, worlds: &[u32]) {
    for world in worlds {
        match verify::warps(&kernel(program, *world)) {
            Ok(pipeline) => names_stand_once(&pipeline),
            Err(found) => panic!("{} in a world of {world}: {found}", program.name),
        }
    }
}

#[test]
fn two_gathers_in_one_loop_over_ranks_are_counted_in_batches_of_their_own() {
    for (at, how) in [Move::Push, Move::Pull].into_iter().enumerate() {
        for worlds in in_turn([[1, 4], [2, 8]], at) {
            has_right_warps(&handed::two_gathers(how), &worlds);
        }
    }
}

#[test]
fn gathers_of_elements_of_two_sizes_share_a_loop_over_ranks() {
    for elements in PAIRS {
        has_right_warps(&handed::gathers_of(elements), &[2, 4]);
    }
}

#[test]
fn cells_of_one_counter_that_are_waited_for_in_turn_have_a_name_each() {
    has_right_warps(&handed::sums_in_order(), &[4]);
}

#[test]
fn rows_may_be_columns_of_another_tensor() {
    has_right_warps(&handed::rows_as_columns(), &[1, 4]);
    has_right_warps(&handed::gathered_rows_as_columns(), &[2, 4]);
}

#[test]
fn products_of_two_depths_in_one_item_are_refused_at_the_second() {
    let found = verify::warps(&kernel(&handed::low_rank_beside(), 4)).expect_err("two depths");
    let found = found.first();
    insta::assert_snapshot!(found.text(&|_| String::new()), @"
    error[resources]: products of another type or depth beside each other
      help: operands of one type, whose K is the same: they come step by step, together; or store one in a loop of its own, and add its tile: `+ z[t]`
    ");
    assert!(found.at.is_some_and(|at| at.file().ends_with("handed.rs")));
}

/// Six of ten have warps, which are right, and whose numbers are those of the reference; of each of the others a rule names
/// the statement.
#[test]
fn several_gathers_products_and_sums_have_right_warps_or_a_rule_names_a_statement() {
    let cases = std::env::var("SEVERAL_CASES");
    let some = if wide() { 200 } else { 6 };
    let cases = cases.map_or(some, |cases| cases.parse().expect("a number"));
    let (mut have, mut looked_at) = (0, 0);
    let mut rules: BTreeMap<String, usize> = BTreeMap::new();
    for found in accepted_of_several(40, |_, _| {}).take(cases) {
        let Accepted {
            number,
            case,
            kernel,
        } = found;
        looked_at += 1;
        match warps(&kernel) {
            Warps::Right(pipeline) => {
                names_stand_once(&pipeline);
                have += 1;
            }
            Warps::Refused(found) => {
                let first = found.first();
                assert!(
                    first.at.is_some(),
                    "case {number} has no statement: {found}"
                );
                *rules.entry(rule(&first.message)).or_default() += 1;
            }
            Warps::Wrong(found) => {
                panic!(
                    "case {number} has wrong warps: {found}\n{:#?}",
                    case.program
                )
            }
        }
    }
    println!(
        "{have} of {looked_at} accepted schedules have warps; of the others is said: {rules:#?}"
    );
    assert!(
        have * 10 >= looked_at * 6,
        "{have} of {looked_at} have warps: {rules:#?}"
    );
}
