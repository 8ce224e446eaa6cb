//! A thousand launches in a row, without waiting between them: what a faster rank's next launch does to a slower one.
//!
//! M cycles through five values and the inputs through four sets. Counters, scratch and what peers address are shared
//! by all launches, as in use; parameters that peers write are filled before and kept after each launch by copies in
//! the order of the stream. Operands and outputs of one rank alone are fresh, and NaN before. So every element of every
//! launch is compared: the first of each M and set with the f64 reference, the others with it bit for bit, as these
//! schedules add in a fixed order. The one that does not is given integers. What this cannot see: what goes right only
//! because this machine is as fast as it is; the pauses are for that.

use crate::case::{Case, Fill, variant_of};
use crate::fine;
use crate::gpus::{self, dawdle};
use crate::memory::{Heap, Memory, Words, numbers, slots_of};
use crate::parallel::in_parallel;
use crate::right::{JITTER, KINDS};
use counterflow::codegen::interp::{self, Numbers, Outcome, Output, Policy};
use counterflow::codegen::program::TensorId;
use counterflow::jit::{Compiler, Probes};
use counterflow::launch::Loaded;
use counterflow::{Communicator, Error, Program, Shape};

type Schedule = fn() -> Program;
/// What a rank's tensors held after each launch.
type Held = Vec<Vec<(TensorId, Vec<u8>)>>;

const ROWS: [u32; 5] = [640, 1, 257, 1000, 129];
const SETS: usize = 4;

/// The plan and the inputs of a launch. With five M and four sets, twenty launches differ.
fn of_launch(launch: usize) -> (usize, usize) {
    (launch % ROWS.len(), launch % (ROWS.len() * SETS))
}

fn on_rank(
    case: &Case,
    rank: &Communicator,
    compiler: &Compiler,
    fill: Fill,
    (launches, late): (usize, u64),
) -> Result<Held, Error> {
    let plans = case.plans.iter().collect::<Vec<_>>();
    let plan = |launch| plans[of_launch(launch).0];
    let heap = Heap::new(rank, &case.kernel, &plans)?;
    let loaded =
        Loaded::load(rank, compiler, &case.pipeline, &case.series)?.pdl_after_foreign_kernels();
    let words = in_parallel(ROWS.len() * SETS, |launch| {
        Words::new(&case.kernel, plan(launch), rank.rank(), launch, fill)
    });
    let memory = (0..launches)
        .map(|launch| Memory::new(rank, &heap, &words[of_launch(launch).1]))
        .collect::<Result<Vec<_>, _>>()?;
    rank.synchronize()?;
    rank.barrier()?;
    let mut numbers = Numbers::new(u64::from(rank.rank()));
    for (launch, memory) in memory.iter().enumerate() {
        if numbers.below(16) == 0 {
            dawdle(&mut numbers, late);
        }
        memory.before()?;
        loaded.launch(rank, plan(launch), &memory.tensors())?;
        memory.after()?;
    }
    rank.synchronize()?;
    rank.barrier()?;
    memory.iter().map(Memory::raw).collect()
}

fn back_to_back(schedule: Schedule, probes: Probes, (launches, late): (usize, u64)) {
    let Some(count) = gpus::here() else { return };
    let worlds: &[u32] = if count < 4 { &[2, 4] } else { &[4] };
    for ranks in worlds.iter().copied() {
        let Some(world) = gpus::world(ranks) else {
            continue;
        };
        let program = schedule();
        let fill = if program.name == "gemm_rs_add" {
            Fill::Integers(3)
        } else {
            Fill::Uniform(3)
        };
        let shapes = ROWS.map(|m| Shape::new(m, 264, 200).up_to(1000));
        let case = Case::new(
            &program,
            &variant_of(&program, ranks, KINDS[0]),
            &shapes,
            world.sharing,
        );
        let compiler = fine(Compiler::find()).with_probes(probes);
        let each = |rank: &Communicator| on_rank(&case, rank, &compiler, fill, (launches, late));
        let held = fine(Communicator::each(&world.ranks, each));
        let told = world.told();
        drop(world);
        in_parallel(ROWS.len() * SETS, |first| {
            compare(&case, &held, first, fill)
        });
        let with = if probes.jitter.is_some() {
            ", jitter"
        } else {
            ""
        };
        println!(
            "  {:13} {:32} {launches:5} launches right, back to back",
            program.name,
            format!("{told}{with}")
        );
    }
}

/// Compares a launch with its reference, and all that repeat it with it.
fn compare(case: &Case, held: &[Held], first: usize, fill: Fill) {
    let (plan, set) = of_launch(first);
    let name = &case.kernel.name;
    let mut outputs = Vec::new();
    for (rank, launches) in held.iter().enumerate() {
        for (at, (tensor, bits)) in launches[first].iter().enumerate() {
            let buffer = &case.kernel.buffers[tensor.index()];
            let geometry = &case.plans[plan].geometry;
            let rows = geometry.held(buffer, rank as u32);
            let slots: Vec<_> = slots_of(&case.plans[plan], buffer, rank as u32).collect();
            for launch in (first..launches.len()).step_by(ROWS.len() * SETS) {
                let (_, again) = &launches[launch][at];
                assert!(
                    slots
                        .iter()
                        .all(|words| again[words.clone()] == bits[words.clone()]),
                    "{name}: launch {launch} on rank {rank} differs from launch {first} in {}",
                    buffer.name
                );
            }
            outputs.push(Output {
                launch: set,
                rank: rank as u32,
                tensor: *tensor,
                rows,
                values: (slots.into_iter())
                    .flat_map(|words| numbers(&bits[words], buffer.dtype))
                    .collect(),
            });
        }
    }
    let outcome = Outcome {
        outputs,
        steps: 0,
        policy: Policy::of_seed(0, 1, 1),
    };
    let expected = interp::reference(&case.kernel, &case.plans[plan], set, fill.inputs())
        .unwrap_or_else(|error| panic!("{name}: {error}"));
    case.agrees(fill, &outcome, &expected)
        .unwrap_or_else(|off| panic!("{name} launch {first}: {off}"));
}

fn thousand(schedule: Schedule) {
    back_to_back(schedule, Probes::default(), (1000, 0));
}

mod plain {
    crate::each_schedule!(super::thousand);
}

fn with_jitter(schedule: Schedule) {
    back_to_back(schedule, JITTER, (240, 300));
}

mod jitter {
    crate::each_schedule!(super::with_jitter);
}
