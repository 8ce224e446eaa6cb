//! The launch path: a checked pipeline, compiled and loaded on a rank's GPU, and the numbers of a checked plan.

mod admit;
mod cells;
mod code;
mod compile;
mod copies;
mod counts;
mod emulate;
mod encoded;
mod everywhere;
mod how;
mod low_latency;
mod maps;
mod parts;
mod place;
mod prepared;
mod ready;
mod tables;
mod tensors;
mod traced;
mod which;
mod workspace;

pub use crate::compares::compile_agree;
pub use crate::low_latency::compile_exchange;
pub(crate) use code::warm;
pub use compile::{compile, compile_all, unoptimised};
pub(crate) use how::How;
pub(crate) use ready::Ready;
pub(crate) use tensors::Placement;
pub use tensors::Tensors;
pub(crate) use workspace::HeapBytes;

use crate::attempt::Attempt;
use crate::communicator::Communicator;
use crate::cuda::{Arguments, Function, LaunchConfig};
use crate::driver::{self, Address, Gpu, Local, Stream, Watch};
use crate::error::Error;
use crate::group::{Entry, Named, Placed};
use crate::jit::Compiler;
use crate::low_latency::Collective;
use crate::machines;
use crate::retire;
use crate::unfinished::Next;
use cells::Cells;
use code::Code;
use counterflow_codegen::diag::Diagnostics;
use counterflow_codegen::kernel::Kernel;
use counterflow_codegen::machine::Machine;
use counterflow_codegen::plan::{COUNTER_LINE, Plan};
use counterflow_codegen::program::{CounterId, TensorId};
use counterflow_codegen::sm90::cta::dependent_launch;
use counterflow_codegen::verify::{Checked, Series};
use counterflow_codegen::warp::{Field, Pipeline};
use counterflow_emitter::{CudaSource, Param, WATCH_BYTES};
use counts::Copies;
use encoded::Maps;
pub(crate) use place::is_alone;
use place::{copies, place, place_slots, scratch_of};
use prepared::AllPrepared;
use std::sync::{Arc, Mutex};
use tables::Tables;

/// Bytes of a kernel's numbers, at most: a parameter block has 4 KiB, and tensor maps take a part of it.
const MOST_NUMBERS: usize = 2048;

/// Words in which a launch counts its finished CTAs.
const FINISHED: usize = 32;

/// Words that are zero: 16 bytes.
const ZEROS: usize = 4;

/// A checked kernel on one rank's GPU, with its counters. A rank's launches run one after another on its stream.
#[derive(Debug)]
pub struct Loaded {
    pipeline: Checked<Pipeline>,
    series: Series,
    code: Code,
    /// Names for its stall records, for as long as it can write one.
    named: Option<Named>,
    /// GPU and stream of its launches, which need the code.
    runs: (Gpu, Stream),
    machine: Machine,
    /// Counter cells, the same in every launch.
    cells: Cells,
    placed: Arc<Placed>,
    /// Scratch tensors, by address.
    scratch: Tensors,
    /// Words in which a launch counts its finished CTAs; of an exchange of low latency, a word for each CTA that counts launches.
    finished: Local<u32>,
    /// Element that a launch reads of tensors without elements.
    zeros: Local<u32>,
    /// Constants that every launch needs.
    heap: Address,
    stride: u64,
    watch: Watch,
    /// Bytes of the watch, as a kernel takes it.
    watch_bytes: [u8; WATCH_BYTES],
    /// Most CTAs of a launch.
    sms: u32,
    /// True if launches may start before the previous one has ended (programmatic dependent launch).
    dependent_launch: bool,
    /// Tensors that such launches load before that end.
    loaded_early: Vec<TensorId>,
    /// Tensors that launches write, or peers in theirs.
    written: Vec<TensorId>,
    /// True if the caller vouches for what else is in the rank's stream.
    early: bool,
    /// True if the host moves data.
    copies: bool,
    state: Mutex<State>,
}

/// State from launch to launch. It is locked during a launch, since a rank's launches have an order.
#[derive(Debug)]
struct State {
    prepared: AllPrepared,
    maps: Maps,
    tables: Tables,
    copies: Copies,
}

