//! Launches in a row, each of which reads what the one before wrote and writes what that one read, on a GPU that they
//! fill: there the next one is a dependent launch, and must touch nothing before the launches before are complete.
//!
//! Values are integers, and an error stays to the end: a product moves every row on by one column, a vector or a stored
//! tile is added to one. Whatever comes a launch too early is a column, or a count, behind.

use crate::case::Case;
use crate::fine;
use crate::gpus::{self, World};
use crate::memory::held;
use crate::right::JITTER;
use counterflow::codegen::interp::{self, Options};
use counterflow::codegen::program::{Setting, TensorId};
use counterflow::codegen::sm90::cta::dependent_launch;
use counterflow::cuda::{Enqueued, enqueued};
use counterflow::driver::Address;
use counterflow::jit::{Compiler, Probes};
use counterflow::launch::{Loaded, Tensors};
use counterflow::{Communicator, Error, Kernel, Program, Shape, Variant, schedules};
use half::bf16;

/// A tile, what else differs, M, and N, which is K as well: so many that most SMs have a CTA. Where some have none, the
/// next launch's CTAs are there from the start of the one before.
type Kind = ((u32, u32), Knobs, u32, u32);
type Knobs = &'static [(&'static str, Setting)];

const PRODUCTS: [Kind; 7] = [
    ((128, 128), &[], 1400, 1280),
    (
        (128, 128),
        &[("gemm.ping_pong", Setting::One(1))],
        1400,
        1536,
    ),
    (
        (128, 128),
        &[("gemm.cluster", Setting::Pair(2, 1))],
        1400,
        1280,
    ),
    ((128, 128), &[("gemm.split", Setting::One(2))], 900, 1152),
    ((64, 64), &[], 700, 1536),
    ((16, 64), &[], 13, 7168),
    ((208, 128), &[], 2200, 1280),
];

/// M, and N and K, of the sums.
const ADDED: (u32, u32) = (1400, 1280);

const NONE: Probes = Probes {
    jitter: None,
    trace: false,
};

/// Operands that are declared constant: the weights, which are, and what the launch before wrote, which a launch must not load
/// before that one has ended.
const CONSTANTS: [&[&str]; 3] = [&[], &["w"], &["w", "x"]];

fn variant((tile, knobs, ..): Kind, constants: &[&str]) -> Variant {
    let variant = Variant::new(1).set("tiles", tile);
    let declared = constants.iter().copied();
    let variant = declared.fold(variant, Variant::constant);
    let set = |variant: Variant, (name, value): &(&str, Setting)| variant.set(name, *value);
    knobs.iter().fold(variant, set)
}

fn added() -> (Program, Variant) {
    let variant = Variant::new(1).set("tiles", (128, 128));
    (schedules::linear_residual(), variant)
}

/// All of them, for what compiles them ahead.
pub fn variants() -> impl Iterator<Item = (Program, Variant)> {
    let of = |constants| PRODUCTS.map(|kind| (schedules::gemm(), variant(kind, constants)));
    let products = CONSTANTS.into_iter().flat_map(of);
    products.chain([added()])
}

fn id(kernel: &Kernel, name: &str) -> TensorId {
    let at = kernel.buffers.iter().position(|buffer| buffer.name == name);
    TensorId(at.unwrap_or_else(|| panic!("no {name}")) as u16)
}

fn bits(number: u32) -> u16 {
    bf16::from_f32(number as f32).to_bits()
}

/// What is there at first; a number that bf16 has exactly, unlike its neighbours in the row.
fn start(row: usize, column: usize) -> u32 {
    ((row * 31 + column * 7) % 251) as u32
}

/// Of the product y = x · wᵀ: column j of y is column j + 1 of x.
fn moves_on(side: usize) -> Vec<u16> {
    let mut w = vec![0; side * side];
    for row in 0..side {
        w[row * side + (row + 1) % side] = bits(1);
    }
    w
}

/// Where a launch reads and writes.
fn tensors(kernel: &Kernel, places: &[(&str, Address, usize)]) -> Tensors {
    let mut tensors = Tensors::new();
    for (name, address, words) in places {
        // SAFETY: the memory lives until the rank was waited for.
        unsafe { tensors.local(id(kernel, name), *address, *words as u64 * 2) };
    }
    tensors
}

/// Without this the tests would say nothing.
fn is_dependent_launch(case: &Case, rank: &Communicator) {
    let grid = case.plans[0].grid;
    let (ctas, sms) = (grid.gemm + grid.comm, rank.gpu().sms());
    assert!(case.pipeline.dependent_launch, "{}", case.kernel.name);
    assert!(
        dependent_launch::pays(ctas, sms),
        "{ctas} CTAs on {sms} SMs"
    );
}

