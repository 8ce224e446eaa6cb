//! GPUs as a device: every rank of checked plans on its GPU, a thread each. Results are compared as the emulator's are.

mod rows;

use crate::communicator::Communicator;
use crate::cpu::Run;
use crate::cuda::Gpu;
use crate::driver::{self, Address, Event, Local};
use crate::error::Error;
use crate::jit::{Compiler, Facts, Probes};
use crate::launch::{Loaded, Tensors};
use crate::user_buffer::UserBuffer;
use counterflow_codegen::plan::Plan;
use counterflow_codegen::program::{AtStart, TensorId};
use counterflow_codegen::region::Span;
use counterflow_codegen::shape::Extent;
use counterflow_codegen::verify::{Checked, Series};
use counterflow_codegen::warp::Pipeline;
use counterflow_emitter::Site;
use counterflow_emulator::{self as interp, Input, Outcome, Output, Policy};
use counterflow_timeline::trace::Recorded;
pub use rows::POISON;
use rows::{pack, transposed, unpack, unpack_shards};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// The ranks of a world on this machine: a GPU each, or all on the first if there are fewer.
///
/// # Errors
/// [`Error::NoDevice`] where there is no GPU.
pub fn ranks(world: u32) -> Result<Vec<Communicator>, Error> {
    if Gpu::count()? >= world {
        Communicator::local(world)
    } else {
        Communicator::loopback(world)
    }
}

/// A kernel's run on GPUs.
#[derive(Debug)]
pub struct Launched<'a> {
    /// Outputs of every launch, to compare.
    pub run: Run<'a>,
    /// Median time of a launch on the slowest rank, one plan after another.
    pub times: Vec<Duration>,
    /// The host's time for one launch of a new plan.
    pub host: Duration,
    /// Resources of the machine code.
    pub facts: Option<Facts>,
}

/// Runs `plans` of a series one after another on `ranks`, with numbers that `seed` determines, then times each of them.
///
/// # Errors
/// What the compiler or driver refuses; [`Error::Stalled`].
///
/// # Panics
/// If a rank's thread panics.
pub fn run<'a, 'c>(
    ranks: &[Communicator],
    compiler: impl Into<Option<&'c Compiler>>,
    pipeline: &Checked<Pipeline>,
    series: &'a Series,
    plans: Vec<&'a Checked<Plan>>,
    seed: u64,
) -> Result<Launched<'a>, Error> {
    let compiler = compiler.into();
    let results = Communicator::each(ranks, |rank| {
        one(rank, compiler, pipeline, series, &plans, seed)
    })?;
    let mut outputs = Vec::new();
    let mut times = vec![Duration::ZERO; plans.len()];
    let (mut host, mut facts) = (Duration::ZERO, None);
    for result in results {
        outputs.extend(result.outputs);
        for (slowest, time) in times.iter_mut().zip(result.times) {
            *slowest = time.max(*slowest);
        }
        host = host.max(result.host);
        facts = result.facts;
    }
    outputs.sort_by_key(|output| (output.launch, output.rank));
    let outcome = Outcome {
        outputs,
        steps: 0,
        policy: Policy::of_seed(seed, 1, 1),
    };
    Ok(Launched {
        run: Run::of(series, plans, seed, outcome),
        times,
        host,
        facts,
    })
}

/// A traced launch, and what it is beside.
#[derive(Debug)]
pub struct TracedLaunch {
    /// The kernel's probes.
    pub sites: Vec<Site>,
    /// Events of each rank, in their order.
    pub ranks: Vec<Recorded>,
    /// Median time of a launch without probes, back to back, on the slowest rank.
    pub plain: Duration,
    /// Median time of the same kernel with probes.
    pub probed: Duration,
}

