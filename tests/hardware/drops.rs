//! Drops and allocations beside kernels that run: nothing waits for them, and nothing of theirs is given out or cleared.

use crate::case::{self, Case};
use crate::fine;
use crate::gpus::{World, both_ways, here, loopback, turn};
use crate::host::pulling;
use crate::op::{Operands, SIZE, built, right};
use crate::queues::apart;
use crate::right::KINDS;
use counterflow::codegen::program::TensorId;
use counterflow::driver::{Event, Local};
use counterflow::jit::Compiler;
use counterflow::launch::{Loaded, Tensors};
use counterflow::{Communicator, Error, Shape, UserBuffer, schedules};
use cudarc::driver::sys;
use std::time::{Duration, Instant};

const M: usize = 512;
const N: usize = 256;
const K: usize = 256;

/// A product of small whole numbers, and its memory on a rank.
struct Product {
    loaded: Loaded,
    x: UserBuffer<u16>,
    w: Local<u16>,
    y: Local<u16>,
}

fn bf16(value: usize) -> u16 {
    ((value as f32).to_bits() >> 16) as u16
}

fn case(world: &World) -> Case {
    let variant = case::variant(2, KINDS[0]);
    let shape = [Shape::new(M as u32, N as u32, K as u32)];
    Case::new(&schedules::ag_gemm(), &variant, &shape, world.sharing)
}

impl Product {
    fn new(rank: &Communicator, compiler: &Compiler, case: &Case) -> Result<Product, Error> {
        rank.reserve(16 << 20)?;
        let product = Product {
            loaded: Loaded::load(rank, compiler, &case.pipeline, &case.series)?,
            x: rank.allocate("x", [M, K])?,
            w: Local::of(
                rank.stream(),
                &(0..N * K).map(|at| bf16(at % 5)).collect::<Vec<_>>(),
            )?,
            y: Local::zeros(rank.stream(), M * N)?,
        };
        let x: Vec<u16> = (0..M * K).map(|at| bf16(at % 3)).collect();
        product.x.write(&x)?;
        Ok(product)
    }

    fn launch(&self, rank: &Communicator, case: &Case) -> Result<(), Error> {
        let mut tensors = Tensors::new();
        tensors.shared(TensorId(0), &self.x);
        // SAFETY: they are freed in the order of the rank's stream.
        unsafe {
            tensors.local(TensorId(1), self.w.address(), self.w.len() as u64 * 2);
            tensors.local(TensorId(2), self.y.address(), self.y.len() as u64 * 2);
        }
        self.loaded.launch(rank, &case.plans[0], &tensors)
    }
}

/// Work for a good part of a second, so that what a peer launches meanwhile waits for this rank.
fn busy(rank: &Communicator) -> Result<Local<u8>, Error> {
    let memory = Local::zeros(rank.stream(), 1 << 30)?;
    (0..600).try_for_each(|_| memory.fill(1))?;
    Ok(memory)
}

#[test]
fn what_is_dropped_under_a_running_kernel_is_neither_given_out_nor_cleared() {
    for world in both_ways(2) {
        let (compiler, case) = (fine(Compiler::find()), case(&world));
        fine(Communicator::each(&world.ranks, |rank| {
            let product = Product::new(rank, &compiler, &case)?;
            product.launch(rank, &case)?;
            rank.synchronize()?;
            let right = product.y.read()?;
            product.y.fill(0xff)?;
            rank.barrier()?;
            let _work = (rank.rank() == 1).then(|| busy(rank)).transpose()?;
            product.launch(rank, &case)?;
            let end = Event::record(rank.stream())?;
            let Product {
                loaded,
                x,
                w: _w,
                y,
            } = product;
            let offset = x.offset();
            drop((loaded, x));
            rank.reserve(64 << 20)?;
            let again: UserBuffer<u16> = rank.allocate("again", [M, K])?;
            assert!(!end.is_done()?, "allocating waited for a kernel");
            assert_ne!(
                again.offset(),
                offset,
                "memory of a running kernel was given out"
            );
            rank.synchronize()?;
            assert!(y.read()? == right, "the kernel's memory was changed");
            assert!(again.read()?.iter().all(|value| *value == 0));
            rank.barrier()?;
            let lowest = offset.min(again.offset());
            drop(again);
            rank.barrier()?;
            let last: UserBuffer<u16> = rank.allocate("last", [M, K])?;
            assert!(
                last.offset() <= lowest,
                "what nothing uses was not given out"
            );
            rank.barrier()
        }));
        println!("  drops under a running kernel: {}", world.told());
    }
}

