//! Measured choice on GPUs, also beside another library's kernel that keeps SMs and waits: the communicator lives on.

use crate::fine;
use crate::gpus::{World, both_ways};
use crate::host::driver::stamped;
use crate::op::{Operands, SIZE, right};
use counterflow::codegen::lower::lower;
use counterflow::codegen::verify;
use counterflow::cuda::{Arguments, LaunchConfig, Module};
use counterflow::driver::Event;
use counterflow::jit::{Compiler, Source, Target};
use counterflow::tuning::Tuning;
use counterflow::{Communicator, Dtype, Error, Op, OpBuilder, Program, Variant, schedules, tuned};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Another library's kernel: each CTA keeps its part of an SM for so many nanoseconds.
pub const KEEPS: Source<'_> = Source::new(
    "keeps",
    "extern \"C\" __global__ void __launch_bounds__(1024) keeps(long long nanoseconds)
{
    extern __shared__ char room[];
    long long start, now;
    asm volatile(\"mov.u64 %0, %globaltimer;\" : \"=l\"(start));
    do asm volatile(\"mov.u64 %0, %globaltimer;\" : \"=l\"(now)); while (now - start < nanoseconds);
}",
);
type Gather = schedules::AgGemmOp<'static>;

/// Longer than a trial is patient.
const KEPT: Duration = Duration::from_secs(12);
/// The waits of a trial for its GPU that may all come to their limit: for earlier work, for memory or for launches, and for what is given
/// back. Each is below 3.5 s. The rest is for what waits for nobody.
const BOUNDS: Duration = Duration::from_secs(12);

/// A call of the driver that takes longer has waited for somebody's kernel.
const SLOW: Duration = Duration::from_millis(300);

/// Builds, and prints the calls of the driver that waited.
fn watched<T>(rank: &Communicator, build: impl FnOnce() -> Result<T, Error>) -> Result<T, Error> {
    let (built, calls) = stamped(1 << 22, build);
    for call in calls.iter().filter(|call| call.to - call.from > SLOW) {
        let (name, waited) = (call.name().unwrap_or_default(), call.to - call.from);
        println!("  rank {} waited {waited:?} in {name}", rank.rank());
    }
    built
}

/// What such a kernel takes.
#[derive(Clone, Copy)]
struct Taken {
    ctas: u32,
    threads: u32,
    /// Bytes of shared memory of each CTA.
    room: u32,
}

impl Taken {
    /// SMs but for four, on which no CTA of ours finds room beside it; a small kernel, such as a fill, does.
    fn most(sms: u32) -> Taken {
        Taken {
            ctas: sms - 4,
            threads: 32,
            room: 200 << 10,
        }
    }

    /// All SMs with all their threads, by two CTAs on each: not even a fill runs beside it.
    fn all(sms: u32) -> Taken {
        Taken {
            ctas: 2 * sms,
            threads: 1024,
            room: 100 << 10,
        }
    }
}

/// Choices but for the tiles, so that few kernels are candidates.
const SETTLED: [(&str, u32); 2] = [("chunks", 128), ("comm.ctas", 8)];

/// All candidates, for machines that have no compiler.
pub fn kernels() -> impl Iterator<Item = (Program, Variant)> {
    let program = schedules::ag_gemm();
    let base = SETTLED.iter();
    let base = base.fold(Variant::new(2), |base, (name, of)| base.set(name, *of));
    let base = base.set("gemm.ping_pong", false);
    let all = tuned::combinations(&program, &base, &BTreeMap::new());
    let legal = move |variant: Variant| {
        lower(&program, &variant).and_then(verify::kernel).ok()?;
        Some((program.clone(), variant))
    };
    all.into_iter().filter_map(legal)
}

fn builder(rank: &Communicator) -> OpBuilder<'_, Gather> {
    let [m, side] = SIZE;
    let builder = rank.op_of::<Gather>().dtype(Dtype::Bf16);
    let builder = SETTLED
        .iter()
        .fold(builder, |builder, (name, of)| builder.set(name, *of));
    let builder = builder.set("gemm.ping_pong", false);
    builder.tuning(Tuning::Quick).up_to(m, side, side)
}

fn built(rank: &Communicator) -> Result<Op<Gather>, Error> {
    let [m, side] = SIZE;
    let memory = builder(rank).workspace()?;
    rank.reserve((m * side * 2) as u64 + memory.heap + (4 << 20))?;
    builder(rank).build()
}

