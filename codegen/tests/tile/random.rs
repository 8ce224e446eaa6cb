//! The verifier's honesty, on random schedules: what it accepts never fails in the emulator, under any interleaving, and
//! has the numbers that its outputs' types promise, as the references have them; what it rejects fails under some, or is
//! counted as conservative under the rule's name.
//!
//! `RANDOM_CASES` and `RANDOM_SEEDS` widen the test, `RANDOM_KIND` draws schedules of one kind only, `RANDOM_SHOW` prints what
//! is conservative.

use crate::fixtures::wide::wide;
use crate::generator;
use crate::generator::judge::{self, Verdict};
use counterflow_codegen::diag::Rule;
use counterflow_codegen::plan::Plan;
use counterflow_emulator as interp;
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use std::cell::RefCell;
use std::collections::BTreeMap;

#[derive(Default, Debug)]
struct Tally {
    accepted: u32,
    /// Of these, in worlds of nine ranks.
    far: u32,
    explored: u32,
    runs: u32,
    rejected: u32,
    unplaced: u32,
    provoked: BTreeMap<&'static str, u32>,
    conservative: BTreeMap<&'static str, u32>,
}

fn environment(name: &str, default: u32) -> u32 {
    std::env::var(name)
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(default)
}

/// One random schedule, judged and run.
fn examine(bytes: &[u8], seeds: u64, tally: &mut Tally) -> Result<(), TestCaseError> {
    let case = generator::case(bytes);
    let fails = |what: String| {
        TestCaseError::fail(format!(
            "accepted, but: {what}\n{:?}\n{:#?}",
            case.launches, case.program
        ))
    };
    match judge::verdict(&case) {
        Verdict::Unplaced => tally.unplaced += 1,
        Verdict::Outside => {
            tally.rejected += 1;
            *tally.provoked.entry(Rule::Bounds.name()).or_default() += 1;
        }
        Verdict::Accepted(kernel, plans, ..) => {
            tally.accepted += 1;
            tally.far += u32::from(case.world > 8);
            let runs = judge::provoke(&kernel, &plans, 0..seeds);
            tally.runs += runs.map_err(|failure| fails(failure.to_string()))?;
            let wrong = judge::wrong_numbers(&case, &kernel, &plans)
                .or_else(|| judge::unlike_reference(&kernel, &plans));
            if let Some(wrong) = wrong {
                return Err(fails(wrong));
            }
            if case.world == 2 && kernel.roles.len() == 2 && case.most().m <= 4 {
                let launches: Vec<Vec<&Plan>> = plans[..2].iter().map(|plan| vec![plan]).collect();
                let walk = interp::provoke_all(&kernel, &launches, 1, 50_000);
                let walk = walk.map_err(|failure| fails(failure.to_string()))?;
                tally.explored += u32::from(walk.complete);
            }
        }
        Verdict::Rejected(kernel, plans, refused) => {
            tally.rejected += 1;
            let failed = judge::provoke(&kernel, &plans, 0..seeds.max(40)).is_err()
                || judge::wrong_numbers(&case, &kernel, &plans).is_some();
            let list = if failed {
                &mut tally.provoked
            } else {
                &mut tally.conservative
            };
            *list.entry(refused.rule.name()).or_default() += 1;
            if !failed && std::env::var("RANDOM_SHOW").is_ok() {
                println!(
                    "conservative: {:?} on {}: {refused}",
                    case.launches, case.world
                );
            }
        }
    }
    Ok(())
}

#[test]
fn accepted_schedules_never_fail_and_rejected_ones_do() {
    let cases = environment("RANDOM_CASES", if wide() { 500 } else { 30 });
    let seeds = u64::from(environment("RANDOM_SEEDS", 16));
    let config = Config {
        cases,
        max_shrink_iters: 2000,
        failure_persistence: None,
        ..Config::default()
    };
    let rng = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
    let tally = RefCell::new(Tally::default());
    let kind = std::env::var("RANDOM_KIND").ok();
    let kind = kind.map(|kind| kind.parse().expect("a number"));
    let bytes = proptest::collection::vec(any::<u8>(), 24..120);
    let bytes = bytes.prop_map(move |mut bytes| {
        bytes[generator::KIND] = kind.unwrap_or(bytes[generator::KIND]);
        bytes
    });
    let result = TestRunner::new_with_rng(config, rng).run(&bytes, |bytes| {
        examine(&bytes, seeds, &mut tally.borrow_mut())
    });
    let tally = tally.into_inner();
    let judged = tally.accepted + tally.rejected;
    let conservative: u32 = tally.conservative.values().sum();
    println!(
        "{judged} schedules judged: {} accepted ({} runs without a failure, {} walked exhaustively), {} rejected: \
         {:?} fail when run, {:?} do not ({:.1} % of the rejected are conservative); {} more were not schedules",
        tally.accepted,
        tally.runs,
        tally.explored,
        tally.rejected,
        tally.provoked,
        tally.conservative,
        100.0 * f64::from(conservative) / f64::from(tally.rejected.max(1)),
        tally.unplaced,
    );
    if let Err(error) = result {
        panic!("{error}");
    }
    assert!(
        tally.far > 0,
        "some must be accepted beyond a world of eight"
    );
    assert!(
        tally.accepted * 5 >= judged,
        "a fifth must be accepted: {tally:?}"
    );
    assert!(
        tally.rejected * 5 >= judged,
        "a fifth must be rejected: {tally:?}"
    );
}
