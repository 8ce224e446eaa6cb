//! How a wait for what never comes ends: kernels drain, every rank gets the first cause, and the GPUs go on.

use crate::case::{self, Case, Fill};
use crate::fine;
use crate::gpus::{World, here, loopback, world};
use crate::memory::{Heap, Memory, Words};
use crate::right::KINDS;
use counterflow::jit::Compiler;
use counterflow::launch::Loaded;
use counterflow::{Communicator, Error, Program, Shape, gpus, schedules};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// How long a rank may wait once another has ended.
const TOLD: Duration = Duration::from_secs(1);

/// Two ranks on a GPU each, where there are two, and on one.
fn ways() -> Vec<fn(u32) -> Option<World>> {
    match here() {
        None => Vec::new(),
        Some(1) => vec![loopback],
        Some(_) => vec![world, loopback],
    }
}

fn of(world: &World, schedule: fn() -> Program) -> Case {
    let variant = case::variant(2, KINDS[0]);
    // Many tiles a CTA: much is left to drain when the first wait gives up.
    let shape = [Shape::new(4096, 2048, 512)];
    Case::new(&schedule(), &variant, &shape, world.sharing)
}

/// A new communicator in the same process gives right results.
fn again(way: fn(u32) -> Option<World>, schedule: fn() -> Program) {
    let Some(world) = way(2) else { return };
    let variant = case::variant(2, KINDS[0]);
    let shapes = [1000, 512].map(|m| Shape::new(m, 264, 512).up_to(1000));
    let case = Case::new(&schedule(), &variant, &shapes, world.sharing);
    let fill = Fill::Uniform(3);
    let outcome = fine(case.attempt(&world.ranks, &fine(Compiler::find()), fill, 0));
    for launch in 0..shapes.len() {
        case.compare(&outcome, launch, fill);
    }
}

#[test]
#[ignore = "needs UB_TIMEOUT=1 from the start of its process: .ci/hardware runs it so"]
fn a_rank_that_never_launches_is_named() {
    let all = [
        schedules::ag_gemm,
        schedules::gemm_rs,
        schedules::gemm_ar,
        schedules::ag_gemm_ring,
    ];
    for way in ways() {
        for schedule in all {
            let Some(world) = way(2) else { return };
            let case = of(&world, schedule);
            let plan = &case.plans[0];
            let compiler = fine(Compiler::find());
            let start = Instant::now();
            let (pipeline, series) = (&case.pipeline, &case.series);
            let ended = gpus::run_only(&world.ranks, &compiler, pipeline, series, plan, 0);
            let error = ended.expect_err("stalled");
            let (told, name) = (error.to_string(), &case.kernel.name);
            println!("  {told}, after {:.1} s", start.elapsed().as_secs_f64());
            assert_eq!(error.kind(), "stalled", "{told}");
            assert!(told.starts_with("rank 0 waited too long: "), "{told}");
            assert!(told.contains(&format!(" in {name} saw ")), "{told}");
            assert!(told.contains(&format!("{name}.rs:")), "{told}");
            for rank in &world.ranks {
                // The kernel has left its GPU, whose context lives: nothing but the communicator says no.
                fine(rank.stream().synchronize());
                let error = rank.synchronize().expect_err("the communicator is dead");
                assert_eq!(error.to_string(), told, "rank {}", rank.rank());
                let error = rank.barrier().expect_err("the communicator is dead");
                assert_eq!(error.to_string(), told, "rank {}", rank.rank());
            }
            drop(world);
            again(way, schedule);
        }
    }
}

/// How rank 1 ends while rank 0 waits for it.
#[derive(Clone, Copy, Debug)]
enum Ends {
    Fails,
    Panics,
    Refuses,
    Aborts,
}

