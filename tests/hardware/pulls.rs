//! Rows that travel between ranks in every way there is, launch after launch without waiting between them, while callers
//! fill `x` again before each: a rank that reads a peer's rows must find those of this launch, not what the last one left.
//!
//! M alternates, so that rows lie elsewhere in every launch, and the inputs do. Every element of every launch is compared:
//! the first of each with the f64 reference, the others with it bit for bit, as a product adds in a fixed order.

use crate::case::{Case, Fill};
use crate::fine;
use crate::gpus::{self, World, dawdle};
use crate::memory::{Heap, Memory, Words, numbers};
use crate::parallel::in_parallel;
use crate::right::JITTER;
use crate::ways::{self, Mover, Way, gather};
use counterflow::codegen::interp::{self, Numbers, Outcome, Output, Policy};
use counterflow::codegen::program::TensorId;
use counterflow::jit::{Compiler, Probes};
use counterflow::launch::Loaded;
use counterflow::{Communicator, Error, Program, Shape, Variant};

/// What a rank's tensors hold after a launch.
type Held = Vec<(TensorId, Vec<u8>)>;

const ROWS: [u32; 2] = [1111, 741];
/// N and K.
const SIDE: u32 = 1024;
/// Launches that differ: two M, two sets of inputs.
const DIFFERENT: usize = 4;
/// Launches in a row before their results are looked at.
const ROW: usize = 40;
const NONE: Probes = Probes {
    jitter: None,
    trace: false,
};
const FILL: Fill = Fill::Uniform(7);

fn schedule(mover: Mover, way: Way) -> Program {
    gather(mover, way, 4)
}

/// All of them with pauses, and the pull without, for what compiles them ahead.
pub fn kernels() -> impl Iterator<Item = (Probes, Program, Variant)> {
    let kernel = |probes, (mover, way)| (probes, schedule(mover, way), Variant::new(2));
    let with_pauses = ways::all().map(move |of| kernel(JITTER, of));
    with_pauses.chain([kernel(NONE, (Mover::Ctas, Way::Pull))])
}

/// So many launches; what the first ones left.
fn on_rank(
    case: &Case,
    rank: &Communicator,
    compiler: &Compiler,
    (launches, late): (usize, u64),
) -> Result<Vec<Held>, Error> {
    let plans = case.plans.iter().collect::<Vec<_>>();
    let heap = Heap::new(rank, &case.kernel, &plans)?;
    let loaded =
        Loaded::load(rank, compiler, &case.pipeline, &case.series)?.pdl_after_foreign_kernels();
    let words: Vec<Words> = (0..DIFFERENT)
        .map(|launch| {
            let plan = plans[launch % ROWS.len()];
            Words::new(&case.kernel, plan, rank.rank(), launch, FILL)
        })
        .collect();
    let mut numbers = Numbers::new(u64::from(rank.rank()));
    let mut first: Vec<Held> = Vec::new();
    for start in (0..launches).step_by(ROW) {
        let row = start..launches.min(start + ROW);
        let memory = row
            .clone()
            .map(|launch| Memory::new(rank, &heap, &words[launch % DIFFERENT]))
            .collect::<Result<Vec<_>, _>>()?;
        rank.synchronize()?;
        rank.barrier()?;
        for (launch, memory) in row.clone().zip(&memory) {
            if numbers.below(4) == 0 {
                dawdle(&mut numbers, late);
            }
            memory.before()?;
            loaded.launch(rank, plans[launch % ROWS.len()], &memory.tensors())?;
            memory.after()?;
        }
        rank.synchronize()?;
        for (launch, memory) in row.zip(&memory) {
            let held = memory.raw()?;
            match first.get(launch % DIFFERENT) {
                None => first.push(held),
                Some(known) => same(case, rank.rank(), launch, known, &held),
            }
        }
        rank.barrier()?;
    }
    Ok(first)
}

/// The bytes that a rank holds of a tensor in a launch.
fn bytes(case: &Case, rank: u32, launch: usize, tensor: TensorId) -> usize {
    let (buffer, geometry) = (
        &case.kernel.buffers[tensor.index()],
        &case.plans[launch % ROWS.len()].geometry,
    );
    let elements = geometry.held(buffer, rank).len() * geometry.size(buffer.columns);
    (elements * buffer.dtype.bytes()) as usize
}

