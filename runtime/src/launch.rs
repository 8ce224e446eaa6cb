//! The one launch path: a checked pipeline, compiled and loaded on a rank's GPU, and the numbers of a checked plan.

use crate::communicator::{Awaited, Communicator, Names};
use crate::cuda::{Address, Arguments, Function, Grid, Local, MapSpec, Module, TensorMap, write};
use crate::error::Error;
use crate::jit::{Compiled, Compiler, Source, Target};
use crate::user_buffer::UserBuffer;
use counterflow_codegen::cuda::{self as text, CudaSource, Param};
use counterflow_codegen::kernel::{DimId, Kernel, OpKind, visit};
use counterflow_codegen::model::Machine;
use counterflow_codegen::pipeline::{Field, Map, Pipeline, Values, View};
use counterflow_codegen::plan::Plan;
use counterflow_codegen::program::{CounterId, TensorId, TensorKind};
use counterflow_codegen::shape::{Geometry, Item};
use counterflow_codegen::verify::Checked;
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

/// Bytes of a counter cell: a line of its own, with its base beside it.
const CELL: u64 = 128;

/// Compiles a checked pipeline's text, or takes it from the cache.
///
/// # Errors
/// [`Error::Compile`], with the text around what the compiler refuses.
pub fn compile(compiler: &Compiler, source: &CudaSource) -> Result<Compiled, Error> {
    let target = Target::from_name(source.arch).ok_or_else(|| Error::Usage {
        what: format!("machine code for {:?}", source.arch),
        legal: "sm90: the emulator's kernels have none".into(),
    })?;
    let prelude = text::prelude();
    let headers = [(text::PRELUDE, prelude.as_str())];
    compiler.compile(
        &Source::new(&source.entry, &source.text).with(&headers),
        target,
    )
}

/// A checked kernel on one rank's GPU, with its counters. Launches of a rank run one after another on its stream.
#[derive(Debug)]
pub struct Loaded {
    pipeline: Checked<Pipeline>,
    source: CudaSource,
    function: Function,
    names: Arc<Names>,
    /// The first cell of each counter among a rank's cells: the same in every launch, whatever its shape.
    first: Vec<u32>,
    cells: UserBuffer<u64>,
    arrivals: Local<u32>,
    finished: Local<u32>,
    /// The plan whose arrivals are on the GPU.
    current: Mutex<Option<u64>>,
    /// Plans that all ranks were seen to launch.
    agreed: Mutex<BTreeSet<u64>>,
}

/// Where a kernel's tensors are.
#[derive(Clone, Debug, Default)]
pub struct Tensors {
    places: Vec<Option<Place>>,
}

#[derive(Clone, Copy, Debug)]
struct Place {
    /// In this rank's memory.
    own: Address,
    /// In slot 0 of the heap, if it is in the heap.
    shared: Option<Address>,
    bytes: u64,
}

impl Tensors {
    /// None yet.
    pub fn new() -> Tensors {
        Tensors::default()
    }

    fn put(&mut self, tensor: TensorId, place: Place) {
        let index = tensor.index();
        if self.places.len() <= index {
            self.places.resize(index + 1, None);
        }
        self.places[index] = Some(place);
    }

    /// A tensor in memory of this rank alone, so many bytes.
    pub fn local(&mut self, tensor: TensorId, address: Address, bytes: u64) {
        self.put(
            tensor,
            Place {
                own: address,
                shared: None,
                bytes,
            },
        );
    }

    /// A tensor in the heap.
    pub fn shared<T: crate::cuda::Element>(&mut self, tensor: TensorId, buffer: &UserBuffer<T>) {
        self.put(
            tensor,
            Place {
                own: buffer.address(),
                shared: Some(buffer.on(0)),
                bytes: (buffer.len() * size_of::<T>()) as u64,
            },
        );
    }
}

