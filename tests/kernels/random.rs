//! Random schedules down to machine code: the first that the tile level accepts, but for the few that have no pipeline.
//! `RANDOM_CASES` says how many, 3 by default; `.ci/run` takes 25.

use crate::generator::warps::accepted;
use crate::sass::all_pass;
use counterflow::Variant;
use counterflow::codegen::sm90;

const SEED: u64 = 18;

/// No spill, no slow code, and as many instructions of each sort as their statements ask for.
#[test]
fn random_schedules_pass_the_sass_checks() {
    let count = std::env::var("RANDOM_CASES").map_or(3, |cases| cases.parse().expect("a number"));
    let cases = accepted(SEED, |_, _| {}).take(count);
    let cases: Vec<_> = cases
        .filter(|found| sm90::build(&found.kernel).is_ok())
        .map(|found| (found.case.program, Variant::new(found.case.world)))
        .collect();
    let have = cases.len();
    println!("{have} of {count} accepted schedules have a pipeline");
    assert!(
        have * 100 >= count * 95,
        "{have} of {count} have a pipeline"
    );
    all_pass(&cases);
}
