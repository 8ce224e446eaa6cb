//! Kernels that take turns in the same scratch: a launch of one may not write what the launch of another still reads.

use crate::case::{Case, Fill, variant};
use crate::fine;
use crate::gpus::{World, dawdle, loopback, world};
use crate::memory::{Heap, Memory, Words};
use crate::right::{JITTER, KINDS};
use counterflow::codegen::interp::Numbers;
use counterflow::jit::{Compiler, Probes};
use counterflow::launch::Loaded;
use counterflow::{Communicator, Error, Program, Shape, Variant, schedules};

/// Sums are exact, whoever adds first.
const FILL: Fill = Fill::Integers(7);

/// How many ranks: a kernel's text has them as a parameter.
const RANKS: [u32; 2] = [2, 4];

/// Two sizes of one kernel, and a kernel whose scratch every rank reads: rows of scratch lie elsewhere in each.
fn cases(world: &World, ranks: u32) -> Vec<Case> {
    let variant = variant(ranks, KINDS[1]);
    let case = |program, m, n, k| {
        let shape = [Shape::new(m, n, k)];
        Case::new(&program, &variant, &shape, world.sharing)
    };
    vec![
        case(schedules::gemm_rs(), 1000, 264, 200),
        case(schedules::gemm_rs(), 640, 520, 136),
        case(schedules::gemm_ar(), 768, 264, 72),
        case(schedules::gemm_ar(), 512, 392, 200),
    ]
}

/// A kernel and what it needs on a rank.
type Ready<'a> = (&'a Case, Heap<'a>, Loaded, Words);

/// Memory of the GPU may come only when nothing runs there. Where ranks share it, a peer that waits would run for ever:
/// all of it is there before anyone launches.
fn memory<'a>(
    rank: &Communicator,
    ready: &'a [Ready<'a>],
    order: &[usize],
) -> Result<Vec<Memory<'a>>, Error> {
    let one = |which: &usize| {
        let (_, heap, _, words) = &ready[*which];
        Memory::new(rank, heap, words)
    };
    let all = order.iter().map(one).collect();
    rank.synchronize()?;
    rank.barrier()?;
    all
}

fn launch(rank: &Communicator, ready: &Ready<'_>, memory: &Memory<'_>) -> Result<(), Error> {
    let (case, _, loaded, _) = ready;
    memory.before()?;
    loaded.launch(rank, &case.plans[0], &memory.tensors())?;
    memory.after()
}

/// Launches in turn without waiting between them, and every element of every output.
fn in_turn(
    rank: &Communicator,
    compiler: &Compiler,
    cases: &[Case],
    (launches, late): (usize, u64),
) -> Result<(), Error> {
    let mut ready = Vec::new();
    for case in cases {
        let heap = Heap::new(rank, &case.kernel, &[&case.plans[0]])?;
        let loaded = Loaded::load(rank, compiler, &case.pipeline, &case.series)?;
        let words = Words::new(&case.kernel, &case.plans[0], rank.rank(), 0, FILL);
        ready.push((case, heap, loaded, words));
    }
    let each: Vec<usize> = (0..ready.len()).collect();
    let mut right = Vec::new();
    for (one, memory) in ready.iter().zip(memory(rank, &ready, &each)?) {
        rank.barrier()?;
        launch(rank, one, &memory)?;
        rank.synchronize()?;
        right.push(memory.outputs(rank, &one.0.plans[0], 0)?);
    }
    let order: Vec<usize> = (0..launches)
        .map(|turn| (turn * turn + turn / 3) % ready.len())
        .collect();
    let held = memory(rank, &ready, &order)?;
    let mut numbers = Numbers::new(u64::from(rank.rank()));
    for (which, memory) in order.iter().zip(&held) {
        if numbers.below(8) == 0 {
            dawdle(&mut numbers, late);
        }
        launch(rank, &ready[*which], memory)?;
    }
    rank.synchronize()?;
    rank.barrier()?;
    for (turn, (which, memory)) in order.iter().zip(&held).enumerate() {
        let case = &cases[*which];
        let outputs = memory.outputs(rank, &case.plans[0], 0)?;
        for (output, right) in outputs.iter().zip(&right[*which]) {
            assert!(
                output.values == right.values,
                "launch {turn}, of {}, differs on rank {}",
                case.kernel.name,
                rank.rank()
            );
        }
    }
    Ok(())
}

/// Their kernels, for what compiles them ahead.
pub fn kernels() -> impl Iterator<Item = (Probes, Program, Variant)> {
    let all = [schedules::gemm_rs, schedules::gemm_ar];
    let probes = [Probes::default(), JITTER];
    let each = probes
        .into_iter()
        .flat_map(move |probes| all.map(|schedule| (probes, schedule)));
    each.map(|(probes, schedule)| (probes, schedule(), variant(RANKS[0], KINDS[1])))
}

fn run(world: Option<World>, ranks: u32, probes: Probes, launches: (usize, u64)) {
    let Some(world) = world else { return };
    let cases = cases(&world, ranks);
    let compiler = fine(Compiler::find()).with_probes(probes);
    fine(Communicator::each(&world.ranks, |rank| {
        in_turn(rank, &compiler, &cases, launches)
    }));
    println!("  four kernels in one scratch: {}", world.told());
}

#[test]
fn kernels_take_turns_in_the_same_scratch() {
    for ranks in RANKS {
        run(world(ranks), ranks, Probes::default(), (300, 2000));
        run(loopback(ranks), ranks, Probes::default(), (300, 2000));
    }
}

#[test]
fn kernels_take_turns_in_the_same_scratch_whoever_is_late() {
    let ranks = RANKS[1];
    run(world(ranks), ranks, JITTER, (150, 2000));
    run(loopback(ranks), ranks, JITTER, (150, 2000));
}