/// Times launches of `plan` without and with probes, then traces one that starts after a barrier.
///
/// # Errors
/// As [`run`]; [`Error::Usage`] on emulated ranks, which write no events.
///
/// # Panics
/// If a rank's thread panics.
pub fn traced(
    ranks: &[Communicator],
    compiler: &Compiler,
    pipeline: &Checked<Pipeline>,
    series: &Series,
    plan: &Checked<Plan>,
    seed: u64,
) -> Result<TracedLaunch, Error> {
    let probed = compiler.clone().with_probes(Probes {
        trace: true,
        ..Probes::default()
    });
    let results = Communicator::each(ranks, |rank| {
        let once = |compiler: &Compiler| {
            let (loaded, memory, tensors) = load(rank, Some(compiler), pipeline, series, &[plan])?;
            prepare(
                rank,
                pipeline,
                plan,
                (0, seed),
                &memory,
                &mut Room::default(),
            )?;
            let launch = || loaded.launch(rank, plan, &tensors);
            let took = time(rank, launch)?;
            let mut seen = None;
            if compiler.probes().trace {
                // What the launches before wrote is dropped.
                loaded.recorded(rank)?;
                rank.barrier()?;
                launch()?;
                seen = Some((loaded.sites().to_vec(), loaded.recorded(rank)?));
            }
            rank.synchronize()?;
            // No rank frees memory while a peer's kernel may still use it.
            rank.barrier()?;
            Ok::<_, Error>((took, seen))
        };
        Ok((once(compiler)?.0, once(&probed)?))
    })?;
    let mut launch = TracedLaunch {
        sites: Vec::new(),
        ranks: Vec::new(),
        plain: Duration::ZERO,
        probed: Duration::ZERO,
    };
    for (plain, (probed, seen)) in results {
        launch.plain = launch.plain.max(plain);
        launch.probed = launch.probed.max(probed);
        if let Some((sites, events)) = seen {
            launch.sites = sites;
            launch.ranks.push(events);
        }
    }
    Ok(launch)
}

/// Launches on rank `only` alone, while all others have loaded the same kernel. This must end as [`Error::Stalled`].
///
/// # Errors
/// That error, or what went wrong instead.
pub fn run_only<'c>(
    ranks: &[Communicator],
    compiler: impl Into<Option<&'c Compiler>>,
    pipeline: &Checked<Pipeline>,
    series: &Series,
    plan: &Checked<Plan>,
    only: u32,
) -> Result<(), Error> {
    let compiler = compiler.into();
    let told = AtomicBool::new(false);
    Communicator::each(ranks, |rank| {
        let (loaded, memory, tensors) = load(rank, compiler, pipeline, series, &[plan])?;
        prepare(rank, pipeline, plan, (0, 1), &memory, &mut Room::default())?;
        if rank.rank() != only {
            // Who leaves would end the wait that is to end by its limit.
            while !told.load(Ordering::Acquire) && rank.alive().is_ok() {
                std::thread::sleep(Duration::from_millis(1));
            }
            return Ok(());
        }
        let ended = loaded
            .launch(rank, plan, &tensors)
            .and_then(|_| rank.synchronize());
        told.store(true, Ordering::Release);
        ended
    })
    .map(|_| ())
}

struct OneRank {
    outputs: Vec<Output>,
    times: Vec<Duration>,
    host: Duration,
    facts: Option<Facts>,
}

/// A tensor's memory on a rank.
#[derive(Debug)]
pub enum Memory {
    /// Memory that no peer addresses.
    Own(Arc<Local<u8>>),
    /// In the symmetric heap.
    Heap(UserBuffer<u8>),
}

impl Memory {
    /// Zeroed memory; [`Loaded::needs`] says how many bytes, and where. Collective if it is in the heap, where it must
    /// be reserved.
    ///
    /// # Errors
    /// When the GPU's memory is full; as [`Communicator::allocate`].
    pub fn new(
        rank: &Communicator,
        name: &str,
        bytes: u64,
        in_heap: bool,
    ) -> Result<Memory, Error> {
        Ok(if in_heap {
            Memory::Heap(rank.allocate(name, [bytes as usize])?)
        } else {
            Memory::Own(Arc::new(Local::zeros(rank.own_stream(), bytes as usize)?))
        })
    }

    /// Address of the memory.
    pub fn address(&self) -> Address {
        match self {
            Memory::Own(local) => local.address(),
            Memory::Heap(buffer) => buffer.address(),
        }
    }

    /// Sets all bytes, in the order of the rank's stream.
    ///
    /// # Errors
    /// What the driver refuses.
    pub fn fill(&self, byte: u8) -> Result<(), Error> {
        match self {
            Memory::Own(local) => local.fill(byte),
            Memory::Heap(buffer) => buffer.fill(byte),
        }
    }

    /// Writes bytes from the front, in the order of the rank's stream.
    ///
    /// # Errors
    /// What the driver refuses.
    pub fn write(&self, bytes: &[u8]) -> Result<(), Error> {
        match self {
            Memory::Own(local) => local.write(bytes),
            Memory::Heap(buffer) => buffer.write(bytes),
        }
    }

