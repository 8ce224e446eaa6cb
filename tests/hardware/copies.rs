//! What the host does in a launch: how a stream that waits for a rank that never comes ends, and copies of rows that lie apart.

use crate::case::{self, Case, Fill};
use crate::fine;
use crate::gpus::{here, turn, world};
use crate::queues::{QUEUES, apart};
use crate::right::KINDS;
use counterflow::jit::Compiler;
use counterflow::{Shape, gpus, schedules};

/// New communicators that each launch once.
const FIRST: u32 = 40;

#[test]
#[ignore = "needs UB_TIMEOUT=1 from the start of its process: .ci/hardware runs it so"]
fn copies_that_wait_for_a_rank_that_never_launches_name_it() {
    if here().is_none() {
        return;
    }
    let Some(world) = world(2) else { return };
    let variant = case::variant(2, KINDS[0]);
    let shape = [Shape::new(512, 512, 512)];
    let case = Case::new(&schedules::ag_gemm_pull(), &variant, &shape, world.sharing);
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
    // The copies' trace, not that of the kernel that waits for what they would bring.
    let told = error.to_string();
    assert!(
        told.starts_with("rank 0 waited too long: copy_engine saw 0 of 1 on ready_x[1] ("),
        "{told}"
    );
    assert!(told.contains("ag_gemm_pull.rs:"), "{told}");
    for rank in &world.ranks {
        // The copies have drained, too, and the GPU's context lives.
        fine(rank.stream().synchronize());
        let later = rank.synchronize().expect_err("the communicator is dead");
        assert_eq!(later.to_string(), told, "rank {}", rank.rank());
    }
    let sharing = world.sharing;
    drop(world);
    let Some(world) = crate::gpus::world(2) else {
        return;
    };
    let case = Case::new(&schedules::ag_gemm_pull(), &variant, &shape, sharing);
    let fill = Fill::Uniform(5);
    let outcome = fine(case.attempt(&world.ranks, &compiler, fill, 0));
    case.compare(&outcome, 0, fill);
}

/// Rows with gaps between them are copied line by line.
#[test]
fn rows_that_lie_apart_are_copied_too() {
    for ranks in 2..=4 {
        let Some(world) = world(ranks) else { continue };
        let shape = |m| Shape::new(m, 264, 200).up_to(4097).ld("x", 328);
        let shapes = [1000, 4097, 3, 640].map(shape);
        let variant = case::variant(ranks, KINDS[0]);
        let case = Case::new(&schedules::ag_gemm_pull(), &variant, &shapes, world.sharing);
        let compiler = fine(Compiler::find());
        let plans: Vec<_> = case.plans.iter().chain(&case.plans).collect();
        let launched = fine(gpus::run(
            &world.ranks,
            &compiler,
            &case.pipeline,
            &case.series,
            plans.clone(),
            11,
        ));
        for (launch, plan) in plans.iter().enumerate() {
            let compared = fine(launched.run.compare(launch)).expect("a reference");
            assert!(compared.relative < 4e-3, "{}: {compared:?}", plan.shape);
        }
        println!(
            "  {:13} {:32} {:5} launches right, rows apart",
            case.kernel.name,
            world.told(),
            plans.len()
        );
    }
}

/// A stream gets its hardware queue with its first work: that may not be a launch's, in which others wait already. Where
/// streams did nothing before, the second setting stood after at most 22 right launches in each of four runs on two GPUs.
#[test]
fn first_launches_of_ranks_that_share_a_gpu_end() {
    if here().is_none() {
        return;
    }
    let _turn = turn();
    for set in [&[][..], &[(QUEUES, "8")]] {
        apart("copies::first_launches_in_this_setting", set);
    }
}

#[test]
#[ignore = "a child process of first_launches_of_ranks_that_share_a_gpu_end, which sets its variables"]
fn first_launches_in_this_setting() {
    let chosen = std::env::var_os(QUEUES).is_some();
    let Some(count) = here() else { return };
    // Of three ranks on a GPU, eight queues would be too few.
    let worlds = if chosen { 1 } else { 2 };
    for ranks in [count + 1, 2 * count + 1].into_iter().take(worlds) {
        let variant = case::variant(ranks, KINDS[0]);
        let shape = [Shape::new(1000, 264, 1096)];
        let compiler = fine(Compiler::find());
        let mut told = String::new();
        for again in 0..FIRST {
            let Some(world) = world(ranks) else { return };
            let case = Case::new(&schedules::ag_gemm_pull(), &variant, &shape, world.sharing);
            let fill = Fill::Uniform(u64::from(again));
            let outcome = fine(case.attempt(&world.ranks, &compiler, fill, 0));
            told = world.told();
            case.compare(&outcome, 0, fill);
        }
        println!("  ag_gemm_pull  {told:32} {FIRST:5} first launches right");
    }
}
