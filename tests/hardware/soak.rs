//! Many launches in a row, each with another M and new data, of kernels with pauses and without, on ranks that come late
//! at random. Every element of every result is compared: on GPUs by a kernel of the test's own between the launches.

use crate::fine;
use crate::gpus::{both_ways, dawdle};
use crate::jobs::{count, limit, shares};
use crate::nvidia;
use crate::op::{Operands, SIZE};
use crate::right::JITTER;
use crate::wide::wide;
use counterflow::codegen::interp::Numbers;
use counterflow::cuda::{Arguments, Function, LaunchConfig, Module};
use counterflow::driver::{Address, Stream};
use counterflow::jit::{Compiler, Source, Target};
use counterflow::prelude::bf16;
use counterflow::{Communicator, Dtype, Error, Op, Program, Tensor, UserBuffer, schedules};
use std::time::Instant;

/// Compares both results with what they should be, makes them NaN, and fills this rank's rows of the next launch. It
/// counts in words of four numbers. Of each result it says how many are wrong, and where the one that was seen first is
/// and what it holds.
pub const TURN: Source<'_> = Source::new(
    "turn",
    r#"typedef unsigned long long word;
struct Wrong { word count, place, held; };
__device__ void turned(word* is, const word* should, unsigned rows, unsigned all, Wrong* wrong)
{
    const word nan = 0xffffffffffffffffull;
    for (unsigned at = blockIdx.x * blockDim.x + threadIdx.x; at < all; at += gridDim.x * blockDim.x) {
        const word held = is[at];
        is[at] = nan;
        if (held == (at < rows ? should[at] : nan)) continue;
        if (atomicAdd(&wrong->count, 1ull) == 0) wrong->place = at, wrong->held = held;
    }
}
extern "C" __global__ void turn(word* y, const word* y_should, word* z, const word* z_should, word* x, const word* next,
                                Wrong* wrong, unsigned y_rows, unsigned y_all, unsigned z_rows, unsigned z_all,
                                unsigned count)
{
    turned(y, y_should, y_rows, y_all, wrong);
    turned(z, z_should, z_rows, z_all, wrong + 1);
    for (unsigned at = blockIdx.x * blockDim.x + threadIdx.x; at < count; at += gridDim.x * blockDim.x) x[at] = next[at];
}"#,
);

/// The host looks at the wrong words after so many pairs of launches.
const PART: usize = 500;

/// What the kernel says of a pair of launches: three words of each result.
const SAID: usize = 6;

/// How many inputs there are. Neighbours differ in every element.
const VERSIONS: usize = 4;

/// What all ranks launch.
#[derive(Clone, Copy, Debug)]
struct Step {
    m: usize,
    version: usize,
    pauses: bool,
}

impl Step {
    fn next(numbers: &mut Numbers, number: usize) -> Step {
        let m = match numbers.below(8) {
            0 => SIZE[0],
            1 => 1,
            2 => 7,
            _ => 1 + numbers.below(SIZE[0] as u64) as usize,
        };
        Step {
            m,
            version: number % VERSIONS,
            pauses: numbers.below(4) == 0,
        }
    }

    /// A rank's rows: the first, and how many.
    fn own(self, rank: &Communicator) -> (usize, usize) {
        let shard = self.m.div_ceil(rank.world() as usize);
        let first = (shard * rank.rank() as usize).min(self.m);
        (first, shard.min(self.m - first))
    }
}

/// Both layers with their tensors on one rank.
struct Soak<'a> {
    rank: &'a Communicator,
    /// Without pauses and with them: gather, scatter.
    ops: [[Op; 2]; 2],
    x: UserBuffer<bf16>,
    w: Tensor<bf16>,
    y: Tensor<bf16>,
    z: UserBuffer<bf16>,
    /// Each version of x, y, and the sum.
    versions: [Tensor<bf16>; 3],
    /// What is said of each pair of a part.
    wrong: Tensor<u64>,
    stream: Stream,
    /// None on emulated ranks, where the host compares.
    turn: Option<Function>,
}

