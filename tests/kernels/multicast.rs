//! Every rank's memory at once: no spill, no slow code, and the multicast instructions are there. Compiled, never run.

use crate::multicast_of::{REAL, all};
use crate::sass::all_pass;
use counterflow::Variant;

#[test]
fn kernels_that_reach_every_rank_pass_the_sass_checks() {
    let cases: Vec<_> = (all(REAL).into_iter())
        .map(|program| (program, Variant::new(4)))
        .collect();
    all_pass(&cases);
}
