//! Other libraries in the same process: what cudarc's default stream makes, kernels that wait for nobody, and several GPUs
//! whose contexts take turns as a thread's current one.

use crate::fine;
use crate::gpus::{here, loopback, world};
use crate::host::driver::{Read, asked};
use crate::nvidia::skipped;
use crate::op::{Operands, SIZE, built, right};
use counterflow::cuda::{Arguments, CudaSlice, Function, LaunchConfig, Module, address_of};
use counterflow::driver::Event;
use counterflow::jit::{Compiler, Source, Target};
use counterflow::prelude::bf16;
use counterflow::{Communicator, Dtype, Error, Pending, Tensor, UserBuffer, schedules};
use cudarc::driver::sys;

/// Another library's kernel: it takes its time, and then copies so many numbers of 16 bits. It waits for no kernel before
/// it, and tells none behind it that it may start.
pub const LATE: Source<'_> = Source::new(
    "late",
    "extern \"C\" __global__ void late(unsigned short* to, const unsigned short* from, unsigned count, unsigned clocks)
{
    for (long long start = clock64(); clock64() - start < clocks;) {}
    for (unsigned at = threadIdx.x; at < count; at += blockDim.x) to[at] = from[at];
}",
);
/// About 2 ms.
const LONG: u32 = 4_000_000;
const ROUNDS: usize = 30;

fn late(rank: &Communicator) -> Result<Function, Error> {
    let compiled = Compiler::find()?.compile(&LATE, Target::Sm90a)?;
    Module::load(rank.gpu().cuda()?, &compiled)?.function("late", 0)
}

/// What `late` is given.
fn given(to: u64, from: u64, count: usize, clocks: u32) -> Arguments {
    let mut arguments = Arguments::new();
    arguments.bytes(&to.to_le_bytes());
    arguments.bytes(&from.to_le_bytes());
    arguments.number(count as u32);
    arguments.number(clocks);
    arguments
}

pub fn done<T>(result: Result<T, cudarc::driver::DriverError>) -> T {
    result.expect("cudarc's call")
}

/// The product whose result is `x` with every column moved on by one.
fn product(rank: &Communicator) -> Result<counterflow::Op, Error> {
    let [m, side] = SIZE;
    let schedule = schedules::gemm();
    let builder = rank.op(&schedule).dtype(Dtype::Bf16).up_to(m, side, side);
    builder.set("tiles", (128, 128)).first_options().build()
}

/// Both ways: a slice of the default stream that a kernel writes there, and one of another stream that cudarc writes there.
#[test]
fn a_slice_that_the_default_stream_makes_is_there_for_a_launch_at_once() {
    let Some(world) = loopback(1) else { return };
    fine(Communicator::each(&world.ranks, |rank| {
        let [m, side] = SIZE;
        let (op, late) = (product(rank)?, late(rank)?);
        let gpu = rank.gpu().cuda()?;
        let (legacy, other, callers) =
            (gpu.context().default_stream(), gpu.stream()?, gpu.stream()?);
        let all = done(legacy.clone_htod(Operands::all()));
        let nothing = done(legacy.clone_htod(&vec![bf16::NAN; m * side]));
        let mut ours: CudaSlice<bf16> = done(legacy.alloc_zeros(m * side));
        let mut theirs: CudaSlice<bf16> = done(other.alloc_zeros(m * side));
        let (w, mut y) = (Operands::moves(rank)?, rank.zeros::<bf16>([m, side])?);
        done(gpu.context().synchronize());
        for round in 0..ROUNDS {
            for slice in [&mut ours, &mut theirs] {
                done(legacy.memcpy_dtod(&nothing, slice));
            }
            y.fill(0xff)?;
            done(gpu.context().synchronize());
            let to = address_of(&ours, &legacy).get();
            let from = address_of(&all, &legacy).get();
            // SAFETY: both slices have as many elements, and live until the stream is done with them.
            unsafe {
                let grid = LaunchConfig::of(1, 1024);
                late.launch(&legacy, grid, &given(to, from, m * side, LONG))?;
            }
            let launch = |x: &CudaSlice<bf16>, y: &mut Tensor<bf16>| -> Result<Pending, Error> {
                let launch = match round % 2 {
                    0 => op.on(rank),
                    _ => op.on(&callers),
                };
                launch
                    .tensor("x", x)
                    .tensor("w", &w)
                    .tensor("y", y)
                    .launch()
            };
            launch(&ours, &mut y)?.wait()?;
            right(&y.read()?, m);
            y.fill(0xff)?;
            // SAFETY: it writes what it reads.
            unsafe {
                let grid = LaunchConfig::of(1, 1024);
                late.launch(&legacy, grid, &given(from, from, 1, LONG))?;
            }
            done(legacy.memcpy_dtod(&all, &mut theirs));
            launch(&theirs, &mut y)?.wait()?;
            right(&y.read()?, m);
        }
        Ok(())
    }));
    println!("  made by the default stream: {ROUNDS} times, both ways");
}

