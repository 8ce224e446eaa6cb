//! What a trial's end leaves of the communicator that builds the op, on emulated ranks.

use super::faults::{self, Fault};
use super::memory::Memory;
use super::{Limits, OpBuilder, Proven};
use crate::communicator::Communicator;
use crate::emulated::{self, Machine};
use crate::error::Error;
use crate::metrics::Why;
use crate::op::builder::proofs::Measured;
use crate::op::{ByName, Op};
use crate::rendezvous::Threads;
use crate::rotation;
use crate::schedules::{gather_of_choices, product_of_choices};
use crate::tuning::Tuning;
use counterflow_codegen::program::TensorId;
use half::bf16;
use std::cell::Cell;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

const SIZE: [usize; 3] = [128, 128, 64];

fn each<T: Send>(part: impl Fn(&Communicator) -> Result<T, Error> + Sync) -> Vec<T> {
    let ranks = Communicator::emulated(2).expect("ranks");
    let done = Communicator::each(&ranks, part);
    done.unwrap_or_else(|error| panic!("{error}"))
}

fn built(rank: &Communicator) -> Result<Op<ByName>, Error> {
    let [m, n, k] = SIZE;
    let program = gather_of_choices(false);
    rank.op(&program)
        .tuning(Tuning::Quick)
        .up_to(m, n, k)
        .build()
}

/// A launch of it is right.
fn must_be_right(rank: &Communicator, op: &Op<ByName>) -> Result<(), Error> {
    let [m, n, k] = SIZE;
    let x = rank.allocate::<bf16>("x", op.needs("x")?.shape)?;
    let (w, mut y) = (rank.zeros::<bf16>([n, k])?, rank.zeros::<bf16>([m, n])?);
    x.write(&vec![bf16::ONE; x.len()])?;
    w.write(&vec![bf16::ONE; n * k])?;
    let launch = op.on(rank).tensor("x", &x).tensor("w", &w);
    launch.tensor("y", &mut y).launch()?.wait()?;
    assert_eq!(y.read()?, vec![bf16::from_f32(k as f32); m * n]);
    rank.barrier()
}

/// An op whose trial has that fault on rank 1, and what it says of that.
fn after(fault: Fault, rank: &Communicator) -> Result<String, Error> {
    rank.reserve(8 << 20)?;
    faults::give_up_soon(fault == Fault::Silent);
    faults::make((rank.rank() == 1).then_some(fault));
    let op = built(rank);
    faults::make(None);
    let op = op?;
    assert_eq!(rank.op_counts()[0].why, Why::Model);
    must_be_right(rank, &op)?;
    Ok(op.unmeasured(1).unwrap_or_default().to_owned())
}

#[test]
fn a_candidate_that_stalls_ends_its_trial_on_all_ranks_and_nothing_else() {
    let told = each(|rank| {
        let told = after(Fault::Silent, rank)?;
        // Who asks for it by name tries again, and finds nothing in the way.
        faults::give_up_soon(false);
        let op = built(rank)?;
        assert_eq!(op.unmeasured(1), None);
        must_be_right(rank, &op)?;
        Ok(told)
    });
    assert_eq!(told[0], told[1]);
    let gave_up = "the trial of candidates gave up: ";
    assert!(
        told[0].starts_with(gave_up) && told[0].contains("wait"),
        "{told:?}"
    );
}

/// Ranks that are processes agree over their connections, and map each other's memory.
#[test]
fn a_trial_of_processes_ends_alone_too() {
    let told = std::thread::scope(|scope| {
        let started = Threads::of(2).into_iter().map(|seat| {
            scope.spawn(move || {
                let rank = Communicator::join_emulated(&seat)?;
                let told = after(Fault::Silent, &rank)?;
                faults::give_up_soon(false);
                assert_eq!(built(&rank)?.unmeasured(1), None);
                rank.barrier()?;
                Ok::<_, Error>(told)
            })
        });
        let started: Vec<_> = started.collect();
        let done = started
            .into_iter()
            .map(|thread| thread.join().expect("no panic"));
        done.collect::<Result<Vec<_>, _>>()
    });
    let told = told.unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(told[0], told[1]);
    assert!(told[0].contains("wait"), "{told:?}");
}

#[test]
fn a_rank_that_fails_in_a_trial_is_told_at_once_to_those_who_wait_there() {
    let start = Instant::now();
    let told = each(|rank| after(Fault::Fails, rank));
    // No limit of a wait came to its end: an emulated rank's is that of the communicator.
    assert!(start.elapsed() < Duration::from_secs(100));
    let why = "the trial of candidates gave up: a trial that is to fail";
    assert_eq!(told, [why, why]);
}