impl Loaded {
    /// Compiles and loads on this rank's GPU, with counters for every plan in `plans` (all that will be launched, or
    /// the largest). Collective: the counters are in the heap.
    ///
    /// # Errors
    /// What the compiler or the driver refuses; a heap that is full.
    pub fn load(
        rank: &Communicator,
        compiler: &Compiler,
        pipeline: &Checked<Pipeline>,
        plans: &[&Checked<Plan>],
    ) -> Result<Loaded, Error> {
        if let Some(role) = pipeline
            .kernel
            .roles
            .iter()
            .find(|role| role.kind.sequential())
        {
            return Err(Error::NotYet {
                what: format!("launching a #[{}] loop on a GPU", role.kind.name()),
                help: "--device cpu runs it; a #[comm] loop moves the same data by CTAs".into(),
            });
        }
        let source = text::emit(pipeline);
        let compiled = compile(compiler, &source)?;
        rank.gpu().must_be_hopper()?;
        let module = Module::load(rank.gpu(), &compiled)?;
        let function = module.function(&source.entry, source.shared_bytes)?;
        let mut first = Vec::new();
        let mut cells = 0;
        for index in 0..pipeline.kernel.counters.len() {
            first.push(cells);
            let counter = CounterId(index as u16);
            cells += plans
                .iter()
                .map(|plan| plan.geometry.counter_cells(counter))
                .max()
                .unwrap_or(0);
        }
        Ok(Loaded {
            names: Arc::new(names(pipeline, &source, &first)),
            cells: rank.allocate((u64::from(cells) * CELL / 8) as usize)?,
            arrivals: Local::zeros(rank.stream(), cells as usize)?,
            finished: Local::zeros(rank.stream(), 32)?,
            current: Mutex::new(None),
            agreed: Mutex::default(),
            pipeline: pipeline.clone(),
            source,
            function,
            first,
        })
    }

    /// What the machine code needs.
    pub fn function(&self) -> &Function {
        &self.function
    }

    /// Bytes a tensor needs on a rank, with what pads its last chunk in the heap; and whether it is in the heap.
    pub fn needs(kernel: &Kernel, plan: &Plan, tensor: TensorId) -> (u64, bool) {
        let buffer = &kernel.buffers[tensor.index()];
        let geometry = &plan.geometry;
        let chunk = u64::from(geometry.chunk_rows(buffer.rows));
        let lines = match buffer.kind {
            // Every chunk is a matrix of its own, a line for each column.
            _ if buffer.rows_contiguous => {
                u64::from(geometry.size(buffer.columns) * geometry.chunks(buffer.rows))
            }
            _ if buffer.chunk_only() => chunk,
            TensorKind::Scratch { .. }
            | TensorKind::Gathered
            | TensorKind::Reduced
            | TensorKind::Scattered => chunk * u64::from(geometry.chunks(buffer.rows)),
            TensorKind::Local | TensorKind::Vector | TensorKind::Out => {
                u64::from(geometry.size(buffer.rows))
            }
        };
        let slots = u64::from(buffer.slots(geometry.world));
        (
            lines * pitch(plan, kernel, tensor) * slots,
            buffer.kind.symmetric(),
        )
    }

    /// Compares a plan with those of the other ranks, the first time this one is asked about it. Collective then;
    /// [`Loaded::launch`] does it where it was not done.
    ///
    /// # Errors
    /// [`Error::Mismatch`] where a rank has another variant, shape or order; [`Error::Stalled`] where one does not come.
    pub fn agree(&self, rank: &Communicator, plan: &Plan) -> Result<(), Error> {
        let mut agreed = self.agreed.lock().unwrap_or_else(PoisonError::into_inner);
        if rank.world() > 1 && !agreed.contains(&plan.hash) {
            rank.agree(plan.hash, plan.shape.m)?;
            agreed.insert(plan.hash);
        }
        Ok(())
    }