/// A launch of it is right, so the communicator lives.
fn must_be_right(rank: &Communicator, op: &Op<Gather>) -> Result<(), Error> {
    let Operands { x, w, mut y } = Operands::new(rank)?;
    x.write(&Operands::given(rank, SIZE[0]))?;
    rank.synchronize()?;
    rank.barrier()?;
    op.on(rank).x(&x).w(&w).y(&mut y).launch()?.wait()?;
    right(&y.read()?, SIZE[0]);
    rank.barrier()
}

#[test]
fn candidates_are_measured_and_their_memory_is_free_again() {
    for world in both_ways(2) {
        let told = fine(Communicator::each(&world.ranks, |rank| {
            let start = Instant::now();
            let op = built(rank)?;
            let took = start.elapsed();
            assert_eq!(op.unmeasured(SIZE[0]), None);
            let held = rank.heap_use();
            assert!(!held.to_string().contains("candidates"), "{held}");
            must_be_right(rank, &op)?;
            // What was measured once is known.
            assert_eq!(built(rank)?.variant(), op.variant());
            rank.barrier()?;
            Ok((op.variant().clone(), took))
        }));
        assert_eq!(told[0].0, told[1].0);
        println!("  measured in {:?}: {}", told[0].1, world.told());
    }
}

/// Builds while that much of rank 0's GPU is taken, and then launches. Where the op has the model's choice, it says why.
///
/// To load a kernel may wait behind that kernel, whatever we do: all such calls together at most until it ends. So building may take
/// that long and the bounds of the trial, and no longer. An op that measures nothing waits as well, if its kernel was not loaded before.
fn beside(world: &World, taken: impl Fn(u32) -> Taken + Sync, tuning: Tuning) {
    let told = fine(Communicator::each(&world.ranks, |rank| {
        let compiled = Compiler::find()?.compile(&KEEPS, Target::Sm90a)?;
        let taken = taken(rank.gpu().sms());
        let keeps = Module::load(rank.gpu().cuda()?, &compiled)?.function("keeps", taken.room)?;
        let theirs = rank.gpu().stream()?;
        let [m, side] = SIZE;
        rank.reserve((m * side * 2) as u64 + 2 * builder(rank).workspace()?.heap + (4 << 20))?;
        // All is loaded that the program loads by itself.
        let known = builder(rank).set("tiles", (256, 128));
        must_be_right(rank, &known.tuning(Tuning::Off).build()?)?;
        if rank.rank() == 0 {
            let mut arguments = Arguments::new();
            arguments.bytes(&(KEPT.as_nanos() as u64).to_le_bytes());
            let grid = LaunchConfig::of(taken.ctas, taken.threads);
            // SAFETY: it uses no memory but its own.
            unsafe { keeps.launch(theirs.cuda()?, grid, &arguments)? };
        }
        rank.barrier()?;
        let theirs = Event::record(&theirs)?;
        let start = Instant::now();
        let op = watched(rank, || builder(rank).tuning(tuning).build())?;
        let took = start.elapsed();
        assert!(took < KEPT + BOUNDS, "building took {took:?}");
        theirs.wait()?;
        must_be_right(rank, &op)?;
        Ok((op.unmeasured(SIZE[0]).map(str::to_owned), took))
    }));
    let (why, took) = &told[0];
    assert_eq!(*why, told[1].0, "all ranks know the same");
    if tuning == Tuning::Off {
        assert_eq!(*why, None, "it measures nothing");
    }
    println!(
        "  built with {tuning:?} beside it in {took:?}: {}: {why:?}",
        world.told()
    );
    if let (Tuning::Quick, Some(why)) = (tuning, why) {
        assert!(why.contains("the trial of candidates gave up"), "{why}");
    }
}

#[test]
fn a_communicator_lives_on_whatever_a_kernel_that_keeps_most_sms_makes_of_a_trial() {
    for world in both_ways(2) {
        beside(&world, Taken::most, Tuning::Off);
        beside(&world, Taken::most, Tuning::Quick);
    }
}

#[test]
fn a_communicator_lives_on_whatever_a_kernel_that_keeps_all_sms_makes_of_a_trial() {
    for world in both_ways(2) {
        beside(&world, Taken::all, Tuning::Quick);
    }
}