/// How many there are.
const NUMBERS: usize = 61;

/// Small enough that four of them add up exactly.
fn number(version: usize, row: usize, column: usize) -> f32 {
    ((row * 31 + column * 7 + version * 13) % NUMBERS) as f32
}

/// All versions of a tensor whose columns were moved on so often, times a number.
fn versions(moved: usize, times: u32) -> Vec<bf16> {
    let [m, _] = SIZE;
    let lines = Lines::new(moved, times);
    let rows = (0..VERSIONS).flat_map(|version| (0..m).map(move |row| [version, row]));
    let mut all = Vec::new();
    rows.for_each(|[version, row]| all.extend_from_slice(lines.of(version, row)));
    all
}

/// The rows of such a tensor, of which there are as many as numbers: nothing optimises tests.
struct Lines(Vec<Vec<bf16>>);

impl Lines {
    fn new(moved: usize, times: u32) -> Lines {
        let side = SIZE[1];
        let value = |first: usize, column: usize| {
            let number = number(0, 0, (column + moved) % side) as usize + first;
            bf16::from_f32((number % NUMBERS) as f32 * times as f32)
        };
        let line = |first| (0..side).map(|column| value(first, column)).collect();
        Lines((0..NUMBERS).map(line).collect())
    }

    fn of(&self, version: usize, row: usize) -> &[bf16] {
        &self.0[number(version, row, 0) as usize]
    }
}

fn built(rank: &Communicator, program: &Program, pauses: bool) -> Result<Op, Error> {
    let [m, side] = SIZE;
    let compiler = match rank.gpu().is_emulated() {
        true => None,
        false => Some(Compiler::find()?),
    };
    let compiler = compiler.map(|it| if pauses { it.with_probes(JITTER) } else { it });
    let builder = rank.op(program).dtype(Dtype::Bf16).up_to(m, side, side);
    let builder = builder.set("tiles", (128, 256)).first_options();
    match &compiler {
        Some(compiler) => builder.compiler(compiler).build(),
        None => builder.build(),
    }
}

