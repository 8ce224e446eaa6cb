//! How far random schedules get: of those that the tile level accepts, with tiles that tensor cores have, how many have
//! warps that pass their verifier, and which rule refuses the others.
//!
//! `RANDOM_CASES` says how many accepted schedules are looked at: 20 by default, 60 in `.ci/run`.

use crate::fixtures::wide::wide;
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

/// How many of so many accepted schedules have warps, and what is said of each of the others.
fn tally(cases: usize) -> (usize, Vec<BTreeSet<String>>) {
    let (mut have, mut refused) = (0, Vec::new());
    for found in accepted(SEED, |_, _| {}).take(cases) {
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
    let otherwise = if wide() { 60 } else { 20 };
    let cases = std::env::var("RANDOM_CASES");
    let cases = cases.map_or(otherwise, |cases| cases.parse().expect("a number"));
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
