//! Random schedules down to machine code: the first that the tile level accepts. `RANDOM_CASES` says how many, 3 by
//! default; `.ci/run` takes 25.

use crate::generator::warps::accepted;
use crate::sass::all_pass;
use counterflow::Variant;

const SEED: u64 = 18;

/// No spill, no slow code, and as many instructions of each sort as their statements ask for.
#[test]
fn random_schedules_pass_the_sass_checks() {
    let cases = std::env::var("RANDOM_CASES").map_or(3, |cases| cases.parse().expect("a number"));
    let cases = accepted(SEED, |_, _| {}).take(cases);
    let cases: Vec<_> = cases
        .map(|found| (found.case.program, Variant::new(found.case.world)))
        .collect();
    all_pass(&cases);
}
