//! Several communicators on the same GPUs: kernels that do not fit together take turns, and a circle is refused.

use crate::case::{self, Case, Fill};
use crate::fine;
use crate::gpus::{World, both_ways, here, world};
use crate::memory::{Heap, Memory, Words};
use crate::right::KINDS;
use counterflow::codegen::interp::Numbers;
use counterflow::jit::Compiler;
use counterflow::launch::Loaded;
use counterflow::{Communicator, Error, Shape, schedules};
use std::sync::Barrier;
use std::time::{Duration, Instant};

/// Every CTA that a rank may have, so that two launches do not fit.
fn case(world: &World) -> Case {
    let shape = [Shape::new(8192, 4096, 512)];
    let variant = case::variant(2, KINDS[0]);
    let case = Case::new(&schedules::ag_gemm(), &variant, &shape, world.sharing);
    let (gemm, comm) = (case.plans[0].grid.gemm, case.plans[0].grid.comm);
    assert!(
        (gemm + comm) * world.sharing > 66,
        "two of these fit on a GPU"
    );
    case
}

/// Another communicator with the same GPU for each rank.
fn beside(ranks: &[Communicator]) -> Vec<Communicator> {
    let gpus: Vec<u32> = ranks.iter().map(|rank| rank.gpu().ordinal()).collect();
    fine(Communicator::on(&gpus, None))
}

/// A kernel and its memory on a rank.
type Ready<'a> = (Heap<'a>, Loaded, Words);

fn ready<'a>(rank: &Communicator, compiler: &Compiler, case: &'a Case) -> Result<Ready<'a>, Error> {
    let plan = &case.plans[0];
    let heap = Heap::new(rank, &case.kernel, &[plan])?;
    let loaded = Loaded::load(rank, compiler, &case.pipeline, &case.series)?;
    let words = Words::new(&case.kernel, plan, rank.rank(), 0, Fill::Integers(2));
    Ok((heap, loaded, words))
}

#[test]
fn launches_of_two_communicators_take_turns() {
    for world in both_ways(2) {
        let (compiler, case) = (fine(Compiler::find()), case(&world));
        let others = beside(&world.ranks);
        let start = Instant::now();
        fine(Communicator::each(&world.ranks, |rank| {
            let both = [rank, &others[rank.rank() as usize]];
            let ready = [
                ready(both[0], &compiler, &case)?,
                ready(both[1], &compiler, &case)?,
            ];
            let memory = |which: usize| {
                let (heap, _, words) = &ready[which];
                Memory::new(both[which], heap, words)
            };
            let memory = [memory(0)?, memory(1)?];
            let mut numbers = Numbers::new(u64::from(rank.rank()) + 1);
            let plan = &case.plans[0];
            for which in 0..2 {
                memory[which].before()?;
                both[which].synchronize()?;
                both[which].barrier()?;
            }
            for turn in 0..200 {
                // A rank comes late between the two, and the other rank's launches are both there.
                crate::gpus::dawdle(&mut numbers, 500);
                let which = turn % 2;
                let (_, loaded, _) = &ready[which];
                loaded.launch(both[which], plan, &memory[which].tensors())?;
            }
            for which in 0..2 {
                memory[which].after()?;
                both[which].synchronize()?;
            }
            let outputs = [
                memory[0].outputs(both[0], plan, 0)?,
                memory[1].outputs(both[1], plan, 0)?,
            ];
            for (one, other) in outputs[0].iter().zip(&outputs[1]) {
                assert!(one.values == other.values, "two communicators differ");
            }
            rank.barrier()
        }));
        println!(
            "  two communicators took turns: {} in {:?}",
            world.told(),
            start.elapsed()
        );
    }
}

#[test]
fn two_orders_of_two_communicators_are_refused() {
    if here().is_none_or(|gpus| gpus < 2) {
        crate::nvidia::skipped("two orders need two GPUs");
        return;
    }
    let Some(world) = world(2) else { return };
    let (compiler, case) = (fine(Compiler::find()), case(&world));
    let others = beside(&world.ranks);
    let met = Barrier::new(2);
    let told = fine(Communicator::each(&world.ranks, |rank| {
        let both = [rank, &others[rank.rank() as usize]];
        let ready = [
            ready(both[0], &compiler, &case)?,
            ready(both[1], &compiler, &case)?,
        ];
        let (plan, second) = (&case.plans[0], rank.rank() as usize);
        let memory = [
            Memory::new(both[0], &ready[0].0, &ready[0].2)?,
            Memory::new(both[1], &ready[1].0, &ready[1].2)?,
        ];
        let launch = |which: usize| {
            ready[which]
                .1
                .launch(both[which], plan, &memory[which].tensors())
        };
        rank.synchronize()?;
        let start = Instant::now();
        if second == 0 {
            launch(0)?;
            launch(1)?;
        }
        met.wait();
        let mut refused = None;
        if second == 1 {
            launch(1)?;
            refused = launch(0)
                .err()
                .map(|error| (error.kind(), error.to_string()));
        }
        met.wait();
        let ended = both[0].synchronize().map_err(|error| error.kind());
        let other = both[1].synchronize().map_err(|error| error.kind());
        Ok((refused, ended, other, start.elapsed()))
    }));
    let (refused, ..) = &told[1];
    let (kind, text) = refused.as_ref().expect("the second order is refused");
    assert_eq!(*kind, "mismatch");
    assert!(
        text.contains("on GPU 1 launch 0") && text.contains("on GPU 0"),
        "{text}"
    );
    for (_, ended, other, took) in &told {
        assert_eq!(
            *ended,
            Err("mismatch"),
            "every rank of the refused one is told"
        );
        assert_eq!(*other, Ok(()), "the other communicator goes on");
        assert!(*took < Duration::from_secs(2), "{took:?}");
    }
}