/// What rank 0 got, how long after rank 1 ended.
fn told(world: &World, case: &Case, ends: Ends, in_a_meeting: bool) -> (Error, Duration) {
    let compiler = fine(Compiler::find());
    let (plan, fill) = (&case.plans[0], Fill::Uniform(1));
    let start = Mutex::new(None);
    let got = Mutex::new(None);
    let each = |rank: &Communicator| {
        let heap = Heap::new(rank, &case.kernel, &[plan])?;
        let loaded = Loaded::load(rank, &compiler, &case.pipeline, &case.series)?;
        let words = Words::new(&case.kernel, plan, rank.rank(), 0, fill);
        let memory = Memory::new(rank, &heap, &words)?;
        rank.synchronize()?;
        rank.barrier()?;
        if rank.rank() == 0 {
            let waits = if in_a_meeting {
                rank.barrier()
            } else {
                let launched = loaded.launch(rank, plan, &memory.tensors());
                launched.and_then(|()| rank.synchronize())
            };
            *got.lock().expect("no panic") = Some((waits.expect_err("told"), Instant::now()));
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(200));
        *start.lock().expect("no panic") = Some(Instant::now());
        match ends {
            Ends::Fails => Err(Error::NotYet {
                what: "rank 1's work".into(),
                help: "wait".into(),
            }),
            Ends::Panics => panic!("rank 1 fails on purpose"),
            Ends::Refuses => {
                let error = loaded.launch(rank, plan, &counterflow::launch::Tensors::new());
                println!("  refused: {}", error.expect_err("no tensors"));
                Ok(())
            }
            Ends::Aborts => {
                rank.abort("the request was cancelled");
                Ok(())
            }
        }
    };
    let ended = catch_unwind(AssertUnwindSafe(|| Communicator::each(&world.ranks, each)));
    assert_eq!(ended.is_err(), matches!(ends, Ends::Panics), "{ends:?}");
    let (error, at) = got.into_inner().expect("whole").expect("rank 0 was told");
    let start = start.into_inner().expect("whole").expect("rank 1 ended");
    (error, at.saturating_duration_since(start))
}

#[test]
fn a_rank_that_ends_early_is_told_to_the_others_within_a_second() {
    let all = [
        (Ends::Fails, "rank 1 ended early: not yet: rank 1's work"),
        (
            Ends::Panics,
            "rank 1 ended early: it panicked: rank 1 fails on purpose",
        ),
        (
            Ends::Refuses,
            "rank 1 ended early: its part of `each` ended (it was refused ag_gemm: ",
        ),
        (
            Ends::Aborts,
            "rank 1 ended the communicator: the request was cancelled",
        ),
    ];
    for way in ways() {
        for (ends, wanted) in all {
            for in_a_meeting in [false, true] {
                let Some(world) = way(2) else { return };
                let case = of(&world, schedules::ag_gemm);
                let (error, took) = told(&world, &case, ends, in_a_meeting);
                let told = error.to_string();
                println!("  {told}, after {:.0} ms", took.as_secs_f64() * 1e3);
                assert_eq!(error.kind(), "aborted", "{told}");
                assert!(told.starts_with(wanted), "{told}");
                assert!(took < TOLD, "{ends:?}: {took:?}");
            }
        }
        again(way, schedules::ag_gemm);
    }
}

#[test]
fn a_communicator_that_is_dropped_is_told_to_who_waits_for_it() {
    for way in ways() {
        let Some(mut world) = way(2) else { return };
        let case = of(&world, schedules::gemm_rs);
        let (plan, compiler) = (&case.plans[0], fine(Compiler::find()));
        let ready = fine(Communicator::each(&world.ranks, |rank| {
            let heap = Heap::new(rank, &case.kernel, &[plan])?;
            let loaded = Loaded::load(rank, &compiler, &case.pipeline, &case.series)?;
            let words = Words::new(&case.kernel, plan, rank.rank(), 0, Fill::Uniform(1));
            rank.synchronize()?;
            Ok((heap, loaded, words))
        }));
        let gone = world.ranks.pop().expect("two ranks");
        let rank = &world.ranks[0];
        let (heap, loaded, words) = &ready[0];
        let memory = fine(Memory::new(rank, heap, words));
        fine(loaded.launch(rank, plan, &memory.tensors()));
        let start = Instant::now();
        drop(gone);
        let error = rank.synchronize().expect_err("told");
        let told = error.to_string();
        println!("  {told}, after {:?}", start.elapsed());
        assert!(
            told.starts_with("rank 1 ended early: its communicator was dropped"),
            "{told}"
        );
        assert!(start.elapsed() < TOLD, "{told}");
        drop(memory);
        drop((ready, world));
        again(way, schedules::gemm_rs);
    }
}