impl Loaded {
    /// Compiles and loads on this rank's GPU, with counters for every launch of a series. Collective, as the counters are
    /// in the heap, unless the kernel has neither counters nor scratch: that a rank loads by itself. Without a compiler it
    /// finds this machine's; for an emulated GPU nothing is compiled.
    ///
    /// # Errors
    /// What the compiler or the driver refuses; a heap that is full; a series of another kernel.
    pub fn load<'c>(
        rank: &Communicator,
        compiler: impl Into<Option<&'c Compiler>>,
        pipeline: &Checked<Pipeline>,
        series: &Series,
    ) -> Result<Loaded, Error> {
        Loaded::load_beside(rank, compiler, (pipeline, series), None, "")
    }

    /// As [`Loaded::load`], of the exchange of few rows that takes the place of the schedule's kernel, if it is given.
    ///
    /// # Errors
    /// As [`Loaded::load`]; [`Error::Usage`] and [`Error::TooLarge`] if the schedule is not that exchange, or not of few rows.
    pub fn load_exchange<'c>(
        rank: &Communicator,
        compiler: impl Into<Option<&'c Compiler>>,
        pipeline: &Checked<Pipeline>,
        series: &Series,
        collective: Option<Collective>,
    ) -> Result<Loaded, Error> {
        Loaded::load_beside(rank, compiler, (pipeline, series), collective, "")
    }

    /// As [`Loaded::load_exchange`], of an op that has launches of up to so many rows each, which all ranks must have, too.
    pub(crate) fn load_beside<'c>(
        rank: &Communicator,
        compiler: impl Into<Option<&'c Compiler>>,
        (pipeline, series): (&Checked<Pipeline>, &Series),
        collective: Option<Collective>,
        rows: &str,
    ) -> Result<Loaded, Error> {
        series.is_of(&pipeline.kernel).map_err(Diagnostics::from)?;
        let alone = is_alone(&pipeline.kernel);
        let compiler = compiler.into();
        let made = match collective {
            None => Code::load(rank, compiler, pipeline),
            Some(collective) => {
                let kernel = &pipeline.kernel;
                series
                    .plan(series.most())
                    .map_err(Error::from)
                    .and_then(|largest| {
                        Code::low_latency(rank, compiler, collective, (kernel, &largest))
                    })
            }
        };
        let code = made.and_then(|code| {
            let waits = rank.world() > 1 && !pipeline.kernel.counters.is_empty();
            let loaded = if waits {
                rank.loads_compares(compiler)
            } else {
                Ok(())
            };
            loaded.map(|()| code)
        });
        // What only this rank cannot do, its peers would wait for.
        let code = code.map_err(|error| match alone {
            true => error,
            false => rank.refuses(error),
        })?;
        let copies = copies(&pipeline.kernel);
        let mut limit = rank.patience();
        if copies && rank.world() > 1 {
            rank.copies().map_err(|error| rank.refuses(error))?;
            // Kernels that wait for copies have a longer limit, so that the copies' stream reports a stall.
            limit += limit / 4;
        }
        let (cells, placed) = match &code {
            Code::LowLatency { largest, .. } => place_slots(rank, series, (largest, rows))?,
            Code::Cuda { .. } | Code::Emulated { .. } => place(rank, series, rows)?,
        };
        let mut scratch = Tensors::new();
        if collective.is_none() {
            for (tensor, (range, _)) in scratch_of(&pipeline.kernel).zip(&placed.scratch) {
                scratch.range(tensor, range, rank.rank());
            }
        }
        let (watch, named) = rank.watch(
            placed.number,
            code.names(pipeline, &cells),
            limit,
            cells.count(),
        );
        let made = || {
            // The driver may let the stream wait for memory that another stream frees.
            let _turn = rank.own().settled()?;
            let zeros = |words| Local::zeros(rank.own_stream(), words);
            let tables = Tables::new(rank, cells.end() as usize)?;
            let machine = machines::machine(rank.gpu().name())?;
            let words = match collective {
                None => FINISHED,
                // As many CTAs as a launch may have.
                Some(_) => series.sms() as usize,
            };
            Ok((zeros(words)?, zeros(ZEROS)?, tables, machine))
        };
        let (finished, zeros, tables, machine) = made().inspect_err(|error: &Error| {
            // The others have it by now, and will launch it.
            let name = &pipeline.kernel.name;
            if !alone {
                rank.ended_early(&format!("it does not load {name}: {error}"));
            }
        })?;
        Ok(Loaded {
            machine,
            finished,
            zeros,
            heap: rank.heap(),
            stride: rank.stride(),
            watch_bytes: watch.bytes(),
            watch,
            named: Some(named),
            sms: rank.sms(&pipeline.kernel),
            copies: copies && rank.world() > 1,
            state: Mutex::new(State {
                prepared: AllPrepared::default(),
                maps: Maps::default(),
                tables,
                copies: Copies::new(&pipeline.kernel, (cells.count() * rank.world()) as usize),
            }),
            dependent_launch: pipeline.dependent_launch && collective.is_none(),
            loaded_early: match collective {
                None => dependent_launch::loaded_early(&pipeline.kernel),
                Some(_) => Vec::new(),
            },
            written: written(&pipeline.kernel),
            early: false,
            pipeline: pipeline.clone(),
            series: series.clone(),
            code,
            runs: (rank.gpu().clone(), rank.own_stream().clone()),
            cells,
            placed,
            scratch,
        })
    }

    /// Sets all bytes of this rank's scratch, in the order of its stream. No launch needs it; tests that a launch reads
    /// only what it wrote do. No kernel of the communicator may run.
    ///
    /// # Errors
    /// What the driver refuses.
    pub fn fill_scratch(&self, rank: &Communicator, byte: u8) -> Result<(), Error> {
        if self.slots().is_some() {
            // What is not zero there has come.
            return Ok(());
        }
        self.placed.scratch.iter().try_for_each(|(range, _)| {
            driver::fill(
                rank.own_stream(),
                range.on(rank.rank()),
                byte,
                range.bytes(),
            )
        })
    }

    /// The machine code's function. None on an emulated GPU.
    pub fn function(&self) -> Option<&Function> {
        self.code.function()
    }

    /// Rejects a plan that would hang on this GPU.
    pub(crate) fn admit(&self, rank: &Communicator, plan: &Plan) -> Result<(), Error> {
        admit::admit(rank, &self.pipeline, plan)
    }

    /// True if a launch waits for other ranks.
    pub(crate) fn waits(&self, rank: &Communicator) -> bool {
        rank.world() > 1 && !self.pipeline.kernel.counters.is_empty()
    }

    /// Entry of a launch in the ledger: all that must be the same on every rank. None for a launch that no peer waits
    /// for.
    pub(crate) fn entry(
        &self,
        rank: &Communicator,
        plan: &Plan,
        tensors: &Tensors,
    ) -> Option<Entry> {
        let kernel = &self.pipeline.kernel;
        self.waits(rank).then(|| {
            let entry = Entry::new(&kernel.name, self.placed.number, plan.hash, plan.shape.m);
            let ids = self.compared();
            let shared = ids.filter_map(|id| Some((id, self.given(tensors, id)?.shared?)));
            shared.fold(
                match &self.code {
                    Code::LowLatency { .. } => {
                        entry.at("rows", self.slots().map_or(0, |slots| slots.offset()))
                    }
                    Code::Cuda { .. } | Code::Emulated { .. } => entry.at(
                        "counters",
                        self.placed.cells.as_ref().map_or(0, |cells| cells.offset()),
                    ),
                },
                |entry, (id, base)| entry.at(self.name(id), base.since(self.heap)),
            )
        })
    }

    /// Entry of a launch of no rows, which has no plan and whose tensors nobody reads.
    pub(crate) fn entry_of_no_rows(&self, rank: &Communicator) -> Option<Entry> {
        let name = &self.pipeline.kernel.name;
        let entry = || Entry::new(name, self.placed.number, 0, 0);
        self.waits(rank).then(entry)
    }

    /// Launches on the rank's stream and returns at once. [`Communicator::synchronize`] reports how it ended.
    ///
    /// # Errors
    /// [`Error::Usage`] on another rank than it was loaded for; a plan of another series; [`Error::Mismatch`] if a peer's
    /// launch of the same number differs; a plan or
    /// tensors of another world or GPU; [`Error::Environment`] for what would hang; [`Error::Stalled`] or
    /// [`Error::Aborted`] if the communicator has ended. What is refused before anything was enqueued ends nothing.
    pub fn launch(
        &self,
        rank: &Communicator,
        plan: &Checked<Plan>,
        tensors: &Tensors,
    ) -> Result<(), Error> {
        self.launch_before(rank, plan, tensors, None)
    }

    /// As [`Loaded::launch`], of a launch that `next` follows in the rank's stream with nothing between them: that one may begin
    /// while this one waits for peers.
    ///
    /// # Errors
    /// As [`Loaded::launch`].
    pub fn launch_before(
        &self,
        rank: &Communicator,
        plan: &Checked<Plan>,
        tensors: &Tensors,
        next: Option<(&Loaded, &Plan)>,
    ) -> Result<(), Error> {
        rank.alive()?;
        let current = rank.gpu().current()?;
        let _turn = rank.turn(current)?;
        let attempt = Attempt::new(rank);
        // Nobody records a stream that nobody has.
        let records = rank.has_lent() && current.is_capturing(rank.own_stream());
        let how = How {
            attempt: &attempt,
            current,
            stream: rank.own_stream(),
            early: self.early || !rank.has_lent(),
            unfinished: (!records).then(|| rank.own().unfinished()),
            follower: next.map_or(0, |next| follower(rank, 0, plan, next)),
            priority: 0,
            keeps: None,
            records,
        };
        let launch = || {
            let mut ready = self.ready(rank, how, plan, tensors)?;
            ready.write()?;
            ready.enqueue(None)
        };
        let launched = launch();
        let waits = !how.records && self.waits(rank);
        attempt.told(waits, &self.pipeline.kernel.name, launched)
    }

    /// Rejects another rank than it was loaded for: its counters and its scratch are that rank's. Each rank has a stream
    /// of its own.
    fn is_of(&self, rank: &Communicator) -> Result<(), Error> {
        let (_, stream) = &self.runs;
        if stream.is(rank.own_stream()) {
            return Ok(());
        }
        Err(Error::Usage {
            what: format!(
                "a launch on rank {} of what another rank loaded",
                rank.rank()
            ),
            legal: "each rank launches what it loaded".into(),
        })
    }

    /// Lets launches start early although the rank's stream was lent. The condition is that of
    /// [`OpBuilder::pdl_after_foreign_kernels`](crate::OpBuilder::pdl_after_foreign_kernels).
    pub fn pdl_after_foreign_kernels(mut self) -> Loaded {
        self.early = true;
        self
    }

    /// Launch parameters of a plan.
    fn grid(
        &self,
        (rank, how): (&Communicator, &How<'_>),
        plan: &Plan,
        threads: u32,
        tensors: &Tensors,
    ) -> LaunchConfig {
        let (kernel, ctas) = (&self.pipeline.kernel, plan.grid.gemm + plan.grid.comm);
        // An edge of a graph is an ordinary one, which every library that reads it knows, unless something is gained.
        let asked = !how.records || !self.loaded_early.is_empty();
        let next = Next {
            early: how.early && asked && self.early_ctas(rank, plan).is_some(),
            only_beside: !dependent_launch::chosen(kernel, ctas, rank.gpu().sms()),
            ctas,
            // Of others nothing waits any more when the next launch comes.
            room: (self.waits(rank) && dependent_launch::lets_the_next_come(kernel))
                .then_some(how.follower),
        };
        let early = how.unfinished.is_some_and(|unfinished| {
            let bytes = |tensor| self.given(tensors, tensor).map(Placement::bytes);
            let loaded = self.loaded_early.iter().copied().filter_map(bytes);
            let written = self.written.iter().copied().filter_map(bytes);
            unfinished.begins_early(next, loaded, written)
        });
        LaunchConfig {
            dependent_launch: early,
            priority: how.priority,
            ..LaunchConfig::of(ctas, threads)
        }
    }

    /// CTAs of a launch that begins early beside one of this rank's that waits for peers, if it may.
    pub(crate) fn early_ctas(&self, rank: &Communicator, plan: &Plan) -> Option<u32> {
        let ctas = plan.grid.gemm + plan.grid.comm;
        let kernel = &self.pipeline.kernel;
        let chosen = dependent_launch::chosen_beside(kernel, ctas, rank.gpu().sms());
        (self.dependent_launch && chosen).then_some(ctas)
    }

    /// Rejects a plan whose ranks or CTAs are not those of this communicator.
    fn fits(&self, rank: &Communicator, plan: &Plan) -> Result<(), Error> {
        let (ctas, sms) = (plan.grid.gemm + plan.grid.comm, self.sms);
        if plan.geometry.world != rank.world() || ctas > sms {
            return Err(Error::Usage {
                what: format!(
                    "a plan for {} ranks and {ctas} CTAs on {} ranks of {sms} SMs",
                    plan.geometry.world,
                    rank.world(),
                ),
                legal: "plan for this communicator and `Communicator::sms`: all CTAs of a launch run at once".into(),
            });
        }
        Ok(())
    }

    /// The kernel's parameters.
    fn fill(
        &self,
        source: &CudaSource,
        (arguments, maps): (&mut Arguments, &mut Maps),
        rank: &Communicator,
        plan: &Plan,
        tensors: &Tensors,
        arrivals: Address,
    ) -> Result<(), Error> {
        for (place, param) in source.params.iter().enumerate() {
            match param {
                Param::Map { map, partial_shard } => {
                    let (spec, start) = self.map(*map, *partial_shard, rank, plan, tensors)?;
                    arguments.map(maps.encoded(place, spec, start)?);
                }
                Param::EveryCopy { map, partial_shard } => {
                    let copies = self.every_copy(*map, *partial_shard, rank, plan, tensors)?;
                    arguments.bytes(&copies);
                }
                Param::EachRank { map } => {
                    let rows = self.each_rank(*map, rank, plan, tensors)?;
                    arguments.bytes(&rows);
                }
                Param::Plan { bytes, fields } => {
                    let mut numbers = [0; MOST_NUMBERS];
                    for at in fields {
                        let place = &mut numbers[at.offset as usize..][..at.field.bytes() as usize];
                        let value = match at.field {
                            Field::Order(order) => {
                                place.copy_from_slice(&self.pipeline.ordered(
                                    order,
                                    plan,
                                    rank.rank(),
                                ));
                                continue;
                            }
                            Field::Heap => self.heap.to_bytes(),
                            Field::HeapEverywhere => self.heap_everywhere(rank)?.to_bytes(),
                            Field::Stride => self.stride.to_le_bytes(),
                            Field::Counters => self.placed.base.to_le_bytes(),
                            Field::First(counter) => {
                                u64::from(self.cells.at(counter.index())).to_le_bytes()
                            }
                            Field::Arrivals => arrivals.to_bytes(),
                            Field::Finished => self.finished.address().to_bytes(),
                            Field::Vector(tensor) => self.vector(rank, tensor, plan, tensors)?,
                            Field::Size(_)
                            | Field::ShardRows(_)
                            | Field::PartialShard(_)
                            | Field::Me
                            | Field::World
                            | Field::CellRows(_)
                            | Field::Line(_)
                            | Field::LateJoin => {
                                let value =
                                    self.pipeline
                                        .value(at.field, plan, &self.machine, rank.rank());
                                value.unwrap_or(0).to_le_bytes()
                            }
                        };
                        place.copy_from_slice(&value[..place.len()]);
                    }
                    arguments.bytes(&numbers[..*bytes as usize]);
                }
                Param::Watch => arguments.bytes(&self.watch_bytes),
            }
        }
        Ok(())
    }

    /// The GPU is current.
    #[allow(unsafe_code, reason = "the door to the GPU")]
    fn start(
        &self,
        stream: &Stream,
        function: &Function,
        grid: LaunchConfig,
        arguments: &Arguments,
    ) -> Result<(), Error> {
        // SAFETY: pipeline and plan are checked, so the kernel stays inside its tensors, whose sizes were compared with
        // what it needs. Ranks that run the same kernel make all the signals it waits for, and every wait is bounded.
        // The caller keeps the tensors alive until `synchronize`.
        unsafe { function.enqueue(stream.cuda()?, grid, arguments) }
    }

    /// The address of a rank's counter cell.
    fn cell(&self, home: u32, counter: CounterId, cell: u32) -> Address {
        let cell = u64::from(self.cells.at(counter.index()) + cell) * COUNTER_LINE;
        self.heap
            .plus(u64::from(home) * self.stride + self.placed.base + cell)
    }
}