#[test]
fn memory_is_cleared_before_a_peer_writes_it() {
    for world in both_ways(2) {
        fine(Communicator::each(&world.ranks, |rank| {
            rank.reserve(4 << 20)?;
            for round in 0..200u64 {
                // One rank's clearing is late.
                let _work = (u64::from(rank.rank()) == round % 2)
                    .then(|| {
                        let memory = Local::<u8>::zeros(rank.stream(), 64 << 20)?;
                        (0..8).try_for_each(|_| memory.fill(1))?;
                        Ok::<_, Error>(memory)
                    })
                    .transpose()?;
                let buffer: UserBuffer<u64> = rank.allocate("buffer", [1000])?;
                buffer.write_on(1 - rank.rank(), &[round + 1; 1000])?;
                rank.stream().synchronize()?;
                rank.barrier()?;
                assert!(buffer.read()?.iter().all(|value| *value == round + 1));
                rank.barrier()?;
            }
            Ok(())
        }));
    }
}

#[test]
fn a_communicator_that_is_dropped_does_not_wait_for_another_one() {
    let Some(world) = loopback(2) else { return };
    let (compiler, case) = (fine(Compiler::find()), case(&world));
    let other = fine(Communicator::loopback(2));
    let dropped = fine(Communicator::each(&world.ranks, |rank| {
        let product = Product::new(rank, &compiler, &case)?;
        rank.synchronize()?;
        rank.barrier()?;
        let _work = (rank.rank() == 1).then(|| busy(rank)).transpose()?;
        product.launch(rank, &case)?;
        let end = Event::record(rank.stream())?;
        rank.barrier()?;
        Ok((product, end, _work))
    }));
    drop(other);
    let ended: Vec<bool> = dropped
        .iter()
        .map(|(_, end, _)| fine(end.is_done()))
        .collect();
    assert_eq!(ended, [false, false], "a drop waited for kernels of others");
    fine(Communicator::each(&world.ranks, |rank| rank.synchronize()));
}

#[test]
fn ten_thousand_rounds_of_buffers_and_hundreds_of_communicators_leave_nothing() {
    let Some(world) = loopback(2) else { return };
    let free = || {
        let gpu = fine(world.ranks[0].gpu().cuda());
        gpu.context().mem_get_info().expect("a driver").0
    };
    fine(Communicator::each(&world.ranks, |rank| {
        rank.reserve(64 << 20)
    }));
    fine(Communicator::loopback(2).map(drop));
    let before = free();
    fine(Communicator::each(&world.ranks, |rank| {
        for round in 0..10_000 {
            let buffer = rank.allocate::<u8>("buffer", [(1 + round % 7) << 20])?;
            buffer.fill(round as u8)?;
        }
        rank.synchronize()
    }));
    for _ in 0..300 {
        let ranks = fine(Communicator::loopback(2));
        fine(Communicator::each(&ranks, |rank| {
            rank.reserve(32 << 20)?;
            rank.allocate::<u8>("buffer", [16 << 20])?.fill(1)
        }));
    }
    let after = free();
    assert!(
        before <= after + (64 << 20),
        "{before} bytes were free, and now {after}"
    );
}