impl<'a> Soak<'a> {
    fn new(rank: &'a Communicator) -> Result<Soak<'a>, Error> {
        let [m, side] = SIZE;
        let world = rank.world();
        rank.reserve(64 << 20)?;
        let ops = |pauses| {
            let gather = built(rank, &schedules::ag_gemm(), pauses)?;
            Ok::<_, Error>([gather, built(rank, &schedules::gemm_rs(), pauses)?])
        };
        let ops = [ops(false)?, ops(true)?];
        let turn = match rank.gpu().is_emulated() {
            true => None,
            false => {
                let turn = Compiler::find()?.compile(&TURN, Target::Sm90a)?;
                Some(Module::load(rank.gpu().cuda()?, &turn)?.function("turn", 0)?)
            }
        };
        let held = |moved, times| {
            let tensor = rank.zeros([VERSIONS * m, side])?;
            tensor.write(&versions(moved, times))?;
            Ok::<_, Error>(tensor)
        };
        let soak = Soak {
            rank,
            ops,
            x: rank.allocate("x", [m.next_multiple_of(world as usize), side])?,
            w: Operands::moves(rank)?,
            y: rank.zeros([m, side])?,
            z: rank.allocate("z", [m.div_ceil(world as usize), side])?,
            versions: [held(0, 1)?, held(1, 1)?, held(2, world)?],
            wrong: rank.zeros([PART, SAID])?,
            stream: rank.gpu().stream()?,
            turn,
        };
        soak.y.fill(0xff)?;
        soak.z.fill(0xff)?;
        Ok(soak)
    }

    /// Between two launches: compares the results of one and gives the other its input.
    fn turn(&self, before: Option<(usize, Step)>, next: Step) -> Result<(), Error> {
        match &self.turn {
            Some(turn) => self.turn_by_kernel(turn, before, next),
            None => self.turn_by_host(before.map(|(_, step)| step), next),
        }
    }

    fn turn_by_kernel(
        &self,
        turn: &Function,
        before: Option<(usize, Step)>,
        next: Step,
    ) -> Result<(), Error> {
        let (pair, before) = before.unzip();
        let [m, side] = SIZE;
        let bytes = |rows: usize| (rows * side * size_of::<bf16>()) as u64;
        let words = |rows: usize| (rows * side / 4) as u32;
        let (first, rows) = next.own(self.rank);
        let (summed, sums) = before.map_or((0, 0), |step| step.own(self.rank));
        let version = before.map_or(0, |step| step.version);
        let of = |which: usize, version: usize, row: usize| -> Address {
            self.versions[which]
                .address()
                .plus(bytes(version * m + row))
        };
        let mut arguments = Arguments::new();
        let addresses = [
            self.y.address(),
            of(1, version, 0),
            self.z.address(),
            of(2, version, summed),
            self.x.address().plus(bytes(first)),
            of(0, next.version, first),
            (self.wrong.address()).plus((pair.unwrap_or(0) * SAID * size_of::<u64>()) as u64),
        ];
        for address in addresses {
            arguments.address(address);
        }
        let counts = [
            before.map_or(0, |step| step.m),
            self.y.shape()[0],
            sums,
            self.z.shape()[0],
            rows,
        ];
        for rows in counts {
            arguments.number(words(rows));
        }
        // SAFETY: it stays inside of these tensors, which live until the rank has waited for the stream.
        unsafe { turn.launch(self.stream.cuda()?, LaunchConfig::of(16, 512), &arguments) }
    }

    fn turn_by_host(&self, before: Option<Step>, next: Step) -> Result<(), Error> {
        let [_, side] = SIZE;
        self.stream.synchronize()?;
        if let Some(step) = before {
            let right = |is: Vec<bf16>, first: usize, rows: usize, moved: usize, times: u32| {
                let lines = Lines::new(moved, times);
                let mut held = is[..rows * side].chunks(side).zip(first..);
                let same = held.all(|(is, row)| is == lines.of(step.version, row));
                same && is[rows * side..].iter().all(|value| value.is_nan())
            };
            let (first, rows) = step.own(self.rank);
            let sums = right(self.z.read()?, first, rows, 2, self.rank.world());
            assert!(
                right(self.y.read()?, 0, step.m, 1, 1) && sums,
                "M = {}",
                step.m
            );
        }
        self.y.fill(0xff)?;
        self.z.fill(0xff)?;
        let (first, rows) = next.own(self.rank);
        let lines = Lines::new(0, 1);
        let mut given = Vec::new();
        (first..first + rows).for_each(|row| given.extend_from_slice(lines.of(next.version, row)));
        self.x.rows(first..first + rows)?.write(&given)
    }

    fn launch(&mut self, step: Step) -> Result<(), Error> {
        let [gather, scatter] = &self.ops[usize::from(step.pauses)];
        let launch = gather.on(&self.stream).tensor("x", &self.x);
        let launch = launch.tensor("w", &self.w).tensor("y", &mut self.y);
        launch.rows(step.m).launch()?;
        let launch = scatter.on(&self.stream).tensor("x", &self.y);
        let launch = launch.tensor("w", &self.w).tensor("y", &mut self.z);
        launch.rows(step.m).launch().map(drop)
    }

    /// Fails if a result of these steps, a part, was wrong; says which, and what is there.
    fn must_be_right(&self, steps: &[Step]) -> Result<(), Error> {
        let said = self.wrong.read()?;
        let mut wrong = Vec::new();
        for (step, said) in steps.iter().zip(said.chunks(SAID)) {
            for (name, said) in ["y", "z"].into_iter().zip(said.chunks(3)) {
                let (count, place, held) = (said[0], said[1] as usize, said[2]);
                if count > 0 {
                    let (row, column) = (place * 4 / SIZE[1], place * 4 % SIZE[1]);
                    let held = held.to_le_bytes();
                    let held = held.chunks(2).map(|it| bf16::from_le_bytes([it[0], it[1]]));
                    let held: Vec<bf16> = held.collect();
                    wrong.push(format!(
                        "{count} words of {name}, as {held:?} at row {row} and column {column}, in {step:?}"
                    ));
                }
            }
        }
        let rank = self.rank.rank();
        assert!(wrong.is_empty(), "rank {rank}: {}", wrong.join("; "));
        Ok(())
    }

    /// So many launches, or fewer in this time; how many it were. None of their results is wrong.
    fn run(&mut self, most: u64) -> Result<u64, Error> {
        let rank = self.rank;
        let over: UserBuffer<u32> = rank.allocate("over", [1])?;
        let mut shared = Numbers::new(most);
        let mut own = Numbers::new(u64::from(rank.rank()) << 32 | 7);
        let (start, pairs) = (Instant::now(), most.div_ceil(2));
        rank.synchronize()?;
        // Where ranks share a GPU, a stream's first work, and a kernel's, comes before all launches.
        let first = Step::next(&mut Numbers::new(most), 0);
        self.turn(None, first)?;
        self.stream.synchronize()?;
        rank.barrier()?;
        let mut part: Vec<Step> = Vec::with_capacity(PART);
        for number in 0..pairs {
            let next = Step::next(&mut shared, number as usize);
            let before = part.last().map(|step| (part.len() - 1, *step));
            self.turn(before, next)?;
            if own.below(16) == 0 {
                dawdle(&mut own, 400);
            }
            self.launch(next)?;
            part.push(next);
            let last = number + 1 == pairs;
            if part.len() == PART || last {
                self.turn(Some((part.len() - 1, next)), next)?;
                self.stream.synchronize()?;
                self.must_be_right(&part)?;
                part.clear();
                if rank.rank() == 0 && start.elapsed() > limit() {
                    for peer in 0..rank.world() {
                        over.write_on(peer, &[1])?;
                    }
                }
                rank.synchronize().and_then(|()| rank.barrier())?;
                if over.read()?[0] == 1 {
                    return Ok(2 * number + 2);
                }
            }
        }
        Ok(2 * pairs)
    }
}

/// A rank's part; what was right, and how many of the launches that were asked for it ran. A soak that ends before is
/// right so far, and the line says it: `.ci/hardware` marks the section.
fn soaked(rank: &Communicator, otherwise: u64) -> Result<String, Error> {
    let (asked, start) = (count("COUNTERFLOW_SOAK", otherwise), Instant::now());
    let ran = Soak::new(rank)?.run(asked)?;
    rank.barrier()?;
    let took = start.elapsed();
    Ok(format!(
        "{ran} launches right, 0 wrong, {} of {asked} asked, each with another M, {took:.0?}",
        ran.min(asked)
    ))
}

/// A rank that is a process.
pub fn in_a_process(rank: &Communicator) -> Result<String, Error> {
    let most = match (rank.gpu().is_emulated(), shares()) {
        (true, _) if wide() => 12,
        (true, _) => 8,
        (false, true) => 1000,
        (false, false) => 1_000_000,
    };
    soaked(rank, most)
}

#[test]
fn the_kernel_between_them_compiles() {
    if nvidia::compiler().is_some() {
        // Or it is in the cache that came without a compiler.
        fine(fine(Compiler::find()).compile(&TURN, Target::Sm90a));
    }
}

#[test]
fn emulated_launches_with_another_m_each_are_right() {
    for world in [1, 3] {
        let ranks = fine(Communicator::emulated(world));
        let ran = fine(Communicator::each(&ranks, |rank| {
            soaked(rank, if wide() { 24 } else { 8 })
        }));
        println!("  {world} emulated ranks: {}", ran[0]);
    }
}

/// On one GPU, and on a GPU each.
fn soak_of(ranks: u32) {
    for world in both_ways(ranks) {
        let ran = fine(Communicator::each(&world.ranks, |rank| {
            soaked(rank, 20_000)
        }));
        println!("  {}: {}", ran[0], world.told());
    }
}

#[test]
fn a_soak_of_two_ranks_is_right() {
    soak_of(2);
}

#[test]
fn a_soak_of_four_ranks_is_right() {
    soak_of(4);
}