    /// Launches on the rank's stream. Returns at once; [`Communicator::synchronize`] tells how it ended.
    ///
    /// # Errors
    /// [`Error::Mismatch`] where the ranks launch different plans for the first time; a plan or tensors of another kernel, world or GPU; [`Error::Stalled`] if a launch before gave up.
    pub fn launch(
        &self,
        rank: &Communicator,
        plan: &Checked<Plan>,
        tensors: &Tensors,
    ) -> Result<(), Error> {
        rank.alive()?;
        self.agree(rank, plan)?;
        let ctas = plan.grid.gemm + plan.grid.comm;
        if plan.geometry.world != rank.world() || ctas > rank.gpu().sms() {
            return Err(Error::Usage {
                what: format!(
                    "a plan for {} ranks and {ctas} CTAs on {} ranks of {} SMs",
                    plan.geometry.world,
                    rank.world(),
                    rank.gpu().sms()
                ),
                legal: "plan for this communicator: all CTAs of a launch run at once".into(),
            });
        }
        let mut arguments = Arguments::new();
        for param in &self.source.params {
            match param {
                Param::Map { map, tail } => {
                    arguments.map(&self.map(
                        self.pipeline.map(*map),
                        *tail,
                        rank,
                        plan,
                        tensors,
                    )?);
                }
                Param::Plan { bytes, fields } => {
                    let mut numbers = vec![0; *bytes as usize];
                    for at in fields {
                        let value = match at.field {
                            Field::Vector(tensor) => self.vector(tensor, plan, tensors)?,
                            field => self.field(field, rank, plan),
                        };
                        let width = if at.field.wide() { 8 } else { 4 };
                        numbers[at.offset as usize..][..width].copy_from_slice(&value[..width]);
                    }
                    arguments.bytes(&numbers);
                }
                Param::Watch => arguments.bytes(&rank.watch()),
            }
        }
        self.expect(rank, plan)?;
        rank.runs(&self.names);
        let grid = Grid {
            ctas,
            threads: self.source.threads,
            cluster: 1,
        };
        self.start(rank, grid, &arguments)
    }

    #[allow(unsafe_code, reason = "the door to the GPU")]
    fn start(&self, rank: &Communicator, grid: Grid, arguments: &Arguments) -> Result<(), Error> {
        // SAFETY: pipeline and plan are checked, so the kernel stays inside its tensors, whose places were compared
        // with what it needs; all it waits for comes from ranks that run the same kernel, and every wait is bounded.
        // That the tensors outlive the launch is the caller's side of `synchronize`.
        unsafe { self.function.launch(rank.stream(), grid, arguments) }
    }

    /// How much arrives at each cell of this rank, put on the GPU in the order of the stream, if it is not there.
    fn expect(&self, rank: &Communicator, plan: &Plan) -> Result<(), Error> {
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        if self.first.is_empty() || *current == Some(plan.hash) {
            return Ok(());
        }
        let mut arrivals = Vec::new();
        for (index, first) in self.first.iter().enumerate() {
            let counter = CounterId(index as u16);
            let scale = self
                .pipeline
                .scale
                .iter()
                .find(|(scaled, _)| *scaled == counter);
            let scale = scale.map_or(1, |(_, by)| {
                by.eval(&Numbers {
                    pipeline: &self.pipeline,
                    plan,
                })
            });
            arrivals.resize(*first as usize, 0);
            for cell in 0..plan.geometry.counter_cells(counter) {
                arrivals.push(plan.arrivals.of(rank.rank() as u16, counter, cell) * scale);
            }
        }
        write(rank.stream(), self.arrivals.address(), &arrivals)?;
        *current = Some(plan.hash);
        Ok(())
    }