    /// All bytes, once the rank's stream is done.
    ///
    /// # Errors
    /// What the kernels before ended with.
    pub fn read(&self) -> Result<Vec<u8>, Error> {
        match self {
            Memory::Own(local) => local.read(),
            Memory::Heap(buffer) => buffer.read(),
        }
    }

    /// Binds the tensor to this memory, which stays for as long as `tensors`.
    pub fn hold(&self, tensor: TensorId, bytes: u64, tensors: &mut Tensors) {
        match self {
            Memory::Own(local) => tensors.own(tensor, local, bytes),
            Memory::Heap(buffer) => tensors.shared(tensor, buffer),
        }
    }
}

/// The kernel and its tensors on a rank, large enough for every plan. Collective.
fn load(
    rank: &Communicator,
    compiler: Option<&Compiler>,
    pipeline: &Checked<Pipeline>,
    series: &Series,
    plans: &[&Checked<Plan>],
) -> Result<(Loaded, Vec<Memory>, Tensors), Error> {
    let kernel = &pipeline.kernel;
    let ids = (0..kernel.buffers.len()).map(|index| TensorId(index as u16));
    let needs: Vec<(TensorId, u64, bool)> = ids
        .map(|id| {
            let all = plans.iter().map(|plan| Loaded::needs(kernel, plan, id));
            let (bytes, in_heap) = all.max().unwrap_or((0, false));
            (id, bytes, in_heap)
        })
        .collect();
    let heap = needs.iter().filter(|(.., in_heap)| *in_heap);
    let heap: u64 = heap.map(|(_, bytes, _)| bytes + 1024).sum();
    let cells = plans.iter().map(|plan| plan.arrivals.len() as u64 * 128);
    rank.reserve(heap + 2 * cells.max().unwrap_or(0) + (4 << 20))?;
    let loaded = Loaded::load(rank, compiler, pipeline, series)?;
    let (mut memory, mut tensors) = (Vec::new(), Tensors::new());
    for (id, bytes, in_heap) in needs {
        // Scratch is the communicator's.
        let (bytes, in_heap) = match kernel.buffers[id.index()].is_scratch() {
            true => (0, false),
            false => (bytes, in_heap),
        };
        let place = Memory::new(rank, &kernel.buffers[id.index()].name, bytes, in_heap)?;
        place.hold(id, bytes, &mut tensors);
        memory.push(place);
    }
    rank.barrier()?;
    Ok((loaded, memory, tensors))
}

fn one(
    rank: &Communicator,
    compiler: Option<&Compiler>,
    pipeline: &Checked<Pipeline>,
    series: &Series,
    plans: &[&Checked<Plan>],
    seed: u64,
) -> Result<OneRank, Error> {
    let kernel = &pipeline.kernel;
    let (loaded, memory, tensors) = load(rank, compiler, pipeline, series, plans)?;
    let ids = (0..kernel.buffers.len()).map(|index| TensorId(index as u16));
    let ids: Vec<TensorId> = ids
        .filter(|id| kernel.buffers[id.index()].usage.is_left_behind())
        .collect();
    let mut outputs = Vec::new();
    let (mut host, mut room) = (Duration::MAX, Room::default());
    for (launch, plan) in plans.iter().enumerate() {
        prepare(rank, pipeline, plan, (launch, seed), &memory, &mut room)?;
        let start = Instant::now();
        loaded.launch(rank, plan, &tensors)?;
        host = host.min(start.elapsed());
        rank.synchronize()?;
        for id in &ids {
            outputs.push(output(
                rank,
                pipeline,
                plan,
                launch,
                *id,
                &memory[id.index()],
            )?);
        }
    }
    let mut times = Vec::new();
    for plan in plans {
        times.push(time(rank, || loaded.launch(rank, plan, &tensors))?);
    }
    rank.synchronize()?;
    // No rank frees memory while a peer's kernel may still use it.
    rank.barrier()?;
    Ok(OneRank {
        outputs,
        times,
        host,
        facts: loaded
            .function()
            .and_then(|function| function.facts().cloned()),
    })
}

/// Memory of an input's numbers and of their bytes, which one input after another has: to map it costs as much as to fill it.
#[derive(Default)]
struct Room {
    values: Vec<f32>,
    bytes: Vec<u8>,
}