/// So many launches; with copies, some of which read another place, filled and spoiled in the order of the stream.
fn product(
    rank: &Communicator,
    compiler: &Compiler,
    case: &Case,
    (m, side): (usize, usize),
    (launches, copies): (usize, bool),
) -> Result<Vec<u16>, Error> {
    is_dependent_launch(case, rank);
    let words = m * side;
    rank.reserve((words as u64 * 2).next_multiple_of(2 << 20) + (4 << 20))?;
    let aside = rank.allocate::<u16>("aside", [words])?;
    let loaded =
        Loaded::load(rank, compiler, &case.pipeline, &case.series)?.pdl_after_foreign_kernels();
    let x: Vec<u16> = (0..words)
        .map(|at| bits(start(at / side, at % side)))
        .collect();
    let places = [held(rank, &x)?, held(rank, &vec![0xffff; words])?];
    let w = held(rank, &moves_on(side))?;
    let launch = |from: Address, to: Address| {
        let at = [
            ("x", from, words),
            ("w", w.address(), w.len()),
            ("y", to, words),
        ];
        loaded.launch(rank, &case.plans[0], &tensors(&case.kernel, &at))
    };
    for step in 0..launches {
        let (from, to) = (&places[step % 2], &places[(step + 1) % 2]);
        if copies && step % 11 == 7 {
            aside.write(&from.read()?)?;
        } else if copies && step % 5 == 3 {
            aside.copy_from(from)?;
        } else {
            launch(from.address(), to.address())?;
            continue;
        }
        launch(aside.address(), to.address())?;
        aside.fill(0xff)?;
    }
    rank.synchronize()?;
    let last = &places[launches % 2];
    let held = last.read()?;
    // However it is launched otherwise: in a graph it is one kernel.
    let other = places[(launches + 1) % 2].address();
    let call = enqueued(rank.stream().cuda()?, || launch(last.address(), other))?;
    let (kernels, others) = (1, 0);
    assert_eq!(call, Enqueued { kernels, others });
    Ok(held)
}

fn products(probes: Probes, constants: &[&str], (launches, copies): (usize, bool)) {
    for kind in PRODUCTS {
        let Some(world) = gpus::world(1) else { return };
        let (_, _, m, side) = kind;
        let shape = [Shape::new(m, side, side)];
        let case = Case::new(
            &schedules::gemm(),
            &variant(kind, constants),
            &shape,
            world.sharing,
        );
        let compiler = fine(Compiler::find()).with_probes(probes);
        let (m, side) = (m as usize, side as usize);
        let run =
            |rank: &Communicator| product(rank, &compiler, &case, (m, side), (launches, copies));
        let held = fine(Communicator::each(&world.ranks, run));
        for (at, held) in held[0].iter().enumerate() {
            let wanted = bits(start(at / side, (at % side + launches) % side));
            let (row, column) = (at / side, at % side);
            assert!(
                *held == wanted,
                "{}: {} instead of {} in row {row}, column {column}",
                case.kernel.variant,
                bf16::from_bits(*held),
                bf16::from_bits(wanted)
            );
        }
        told(
            &case,
            &world,
            probes,
            launches,
            if copies { ", copies between" } else { "" },
        );
    }
}

fn told(case: &Case, world: &World, probes: Probes, launches: usize, what: &str) {
    let jitter = if probes.jitter.is_some() {
        ", jitter"
    } else {
        ""
    };
    println!(
        "  {:13} {:32} {launches:5} launches right, each of the one before{what}: {}",
        case.kernel.name,
        format!("{}{jitter}", world.told()),
        case.kernel.variant
    );
}

/// Which operand is what the launch before wrote.
#[derive(Clone, Copy, Debug)]
enum Chained {
    /// Its first row: read by ordinary loads.
    Vector,
    /// All of it: read by TMA.
    Tiles,
}

/// y = 0 + 1 + what was: after so many launches, so many.
fn counted(
    rank: &Communicator,
    compiler: &Compiler,
    case: &Case,
    (m, side): (usize, usize),
    (launches, chained): (usize, Chained),
) -> Result<Vec<u16>, Error> {
    is_dependent_launch(case, rank);
    let words = m * side;
    rank.reserve(4 << 20)?;
    let loaded =
        Loaded::load(rank, compiler, &case.pipeline, &case.series)?.pdl_after_foreign_kernels();
    let zeros = |words| rank.zeros::<u16>([words]);
    let (x, w) = (zeros(words)?, zeros(side * side)?);
    let ones = held(rank, &vec![bits(1); words])?;
    let places = [zeros(words)?, zeros(words)?];
    for step in 0..launches {
        let [from, to] = [step, step + 1].map(|step| places[step % 2].address());
        let (bias, residual) = match chained {
            Chained::Vector => (from, ones.address()),
            Chained::Tiles => (ones.address(), from),
        };
        let at = [
            ("x", x.address(), words),
            ("w", w.address(), side * side),
            ("bias", bias, side),
            ("residual", residual, words),
            ("y", to, words),
        ];
        loaded.launch(rank, &case.plans[0], &tensors(&case.kernel, &at))?;
    }
    rank.synchronize()?;
    places[launches % 2].read()
}