/// The same bits as in the first launch of its kind.
fn same(case: &Case, rank: u32, launch: usize, known: &Held, held: &Held) {
    for ((tensor, known), (_, held)) in known.iter().zip(held) {
        let all = bytes(case, rank, launch, *tensor);
        // Nearly all are the same: byte by byte only where they are not.
        if known[..all] == held[..all] {
            continue;
        }
        let off = (0..all).find(|at| known[*at] != held[*at]);
        if let Some(off) = off {
            let buffer = &case.kernel.buffers[tensor.index()];
            let columns = case.plans[launch % ROWS.len()]
                .geometry
                .size(buffer.columns) as usize;
            let off = off / buffer.dtype.bytes() as usize;
            let [is, was] = [held, known].map(|bytes| numbers(bytes, buffer.dtype)[off]);
            panic!(
                "{}: {}[{}, {}] on rank {rank} in launch {launch} is {is}, but {was} before",
                case.kernel.name,
                buffer.name,
                off / columns,
                off % columns
            );
        }
    }
}

/// The first launch of each kind, with the reference.
fn compare(case: &Case, held: &[Vec<Held>], launch: usize) {
    let plan = &case.plans[launch % ROWS.len()];
    let mut outputs = Vec::new();
    for (rank, launches) in (0..).zip(held) {
        for (tensor, held) in &launches[launch] {
            let buffer = &case.kernel.buffers[tensor.index()];
            let all = bytes(case, rank, launch, *tensor);
            outputs.push(Output {
                launch,
                rank,
                tensor: *tensor,
                rows: plan.geometry.held(buffer, rank),
                values: numbers(&held[..all], buffer.dtype),
            });
        }
    }
    let outcome = Outcome {
        outputs,
        steps: 0,
        policy: Policy::of_seed(0, 1, 1),
    };
    let name = &case.kernel.name;
    let expected = interp::reference(&case.kernel, plan, launch, FILL.inputs())
        .unwrap_or_else(|error| panic!("{name}: {error}"));
    case.agrees(FILL, &outcome, &expected)
        .unwrap_or_else(|off| panic!("{name} launch {launch}: {off}"));
}

fn run(world: World, (mover, way): (Mover, Way), probes: Probes, launches: usize) {
    let ranks = world.ranks.len() as u32;
    let shapes = ROWS.map(|m| Shape::new(m, SIDE, SIDE));
    let program = schedule(mover, way);
    let case = Case::new(&program, &Variant::new(ranks), &shapes, world.sharing);
    let compiler = fine(Compiler::find()).with_probes(probes);
    let late = if probes.jitter.is_some() { 300 } else { 0 };
    let each = |rank: &Communicator| on_rank(&case, rank, &compiler, (launches, late));
    let held = fine(Communicator::each(&world.ranks, each));
    let told = world.told();
    drop(world);
    in_parallel(DIFFERENT, |launch| compare(&case, &held, launch));
    let with = if probes.jitter.is_some() {
        ", jitter"
    } else {
        ""
    };
    println!(
        "  {:24} {:32} {launches:5} launches right, filled between",
        program.name,
        format!("{told}{with}")
    );
}

/// On one GPU, and on all.
fn a_thousand(ranks: u32, probes: Probes) {
    for world in gpus::both_ways(ranks) {
        run(world, (Mover::Ctas, Way::Pull), probes, 1000);
    }
}

macro_rules! a_thousand_pulls {
    ($($name:ident: $ranks:expr),*) => {$(
        mod $name {
            #[test]
            fn plain() {
                super::a_thousand($ranks, super::NONE);
            }

            #[test]
            fn jitter() {
                super::a_thousand($ranks, super::JITTER);
            }
        }
    )*};
}
a_thousand_pulls!(world_2: 2, world_3: 3, world_4: 4, world_8: 8);

/// With pauses, in a world that has a rank between any two, and in one that has not.
fn all_ways(mover: Mover) {
    for (_, way) in ways::all().filter(|(of, _)| *of == mover) {
        for ranks in [3, 4] {
            let Some(world) = gpus::world(ranks) else {
                continue;
            };
            run(world, (mover, way), JITTER, ROW);
        }
    }
}

#[test]
fn all_ways_by_ctas() {
    all_ways(Mover::Ctas);
}

#[test]
fn all_ways_by_copy_engines() {
    all_ways(Mover::Engine);
}