/// Whether the launch may start before what is before it has ended.
fn is_early(launch: impl FnOnce() -> Result<Pending, Error>) -> Result<bool, Error> {
    let (launched, calls) = asked(launch);
    launched?;
    let mut launches = calls.iter().filter_map(|call| match &call.read {
        Read::Launch(_, attributes, _) => Some(!attributes.is_empty()),
        _ => None,
    });
    Ok(launches.next_back().expect("a launch"))
}

/// A chain of launches, each of which reads what the one before wrote, with a kernel of somebody else's between them that
/// starts early itself and waits for nobody: it may end before the launch that it comes behind.
#[test]
fn a_launch_behind_a_kernel_that_waits_for_nobody_comes_after_all_before_it() {
    const SIDE: usize = 1280;
    const ROWS: usize = 1400;
    let Some(world) = loopback(1) else { return };
    fine(Communicator::each(&world.ranks, |rank| {
        let schedule = schedules::gemm();
        let builder = rank
            .op(&schedule)
            .dtype(Dtype::Bf16)
            .up_to(ROWS, SIDE, SIDE);
        let op = builder.set("tiles", (128, 128)).first_options().build()?;
        let late = late(rank)?;
        let number =
            |row: usize, column: usize| bf16::from_f32(((row * 31 + column * 7) % 251) as f32);
        let w = rank.zeros::<bf16>([SIDE, SIDE])?;
        let mut moves = vec![bf16::ZERO; SIDE * SIDE];
        (0..SIDE).for_each(|row| moves[row * SIDE + (row + 1) % SIDE] = bf16::ONE);
        w.write(&moves)?;
        let mut values = [
            rank.zeros::<bf16>([ROWS, SIDE])?,
            rank.zeros::<bf16>([ROWS, SIDE])?,
        ];
        let start: Vec<bf16> = (0..ROWS * SIDE)
            .map(|at| number(at / SIDE, at % SIDE))
            .collect();
        values[0].write(&start)?;
        let idle = rank.zeros::<u16>([64])?;
        let mut next = || {
            let [x, y] = &mut values;
            let launch = op.on(rank).tensor("x", &*x).tensor("w", &w);
            let early = is_early(|| launch.tensor("y", y).launch());
            values.swap(0, 1);
            early
        };
        next()?;
        assert!(
            next()?,
            "nobody else has the stream: the second one starts early"
        );
        let stream = rank.stream().cuda()?;
        let at = idle.address().get();
        let arguments = given(at, at, 64, 0);
        for _ in 0..ROUNDS {
            let grid = LaunchConfig {
                dependent_launch: true,
                ..LaunchConfig::of(1, 64)
            };
            // SAFETY: nobody else uses what it reads and writes.
            unsafe { late.launch(stream, grid, &arguments)? };
            assert!(!next()?, "the stream may hold others' kernels");
        }
        let read = values[0].read()?;
        for (at, value) in read.iter().enumerate() {
            let (row, column) = (at / SIDE, at % SIDE);
            assert_eq!(
                *value,
                number(row, (column + ROUNDS + 2) % SIDE),
                "{row}, {column}"
            );
        }
        Ok(())
    }));
    println!("  behind kernels that wait for nobody: {ROUNDS} launches right");
}