/// Launches may still run: the code stays until they are done, and so do the names of what they wait for.
impl Drop for Loaded {
    fn drop(&mut self) {
        let (gpu, stream) = &self.runs;
        let named = self.named.take();
        match self.code.function() {
            Some(function) => retire::later(gpu, stream, (function.clone(), named)),
            None => retire::later(gpu, stream, named),
        }
    }
}

/// CTAs of a launch `next` that may come while the one before it, of that plan, waits for peers. Where others wait for SMs of the
/// GPU, too, or are left some, both launches must fit into the rest.
pub(crate) fn follower(
    rank: &Communicator,
    left: u32,
    plan: &Plan,
    (next, next_plan): (&Loaded, &Plan),
) -> u32 {
    let early = next.early_ctas(rank, next_plan).unwrap_or(0);
    let both = plan.grid.gemm + plan.grid.comm + early;
    let fits = left == 0 || both + left <= rank.gpu().sms();
    match fits && !rank.shares_gpu() {
        true => early,
        false => 0,
    }
}

/// Tensors that launches of a kernel write, or peers in theirs: all but those that stay as they are.
fn written(kernel: &Kernel) -> Vec<TensorId> {
    let buffers = (0..).map(TensorId).zip(&kernel.buffers);
    let written = buffers.filter(|(_, buffer)| !buffer.usage.is_fixed());
    written.map(|(tensor, _)| tensor).collect()
}