/// Communicators of two ranks that share a GPU, each made, used for a buffer and dropped. It counts bytes of the GPU that
/// are not free, the process's threads and its open files.
#[test]
#[ignore = "a minute of a GPU: run it alone, --ignored --exact"]
fn ten_thousand_communicators_leave_nothing() {
    const ROUNDS: usize = 10_000;
    // Most of a round is the driver's: it reserves addresses, maps memory, makes streams and events.
    const MOST: Duration = Duration::from_secs(55);
    let Some(world) = loopback(1) else { return };
    let held = || {
        let gpu = fine(world.ranks[0].gpu().cuda());
        let (free, all) = gpu.context().mem_get_info().expect("a driver");
        let count = |folder: &str| std::fs::read_dir(folder).expect("Linux").count();
        [all - free, count("/proc/self/task"), count("/proc/self/fd")]
    };
    let round = |round: usize| {
        let ranks = fine(Communicator::on(&[0, 0], Some(4 << 20)));
        for (rank, other) in [(0, 1), (1, 0)] {
            fine(ranks[rank].zeros::<u8>([1, 1 + round % 4096]).map(drop));
            assert_eq!(ranks[other].world(), 2);
        }
        if round.is_multiple_of(100) {
            fine(Communicator::each(&ranks, |rank| {
                rank.reserve(2 << 20)?;
                let buffer = rank.allocate::<u8>("buffer", [64 << 10])?;
                buffer.fill(round as u8)?;
                let right = buffer.read()?.iter().all(|byte| *byte == round as u8);
                assert!(right, "round {round}");
                rank.barrier()
            }));
        }
    };
    (0..ROUNDS / 10).for_each(round);
    let (before, start) = (held(), Instant::now());
    let mut made = ROUNDS / 10;
    while made < ROUNDS && start.elapsed() < MOST {
        round(made);
        made += 1;
    }
    let after = held();
    println!(
        "  {made} communicators in {:.1?}: held {before:?}, then {after:?}",
        start.elapsed()
    );
    assert!(after[0] <= before[0] + (16 << 20), "bytes of the GPU");
    assert!(after[1..] <= before[1..], "threads or files");
    assert_eq!(made, ROUNDS, "too slow to count");
}

/// Whether somebody in this process has the first GPU's context.
fn is_open() -> bool {
    let (mut flags, mut open) = (0, 0);
    // SAFETY: the driver was started, and both places are ours.
    let code = unsafe { sys::cuDevicePrimaryCtxGetState(0, &raw mut flags, &raw mut open) };
    assert_eq!(code, sys::CUresult::CUDA_SUCCESS);
    open != 0
}

/// Whether nobody has it after a while: a thread that watches copies looks ten times a second whether they are over.
fn closes() -> bool {
    let start = Instant::now();
    while is_open() && start.elapsed() < Duration::from_secs(2) {
        std::thread::sleep(Duration::from_millis(10));
    }
    !is_open()
}

#[test]
#[ignore = "a child process of the next test: nobody else may use the GPU in it"]
fn communicators_alone_on_a_gpu() {
    fine(counterflow::cuda::Gpu::count());
    for round in 0..3 {
        assert!(!is_open(), "round {round}");
        let ranks = fine(Communicator::on(&[0, 0], Some(256 << 20)));
        fine(Communicator::each(&ranks, |rank| {
            let (op, pull) = (built(rank, &schedules::ag_gemm())?, pulling(rank)?);
            let Operands { x, w, mut y } = Operands::new(rank)?;
            x.write(&Operands::given(rank, SIZE[0]))?;
            let graph = rank.capture(|s| {
                let launch = op.on(s).tensor("x", &x).tensor("w", &w);
                launch.tensor("y", &mut y).launch().map(drop)
            })?;
            rank.synchronize()?;
            rank.barrier()?;
            let stream = rank.gpu().stream()?;
            graph.launch(&stream)?;
            let done = pull.on(rank).tensor("x", &x).tensor("w", &w);
            let done = done.tensor("y", &mut y).launch()?;
            done.wait_on(&stream)?;
            right(&y.read()?, SIZE[0]);
            stream.synchronize()?;
            rank.barrier()
        }));
        assert!(is_open());
        drop(ranks);
        assert!(closes(), "round {round}: somebody still has the context");
    }
}

/// With all that was loaded and allocated in it. What comes later takes nothing of it.
#[test]
fn a_gpus_context_goes_with_its_last_communicator() {
    if here().is_none() {
        return;
    }
    let _turn = turn();
    apart("drops::communicators_alone_on_a_gpu", &[]);
}