/// The priority that the last launch in `work` has, if it has one.
fn priority(work: impl FnOnce() -> Result<Pending, Error>) -> Result<Option<i32>, Error> {
    let (launched, calls) = asked(work);
    launched?.wait()?;
    let mut all = calls.iter().filter_map(|call| match &call.read {
        Read::Launch(_, attributes, _) => Some(attributes),
        _ => None,
    });
    let attributes = all.next_back().expect("a launch").iter();
    let is = |one: &&sys::CUlaunchAttribute| {
        one.id == sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PRIORITY
    };
    // SAFETY: an attribute of that name has that value.
    Ok(attributes
        .clone()
        .find(is)
        .map(|one| unsafe { one.value.priority }))
}

#[test]
fn a_launch_has_the_priority_of_its_callers_stream() {
    let Some(world) = loopback(1) else { return };
    fine(Communicator::each(&world.ranks, |rank| {
        let op = product(rank)?;
        let [m, side] = SIZE;
        let (x, w) = (rank.zeros::<bf16>([m, side])?, Operands::moves(rank)?);
        let mut y = rank.zeros::<bf16>([m, side])?;
        let context = rank.gpu().cuda()?.context();
        for wanted in [0, -1, -3] {
            let stream = done(context.new_stream_with_priority(wanted));
            let launch = op.on(&stream).tensor("x", &x).tensor("w", &w);
            let launch = launch.tensor("y", &mut y);
            let has = priority(|| launch.launch())?;
            assert_eq!(has, Some(wanted).filter(|wanted| *wanted != 0));
        }
        let launch = op.on(rank).tensor("x", &x).tensor("w", &w);
        let launch = launch.tensor("y", &mut y);
        assert_eq!(priority(|| launch.launch())?, None);
        Ok(())
    }));
    println!("  launches have the priorities of their callers' streams");
}

/// Our calls leave the rank's GPU the thread's current one, also those that ask other GPUs: a program's next call needs it.
#[test]
fn a_ranks_thread_keeps_the_ranks_gpu() {
    if here().is_none_or(|gpus| gpus < 2) {
        skipped("two contexts need two GPUs");
        return;
    }
    let Some(world) = world(2) else { return };
    fine(Communicator::each(&world.ranks, |rank| {
        let gpu = rank.gpu().cuda()?;
        let stays = |after: &str| {
            let mut context = std::ptr::null_mut();
            // SAFETY: the place is ours.
            let code = unsafe { sys::cuCtxGetCurrent(&raw mut context) };
            assert_eq!(code, sys::CUresult::CUDA_SUCCESS);
            assert_eq!(
                context,
                gpu.context().cu_ctx(),
                "rank {} after {after}",
                rank.rank()
            );
        };
        gpu.bind()?;
        let op = built(rank, &schedules::ag_gemm())?;
        stays("a build");
        let [m, side] = SIZE;
        let x: UserBuffer<bf16> = rank.allocate("x", [m, side])?;
        stays("an allocation");
        let (w, mut y) = (Operands::moves(rank)?, rank.zeros::<bf16>([m, side])?);
        x.write(&Operands::given(rank, m))?;
        stays("a write");
        let launch = op.on(rank).tensor("x", &x).tensor("w", &w);
        let done = launch.tensor("y", &mut y).launch()?;
        stays("the first launch");
        done.is_done()?;
        stays("a question");
        done.wait()?;
        let stream = rank.gpu().stream()?;
        done.wait_on(&stream)?;
        Event::record(&stream)?.wait()?;
        stays("an order");
        right(&y.read()?, m);
        rank.barrier()?;
        x.read_on(1 - rank.rank())?;
        stays("a read of a peer's part");
        rank.barrier()?;
        let launch = op.on(&stream).tensor("x", &x).tensor("w", &w);
        launch.tensor("y", &mut y).launch()?.wait()?;
        stays("a launch on another stream");
        rank.barrier()?;
        drop((x, op));
        stays("drops");
        rank.synchronize()?;
        rank.barrier()
    }));
    println!("  each rank's thread kept its GPU: {}", world.told());
}
