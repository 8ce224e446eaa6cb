//! How a wait for a rank that never comes ends.

use crate::case::{self, Case};
use crate::fine;
use crate::gpus::{here, world};
use crate::right::KINDS;
use counterflow::jit::Compiler;
use counterflow::{Shape, gpus, schedules};

/// Ends the GPU's context, so it has a process of its own: `--ignored --exact`, with UB_TIMEOUT of a second.
#[test]
#[ignore = "kills the process's GPU context; run it alone, with UB_TIMEOUT=1"]
fn a_rank_that_never_launches_is_named() {
    if here().is_none() {
        return;
    }
    let Some(world) = world(2) else { return };
    let variant = case::variant(2, KINDS[0]);
    let shape = [Shape::new(512, 512, 512)];
    let case = Case::new(&schedules::ag_gemm(), &variant, &shape, world.sharing);
    let compiler = fine(Compiler::find());
    let ended = gpus::run_only(
        &world.ranks,
        &compiler,
        &case.pipeline,
        &case.series,
        &case.plans[0],
        0,
    );
    let error = ended.expect_err("stalled");
    println!("  {error}\n  {}", error.help().unwrap_or_default());
    assert_eq!(error.kind(), "stalled");
}