    fn map(
        &self,
        map: &Map,
        tail: bool,
        rank: &Communicator,
        plan: &Plan,
        tensors: &Tensors,
    ) -> Result<TensorMap, Error> {
        let kernel = &self.pipeline.kernel;
        let buffer = &kernel.buffers[map.tensor.index()];
        let place = self.place(map.tensor, plan, tensors)?;
        let geometry = &plan.geometry;
        let pitch = pitch(plan, kernel, map.tensor);
        let columns = u64::from(geometry.size(buffer.columns));
        let chunk = u64::from(geometry.chunk_rows(buffer.rows)).max(1);
        let size = u64::from(geometry.size(buffer.rows));
        let held = u64::from(geometry.held(buffer, rank.rank()).len());
        let world = u64::from(geometry.world);
        let chunks = u64::from(geometry.chunks(buffer.rows));
        let (rows, middle, shared) = match map.view {
            View::Flat => (held, 1, false),
            View::Chunks => (chunk, chunks, false),
            View::SharedChunks => (chunk, chunks, true),
            View::SharedSlots => (chunk, u64::from(buffer.slots(geometry.world)), true),
            View::SharedChunk => (chunk, 1, true),
        };
        let mut start = 0;
        let (rows, middle) = match (map.tail, tail) {
            (false, _) => (rows, middle),
            // Full chunks only: the last one's box must not spill over its end.
            (true, false) => (rows, (size / chunk).min(middle)),
            (true, true) => {
                start = size / chunk * chunk * pitch;
                (size % chunk, 1)
            }
        };
        let base = match (shared, place.shared) {
            (false, _) => place.own,
            (true, Some(base)) => base,
            (true, None) => {
                return Err(Error::Usage {
                    what: format!("{} is not in the symmetric heap", buffer.name),
                    legal: "a UserBuffer: peers address it".into(),
                });
            }
        };
        // A map of nothing is legal for TMA's user, not for its encoder: one row that nobody visits.
        let (mut size, mut tile) = ([columns, rows.max(1)], [map.box_columns, map.box_rows]);
        let mut lines = chunk;
        if buffer.rows_contiguous {
            size.reverse();
            tile.reverse();
            lines = columns;
        }
        let spec = MapSpec {
            dtype: buffer.dtype,
            size: [
                size[0],
                size[1],
                middle.max(1),
                if shared { world } else { 1 },
            ],
            stride: [
                pitch,
                lines * pitch,
                if shared { rank.stride() } else { lines * pitch },
            ],
            tile,
        };
        // Where there is no tail, its map is never used and needs only to be legal.
        spec.encode(base.plus(if rows == 0 { 0 } else { start }))
    }

    /// Where a vector is.
    fn vector(&self, tensor: TensorId, plan: &Plan, tensors: &Tensors) -> Result<[u8; 8], Error> {
        let place = self.place(tensor, plan, tensors)?;
        let name = &self.pipeline.kernel.buffers[tensor.index()].name;
        if u64::from_le_bytes(place.own.to_bytes()).is_multiple_of(16) {
            return Ok(place.own.to_bytes());
        }
        Err(Error::Usage {
            what: format!("{name} is at an address that is no multiple of 16"),
            legal: "vectors start on 16 bytes".into(),
        })
    }

    /// A tensor's place, if it has as many bytes as the plan needs.
    fn place(&self, tensor: TensorId, plan: &Plan, tensors: &Tensors) -> Result<Place, Error> {
        let kernel = &self.pipeline.kernel;
        let place = tensors.places.get(tensor.index()).copied().flatten();
        let (needs, _) = Loaded::needs(kernel, plan, tensor);
        place
            .filter(|place| place.bytes >= needs)
            .ok_or_else(|| Error::Usage {
                what: format!(
                    "{} has {} bytes",
                    kernel.buffers[tensor.index()].name,
                    place.map_or(0, |place| place.bytes)
                ),
                legal: format!("{needs} bytes for {}", plan.shape),
            })
    }

    fn field(&self, field: Field, rank: &Communicator, plan: &Plan) -> [u8; 8] {
        let number = |number: u32| u64::from(number).to_le_bytes();
        match field {
            Field::Me => number(rank.rank()),
            Field::First(counter) => number(self.first[counter.index()]),
            Field::Join => number(join(&self.pipeline, plan)),
            Field::Heap => rank.heap().to_bytes(),
            Field::Stride => rank.stride().to_le_bytes(),
            Field::Counters => self.cells.offset().to_le_bytes(),
            Field::Arrivals => self.arrivals.address().to_bytes(),
            Field::Finished => self.finished.address().to_bytes(),
            Field::Size(_)
            | Field::ChunkRows(_)
            | Field::Tail(_)
            | Field::World
            | Field::Vector(_)
            | Field::CellRows(_) => number(
                Numbers {
                    pipeline: &self.pipeline,
                    plan,
                }
                .field(field),
            ),
        }
    }
}