/// All ranks are told why the rank that refused the candidates did.
#[test]
fn who_left_candidates_out_says_why() {
    let told = each(|rank| after(Fault::Refuses, rank));
    let why = "the trial of candidates gave up: fewer than two candidates load and fit into the heap: a trial that is to fail";
    assert_eq!(told, [why, why]);
}

#[test]
fn a_trial_without_memory_is_none() {
    let machine = Machine::new(2, 0, u64::MAX);
    let gpus = (0..2).map(|gpu| emulated::Gpu::of(&machine, gpu).into());
    let ranks = Communicator::of(gpus.collect(), Some(2 << 20), Duration::from_secs(60));
    let done = Communicator::each(&ranks.expect("ranks"), |rank| {
        let program = gather_of_choices(false);
        rank.reserve(2 << 20)?;
        // `x` alone has 4 MiB, in a heap of its own that is as long.
        let builder = rank.op(&program).tuning(Tuning::Quick);
        let op = builder.up_to(8192, 256, 256).build()?;
        let why = op.unmeasured(1).unwrap_or_default().to_owned();
        assert_eq!(rank.op_counts()[0].why, Why::Model);
        rank.barrier()?;
        Ok(why)
    });
    for told in done.unwrap_or_else(|error| panic!("{error}")) {
        assert!(
            told.starts_with("the trial of candidates gave up: "),
            "{told}"
        );
    }
}

/// The memory of a trial is its own.
#[test]
fn a_trial_takes_nothing_of_the_heap() {
    each(|rank| {
        let [m, n, k] = SIZE;
        let program = gather_of_choices(false);
        let memory = rank.op(&program).tuning(Tuning::Quick).up_to(m, n, k);
        let memory = memory.workspace()?;
        assert!(memory.tuning > (2 * m * k + 2 * n * k + 2 * m * n) as u64);
        rank.reserve(rank.control_bytes() + memory.heap)?;
        let op = built(rank)?;
        assert_eq!(op.unmeasured(1), None);
        assert!(rank.heap_use().peak <= memory.heap);
        rank.barrier()
    });
}

/// A rank alone, and its machine.
fn alone(part: impl Fn(&Communicator, &Arc<Machine>) -> Result<(), Error> + Sync) {
    let machine = Machine::new(1, 0, u64::MAX);
    let gpu = emulated::Gpu::of(&machine, 0).into();
    let ranks = Communicator::of(vec![gpu], Some(2 << 20), Duration::from_secs(60));
    let done = Communicator::each(&ranks.expect("a rank"), |rank| part(rank, &machine));
    done.unwrap_or_else(|error| panic!("{error}"));
}

/// Of 44 sets, of five, and of one that alone has more than the cache.
const PRODUCTS: [([usize; 3], u64); 3] = [([64; 3], 44), ([128, 128, 512], 5), ([16, 64, 8192], 1)];

fn bytes_of_set([m, n, k]: [usize; 3]) -> u64 {
    2 * (m * k + n * k + m * n) as u64
}

#[test]
fn what_a_trial_takes_was_told_and_is_free_when_the_op_is_built() {
    for (size, sets) in PRODUCTS {
        let each = bytes_of_set(size);
        let most = [false, true].map(|full| {
            let most_taken = Mutex::new(0);
            alone(|rank, machine| {
                let [m, n, k] = size;
                let program = product_of_choices();
                let builder = || rank.op(&program).tuning(Tuning::Quick).up_to(m, n, k);
                let told = builder().workspace()?;
                assert!(told.tuning >= sets * each, "{told:?}");
                let taken = || {
                    rank.synchronize()?;
                    Ok::<_, Error>(machine.taken_at_most())
                };
                // The first op of a rank makes what all have.
                let _first = builder().tuning(Tuning::Off).build()?;
                let [before, _] = taken()?;
                faults::make(full.then_some(Fault::Full));
                let op = builder().build();
                faults::make(None);
                let op = op?;
                assert_eq!(op.unmeasured(1), None, "one set is enough to measure");
                let [after, most] = taken()?;
                assert!(most - before <= told.tuning + told.own, "{told:?}");
                // The same op, whose winner is known by now.
                let _again = builder().build()?;
                let [again, _] = taken()?;
                assert!(after - before < again - after + each, "left by the trial");
                *most_taken.lock().expect("nobody failed") = most - before;
                Ok(())
            });
            most_taken.into_inner().expect("nobody failed")
        });
        let [all, full] = most;
        assert!(all >= sets * each, "{size:?}: {all}");
        assert!(
            full >= each && full + (sets - 1) * each < all + each,
            "{size:?}: {most:?}"
        );
    }
}

