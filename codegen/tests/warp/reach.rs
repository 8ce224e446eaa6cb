//! How far random schedules get: of those that the tile level accepts, with tiles that tensor cores have, how many have
//! warps that pass their verifier, and which rule refuses the others.
//!
//! `RANDOM_CASES` says how many accepted schedules are looked at, 4 by default and 60 with `WIDE`.

use crate::fixtures::wide::wide;
use crate::generator::Case;
use crate::generator::warps::{Accepted, Warps, accepted, rule, warps};
use counterflow_codegen::warp::{Node, Pipeline};
use std::collections::{BTreeMap, BTreeSet};

const SEED: u64 = 18;

/// A compiler would refuse a block that gives a name twice.
pub fn names_stand_once(pipeline: &Pipeline) {
    let mut pipeline = pipeline.clone();
    pipeline.lists(&mut |list| {
        let mut names = BTreeSet::new();
        for node in list.iter() {
            let Node::Let { name, .. } = node else {
                continue;
            };
            assert!(names.insert(name.clone()), "{node:?} stands twice");
        }
    });
}

/// Every fourth schedule is for 9 to 16 ranks, where arithmetic over ranks comes to something else than in the small case.
fn far(number: u64, case: &mut Case) {
    if number % 4 == 3 {
        case.world = 9 + (number / 4 % 8) as u32;
    }
}

/// What the tile level accepts in a larger world has right warps there, too: they are run in that world, not in a small case.
#[cfg(debug_assertions)]
#[test]
fn warps_of_far_worlds_are_right_there() {
    use counterflow_codegen::verify;
    let always = |number: u64, case: &mut Case| case.world = 9 + (number % 3) as u32;
    let mut tried = 0;
    let (cases, least) = if wide() { (12, 8) } else { (2, 1) };
    for found in accepted(SEED + 1, always).take(cases) {
        let Accepted {
            number,
            case,
            kernel,
        } = found;
        if let Warps::Right(pipeline) = warps(&kernel) {
            let ran = verify::in_world(&pipeline, case.world);
            ran.unwrap_or_else(|error| panic!("case {number}: {error}\n{:#?}", case.program));
            tried += 1;
        }
    }
    assert!(tried >= least, "{tried} of {cases} were run");
}

/// How many of so many accepted schedules have warps, and what is said of each of the others.
fn tally(cases: usize) -> (usize, Vec<BTreeSet<String>>) {
    let (mut have, mut refused) = (0, Vec::new());
    for found in accepted(SEED, far).take(cases) {
        let Accepted {
            number,
            case,
            kernel,
        } = found;
        match warps(&kernel) {
            Warps::Right(pipeline) => {
                names_stand_once(&pipeline);
                have += 1;
            }
            Warps::Refused(found) => {
                refused.push(found.iter().map(|found| rule(&found.message)).collect());
            }
            Warps::Wrong(found) => {
                panic!(
                    "case {number} has wrong warps: {found}\n{:#?}",
                    case.program
                )
            }
        }
    }
    (have, refused)
}

/// What has warps has right ones, and 95 of 100 have some. Says of the others how many each thing is said of.
#[test]
fn warps_of_random_schedules_are_right_or_refused() {
    let usual = if wide() { 60 } else { 4 };
    let cases =
        std::env::var("RANDOM_CASES").map_or(usual, |cases| cases.parse().expect("a number"));
    let (have, refused) = tally(cases);
    let mut rules: BTreeMap<&String, usize> = BTreeMap::new();
    for rule in refused.iter().flatten() {
        *rules.entry(rule).or_default() += 1;
    }
    println!("{have} of {cases} accepted schedules have warps; of the others is said:");
    let mut rules: Vec<_> = rules.into_iter().collect();
    rules.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    for (rule, count) in rules {
        println!("{count:6}  {rule}");
    }
    assert!(have * 100 >= cases * 95, "{have} of {cases} have warps");
}