/// What stall records of this kernel mean.
fn names(pipeline: &Pipeline, source: &CudaSource, first: &[u32]) -> Names {
    let kernel = &pipeline.kernel;
    let barriers = source.waits.len() - first.len();
    let waits = source.waits.iter().enumerate().map(|(what, name)| {
        let counter = what.checked_sub(barriers);
        let mut at = None;
        for role in kernel.roles.iter().filter(|_| counter.is_some()) {
            visit(&role.body, &mut |op| {
                if let OpKind::Wait { cells, .. } = &op.kind
                    && Some(cells.counter.index()) == counter
                {
                    let loc = kernel.loc(op.id);
                    at.get_or_insert_with(|| format!("{}:{}", loc.file(), loc.line()));
                }
            });
        }
        Awaited {
            name: name.clone(),
            first: counter.map_or(0, |counter| first[counter]),
            at,
        }
    });
    Names {
        roles: source.roles.clone(),
        waits: waits.collect(),
    }
}

/// Bytes from a row to the next, or from a column where rows are contiguous.
fn pitch(plan: &Plan, kernel: &Kernel, tensor: TensorId) -> u64 {
    let buffer = &kernel.buffers[tensor.index()];
    let given = plan.shape.ld.get(&buffer.name).copied();
    let elements = given.unwrap_or_else(|| plan.geometry.contiguous(buffer));
    u64::from(elements) * u64::from(buffer.dtype.bytes())
}

/// Waves of tiles that the GEMM's own CTAs do while the others still move data.
fn join(pipeline: &Pipeline, plan: &Plan) -> u32 {
    let machine = Machine::h200();
    let kernel = &pipeline.kernel;
    let geometry = &plan.geometry;
    let pushed: f64 = kernel
        .buffers
        .iter()
        .filter(|buffer| buffer.kind == TensorKind::Gathered)
        .map(|buffer| {
            f64::from(geometry.chunk_rows(buffer.rows))
                * f64::from(geometry.size(buffer.columns))
                * f64::from(buffer.dtype.bytes())
                * f64::from(geometry.world - 1)
        })
        .sum();
    let rate = machine
        .link_push
        .min(machine.link_push_cta * f64::from(plan.grid.comm.max(1)));
    let k = kernel
        .dims
        .iter()
        .position(|dim| dim.name == "k")
        .map_or(0, |at| geometry.size(DimId(at as u16)));
    let tile = pipeline.tile;
    let flop = 2.0 * f64::from(tile.rows) * f64::from(tile.columns) * f64::from(k.max(1));
    let wave = flop * f64::from(machine.sms) / machine.flops_of(pipeline.dtype);
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a small positive count"
    )]
    let waves = (pushed / rate / wave).ceil() as u32;
    waves
}

/// A plan's numbers, for expressions that depend on no rank.
struct Numbers<'a> {
    pipeline: &'a Pipeline,
    plan: &'a Plan,
}

impl Numbers<'_> {
    fn geometry(&self) -> &Geometry {
        &self.plan.geometry
    }
}

impl Values for Numbers<'_> {
    fn var(&self, name: &str) -> u32 {
        let found = self.pipeline.lets.iter().find(|(known, _)| known == name);
        found.map_or(0, |(_, value)| value.eval(self))
    }

    fn field(&self, field: Field) -> u32 {
        let geometry = self.geometry();
        match field {
            Field::Size(dim) => geometry.size(dim),
            Field::ChunkRows(dim) => geometry.chunk_rows(dim),
            Field::Tail(dim) => {
                let (size, chunk) = (geometry.size(dim), geometry.chunk_rows(dim).max(1));
                if size.is_multiple_of(chunk) {
                    geometry.world
                } else {
                    size / chunk
                }
            }
            Field::World => geometry.world,
            // Of the largest launch: cells of a tile stay where they are when M changes.
            Field::CellRows(partition) => {
                let cell = |chunk, row| {
                    geometry.cell(
                        partition,
                        Item {
                            chunk,
                            row,
                            column: 0,
                        },
                    )
                };
                cell(1, 0) / cell(0, 1).max(1)
            }
            Field::Me
            | Field::First(_)
            | Field::Join
            | Field::Heap
            | Field::Stride
            | Field::Counters
            | Field::Arrivals
            | Field::Finished
            | Field::Vector(_) => 0,
        }
    }

    fn rows_of(&self, dim: DimId, chunk: u32) -> u32 {
        self.geometry().chunk(dim, chunk).len()
    }

    fn block(&self) -> (u32, u32) {
        (0, self.plan.grid.gemm + self.plan.grid.comm)
    }

    fn within(&self) -> u32 {
        0
    }
}