#[test]
fn more_than_the_cache_holds_is_touched_before_a_tensor_comes_again() {
    for (size, sets) in PRODUCTS {
        alone(|rank, machine| {
            let [m, n, k] = size;
            let program = product_of_choices();
            let builder: OpBuilder<'_, _> = rank.op(&program).up_to(m, n, k);
            let (each, l2) = (bytes_of_set(size), rank.gpu().l2());
            assert_eq!(rotation::sets(each, l2), sets);
            let turns = |candidates: &[Proven]| {
                let [before, _] = machine.taken_at_most();
                let mut memory = Memory::new(rank, candidates, rank.timeout())?;
                memory.adds_sets(rank)?;
                assert_eq!(machine.taken_at_most()[0] - before, sets * each);
                let mut places = Vec::new();
                // Whichever candidate comes next.
                for turn in 0..2 * sets as usize {
                    let candidate = &candidates[turn % candidates.len()];
                    let tensors = memory.tensors(candidate).next().expect("a stage");
                    let place = |id| tensors.place(TensorId(id)).expect("a tensor");
                    places.push([0, 1, 2].map(place));
                }
                let (first, again) = places.split_at(sets as usize);
                assert_eq!(first, again, "in turns");
                for tensor in 0..3 {
                    let mut starts: Vec<_> = first.iter().map(|set| set[tensor].own).collect();
                    starts.sort_unstable();
                    starts.dedup();
                    assert_eq!(starts.len() as u64, sets, "memory of its own");
                }
                let touched: u64 = first[1..].iter().flatten().map(|place| place.bytes).sum();
                assert!(touched > l2 || each > l2);
                drop(memory);
                rank.synchronize()?;
                assert_eq!(machine.taken_at_most()[0], before);
                Ok::<_, Error>(())
            };
            let seen = Cell::new(false);
            builder.proofs(&|bucket, _| {
                let contest = builder.contest(bucket, Tuning::Quick)?;
                turns(&contest.expect("candidates").0)?;
                seen.set(true);
                Ok(Measured::Stays)
            })?;
            assert!(seen.get());
            Ok(())
        });
    }
}

/// A kernel of another communicator whose peer stands behind a candidate waits for the trial to give up.
#[test]
fn a_trial_gives_up_long_before_kernels_that_it_keeps_waiting() {
    for tuning in [Tuning::Quick, Tuning::Full] {
        for milliseconds in [1, 100, 1_000, 1_150, 4_000, 60_000] {
            let timeout = Duration::from_millis(milliseconds);
            let Limits { kernel, host } = Limits::within(tuning, timeout);
            assert!(kernel <= timeout / 4 && host <= timeout / 2, "{timeout:?}");
            assert!(kernel <= tuning.patience() && host >= kernel);
        }
    }
}

/// Rank 0's launch in another communicator waits for rank 1's, which comes after the op is built.
#[test]
fn a_trial_gives_up_beside_a_launch_of_another_communicator() {
    let told = each(|rank| {
        let [m, n, k] = SIZE;
        rank.reserve(8 << 20)?;
        let other = rank.split(0, 0)?;
        other.reserve(8 << 20)?;
        let program = gather_of_choices(false);
        let op = other.op(&program).tuning(Tuning::Off).up_to(m, n, k);
        let op = op.build()?;
        let x = other.allocate::<bf16>("x", op.needs("x")?.shape)?;
        let (w, mut y) = (other.zeros::<bf16>([n, k])?, other.zeros::<bf16>([m, n])?);
        let mut launch = || {
            let launch = op.on(&other).tensor("x", &x).tensor("w", &w);
            launch.tensor("y", &mut y).launch().map(drop)
        };
        faults::give_up_soon(true);
        if rank.rank() == 0 {
            launch()?;
        }
        let beside = built(rank)?;
        if rank.rank() == 1 {
            launch()?;
        }
        other.synchronize()?;
        other.barrier()?;
        // Beside a communicator that does nothing, who asks for it measures.
        assert_eq!(built(rank)?.unmeasured(1), None);
        rank.barrier()?;
        Ok(beside.unmeasured(1).unwrap_or_default().to_owned())
    });
    let why = "another communicator's launch on one of the GPUs does not end";
    assert_eq!(told, [why, why]);
}
