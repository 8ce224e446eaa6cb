//! What launches add to: from contents that count, every element once a launch, and the next launch goes on from there.

use crate::case::{Case, Device, Fill, References, on};
use crate::memory::{Heap, Memory, Words};
use crate::right::JITTER;
use crate::tiles::{NONE, right};
use crate::wide::in_turn;
use crate::{fine, gpus};
use counterflow::codegen::interp::{self, Options, Output};
use counterflow::codegen::program::Setting::One;
use counterflow::jit::Compiler;
use counterflow::launch::Loaded;
use counterflow::{Communicator, Dtype, Error, Layout, Program, Shape, Variant, schedules};

/// Tiles, and whether they are multiplied in ping-pong.
const TILES: [((u32, u32), u32); 8] = [
    ((128, 256), 0),
    ((128, 192), 0),
    ((256, 128), 0),
    ((128, 160), 1),
    ((128, 144), 1),
    ((128, 128), 1),
    ((208, 128), 0),
    ((72, 128), 1),
];
const SIZES: [(u32, u32); 3] = [(264, 1096), (520, 72), (1032, 2048)];
/// Columns of M are lines of memory: whole 16 bytes.
const ROWS: [u32; 6] = [8, 56, 120, 136, 1000, 2056];

fn variant(((rows, columns), ping_pong): ((u32, u32), u32)) -> Variant {
    Variant::new(1)
        .layout(Layout::Tn)
        .set("tiles", (rows, columns))
        .set("gemm.ping_pong", One(ping_pong))
}

/// All of them, for what compiles them ahead.
pub fn variants() -> impl Iterator<Item = (Program, Variant)> {
    let tiles = TILES.into_iter().map(variant);
    let tiles = tiles.chain([variant(TILES[0]).dtype(Dtype::F16)]);
    tiles.map(|variant| (schedules::wgrad(), variant))
}

/// Of them, those that also run with pauses.
pub fn jittered() -> impl Iterator<Item = (Program, Variant)> {
    let tiles = [TILES[0], TILES[4]].into_iter();
    tiles.map(|tile| (schedules::wgrad(), variant(tile)))
}

#[test]
fn every_tile_adds_to_what_is_there() {
    for (program, variant) in variants() {
        for fill in [Fill::Uniform(7), Fill::Integers(7)] {
            if !right(
                1,
                &program,
                &variant,
                (&SIZES, &ROWS),
                fill,
                NONE,
                &References::default(),
            ) {
                return;
            }
        }
    }
}

#[test]
fn every_tile_adds_to_what_is_there_without_a_gpu() {
    // Without `WIDE` each tile with one kind of numbers.
    for (at, (program, variant)) in variants().enumerate() {
        let shapes = [8, 136].map(|m| Shape::new(m, 264, 72).up_to(136));
        let case = on(&Device::Cpu, &program, &variant, &shapes);
        for fill in in_turn([Fill::Uniform(7), Fill::Integers(7)], at) {
            let outcome = case.run(&Device::Cpu, fill);
            for launch in 0..shapes.len() {
                case.compare(&outcome, launch, fill);
            }
        }
    }
}

const LAUNCHES: usize = 5;

/// Launches without a wait between them, into the same memory.
fn in_a_row(
    case: &Case,
    rank: &Communicator,
    compiler: &Compiler,
    fill: Fill,
) -> Result<Vec<Output>, Error> {
    let plan = &case.plans[0];
    let heap = Heap::new(rank, &case.kernel, &[plan])?;
    let loaded =
        Loaded::load(rank, compiler, &case.pipeline, &case.series)?.pdl_after_foreign_kernels();
    let words = Words::new(&case.kernel, plan, rank.rank(), 0, fill);
    let memory = Memory::new(rank, &heap, &words)?;
    rank.synchronize()?;
    for _ in 0..LAUNCHES {
        loaded.launch(rank, plan, &memory.tensors())?;
    }
    rank.synchronize()?;
    memory.outputs(rank, plan, LAUNCHES - 1)
}

/// The same inputs in every launch of the emulator, which goes on from what it made.
fn emulated(case: &Case, fill: Fill) -> Vec<f32> {
    let plans = vec![&case.plans[0]; LAUNCHES];
    let mut inputs = fill.inputs();
    let outcome = interp::run(&case.series, &plans, &Options::seed(1), |input, values| {
        if input.name != "grad" || input.launch == 0 {
            inputs(interp::Input { launch: 0, ..input }, values);
        }
    });
    let outputs = outcome
        .unwrap_or_else(|failure| panic!("{failure}"))
        .outputs;
    outputs.into_iter().next_back().expect("an output").values
}

/// Small integers have one sum, so every launch has added once to every element; of other numbers the bits are the same
/// again, since no element is added to twice in a launch.
#[test]
fn launches_in_a_row_go_on_adding() {
    let Some(world) = gpus::world(1) else { return };
    for probes in [NONE, JITTER] {
        let compiler = fine(Compiler::find()).with_probes(probes);
        for (program, variant) in jittered() {
            let shape = Shape::new(1000, 520, 200);
            let case = Case::new(&program, &variant, &[shape], 1);
            let run = |fill| {
                let each = |rank: &Communicator| in_a_row(&case, rank, &compiler, fill);
                let mut outputs = fine(Communicator::each(&world.ranks, each));
                outputs.remove(0).remove(0).values
            };
            let exact = Fill::Integers(3);
            assert!(run(exact) == emulated(&case, exact), "{variant}");
            let bits = |values: Vec<f32>| values.into_iter().map(f32::to_bits).collect::<Vec<_>>();
            let uniform = Fill::Uniform(3);
            assert!(bits(run(uniform)) == bits(run(uniform)), "{variant}");
        }
    }
}