/// Fills the inputs of one launch and what it adds to. Poisons everything else.
fn prepare(
    rank: &Communicator,
    pipeline: &Pipeline,
    plan: &Plan,
    (launch, seed): (usize, u64),
    memory: &[Memory],
    Room { values, bytes }: &mut Room,
) -> Result<(), Error> {
    let mut inputs = interp::uniform(seed);
    for (index, buffer) in pipeline.kernel.buffers.iter().enumerate() {
        let tensor = TensorId(index as u16);
        let to = memory[index].address();
        let held = Loaded::needs(&pipeline.kernel, plan, tensor).0;
        if !buffer.is_scratch() {
            driver::fill(rank.own_stream(), to, POISON, held)?;
        }
        if !buffer.usage.counts_before() {
            continue;
        }
        let rows = match buffer.usage.at_start() {
            AtStart::Shard => plan.geometry.shard(buffer.rows, rank.rank()),
            AtStart::Whole | AtStart::Nothing => plan.geometry.held(buffer, rank.rank()),
        };
        let columns = plan.geometry.size(buffer.columns);
        values.clear();
        values.resize(rows.len() as usize * columns as usize, 0.0);
        let input = Input {
            launch,
            rank: rank.rank(),
            tensor,
            name: &buffer.name,
            rows,
            columns,
        };
        inputs(input, values);
        let pitch = plan.pitch(&pipeline.kernel, tensor) as usize;
        let columns = columns as usize;
        if buffer.mn_major {
            // Every shard is a separate matrix, with a line for each column.
            let shard = plan.geometry.shard_rows(buffer.rows).max(1) as usize;
            let first = rows.start as usize / shard;
            for (index, values) in values.chunks(shard * columns.max(1)).enumerate() {
                let lines = transposed(values, columns);
                pack(
                    &lines,
                    buffer.dtype,
                    (values.len() / columns.max(1), pitch),
                    bytes,
                );
                let start = (first + index) * columns * pitch;
                driver::write(rank.own_stream(), to.plus(start as u64), bytes)?;
            }
        } else {
            pack(values, buffer.dtype, (columns, pitch), bytes);
            let start = u64::from(rows.start) * pitch as u64;
            driver::write(rank.own_stream(), to.plus(start), bytes)?;
        }
    }
    Ok(())
}

fn output(
    rank: &Communicator,
    pipeline: &Pipeline,
    plan: &Plan,
    launch: usize,
    tensor: TensorId,
    memory: &Memory,
) -> Result<Output, Error> {
    let buffer = &pipeline.kernel.buffers[tensor.index()];
    let rows = plan.geometry.held(buffer, rank.rank());
    let columns = plan.geometry.size(buffer.columns) as usize;
    let pitch = plan.pitch(&pipeline.kernel, tensor) as usize;
    let mut values = Vec::new();
    if buffer.usage.is_scale() && buffer.mn_major {
        let bytes = plan.bytes(&pipeline.kernel, tensor) as usize;
        let bytes = driver::read(rank.own_stream(), memory.address(), bytes)?;
        let shard = plan.geometry.shard_rows(buffer.rows).max(1) as usize;
        return Ok(Output {
            launch,
            rank: rank.rank(),
            tensor,
            rows,
            values: unpack_shards(
                &bytes,
                buffer.dtype,
                (rows.len() as usize, shard),
                columns,
                pitch,
            ),
        });
    }
    for slot in 0..buffer.slots(rank.world()) {
        let slot = Span {
            buffer: tensor,
            home: rank.rank() as u16,
            slot: slot as u16,
            rows,
            columns: Extent {
                start: 0,
                end: columns as u32,
            },
        };
        let from = memory
            .address()
            .plus(plan.lines(&pipeline.kernel, &slot).offset);
        let bytes = driver::read(rank.own_stream(), from, rows.len() as usize * pitch)?;
        values.extend(unpack(&bytes, buffer.dtype, columns, pitch));
    }
    Ok(Output {
        launch,
        rank: rank.rank(),
        tensor,
        rows,
        values,
    })
}

/// Median time of a launch among back-to-back groups of them.
fn time(rank: &Communicator, launch: impl Fn() -> Result<(), Error>) -> Result<Duration, Error> {
    const GROUP: u32 = 10;
    const GROUPS: usize = 7;
    let mut times = Vec::new();
    for group in 0..=GROUPS {
        rank.barrier()?;
        let start = Event::record(rank.own_stream())?;
        for _ in 0..GROUP {
            launch()?;
        }
        let end = Event::record(rank.own_stream())?;
        rank.synchronize()?;
        // The first group is a warm-up.
        if group > 0 {
            times.push(end.since(&start)? / GROUP);
        }
    }
    times.sort_unstable();
    Ok(times.get(times.len() / 2).copied().unwrap_or_default())
}