fn counts(probes: Probes, rounds: usize) {
    // What bf16 counts to without a gap.
    let launches = 250;
    for chained in [Chained::Vector, Chained::Tiles] {
        let Some(world) = gpus::world(1) else { return };
        let (m, side) = ADDED;
        let (program, variant) = added();
        let case = Case::new(
            &program,
            &variant,
            &[Shape::new(m, side, side)],
            world.sharing,
        );
        let compiler = fine(Compiler::find()).with_probes(probes);
        let size = (m as usize, side as usize);
        for _ in 0..rounds {
            let run =
                |rank: &Communicator| counted(rank, &compiler, &case, size, (launches, chained));
            let held = fine(Communicator::each(&world.ranks, run));
            let wrong = held[0]
                .iter()
                .position(|held| *held != bits(launches as u32));
            let wrong = wrong.map(|at| (at / size.1, at % size.1, bf16::from_bits(held[0][at])));
            assert_eq!(wrong, None, "{chained:?}: row, column, and what is there");
        }
        let what = match chained {
            Chained::Vector => ", its first row a vector",
            Chained::Tiles => ", as stored tiles",
        };
        told(&case, &world, probes, launches * rounds, what);
    }
}

#[test]
fn each_launch_reads_what_the_one_before_wrote() {
    products(NONE, &[], (1000, false));
    counts(NONE, 4);
}

#[test]
fn each_launch_reads_what_the_one_before_wrote_with_pauses() {
    products(JITTER, &[], (300, false));
    counts(JITTER, 2);
}

#[test]
fn copies_between_launches_keep_their_place() {
    products(NONE, &[], (400, true));
}

#[test]
fn constants_are_loaded_first_and_what_a_launch_wrote_is_not() {
    for constants in &CONSTANTS[1..] {
        products(NONE, constants, (1000, false));
        products(JITTER, constants, (300, false));
        products(NONE, constants, (400, true));
    }
}

#[test]
fn every_link_fills_most_of_a_gpu() {
    let case = |program: &Program, variant: &Variant, m, side| {
        let case = Case::new(program, variant, &[Shape::new(m, side, side)], 1);
        let grid = case.plans[0].grid;
        let ctas = grid.gemm + grid.comm;
        assert!(
            case.pipeline.dependent_launch && dependent_launch::pays(ctas, 132),
            "{variant}: {ctas} CTAs"
        );
    };
    for kind in PRODUCTS {
        for constants in CONSTANTS {
            let variant = variant(kind, constants);
            case(&schedules::gemm(), &variant, kind.2, kind.3);
        }
    }
    let (program, variant) = added();
    case(&program, &variant, ADDED.0, ADDED.1);
}

/// The emulator's launches end before the next: the chain itself is what it says.
#[test]
fn a_chain_on_the_emulator_moves_on_by_a_column_a_launch() {
    let (m, side) = (40, 64);
    let kind = PRODUCTS[4];
    let case = Case::new(
        &schedules::gemm(),
        &variant(kind, &["w"]),
        &[Shape::new(m, side, side)],
        1,
    );
    let side = side as usize;
    let w = moves_on(side);
    let x = id(&case.kernel, "x");
    let mut held: Vec<f32> = (0..m as usize * side)
        .map(|at| start(at / side, at % side) as f32)
        .collect();
    for _ in 0..3 {
        let ran = interp::run(
            &case.series,
            &[&case.plans[0]],
            &Options::seed(1),
            |input, numbers| {
                if input.tensor == x {
                    numbers.copy_from_slice(&held);
                } else {
                    for (number, bits) in numbers.iter_mut().zip(&w) {
                        *number = bf16::from_bits(*bits).to_f32();
                    }
                }
            },
        );
        let outcome = ran.unwrap_or_else(|failure| panic!("{failure}"));
        held.clone_from(&outcome.outputs[0].values);
    }
    for (at, held) in held.iter().enumerate() {
        assert_eq!(
            *held,
            start(at / side, (at % side + 3) % side) as f32,
            "{at}"
        );
    }
}
