//! A built op: a loaded kernel with its scratch, and the plans of its launches.

use super::argument::{self, Needs, Planned};
use super::given::Open;
use super::sizes::Sizes;
use crate::communicator::Communicator;
use crate::driver::Local;
use crate::error::Error;
use crate::family::{Reason, Source, Wired, fits};
use crate::launch::{Loaded, Tensors};
use crate::metrics::Counted;
use crate::proof::Proof;
use counterflow_codegen::kernel::Kernel;
use counterflow_codegen::plan::Plan;
use counterflow_codegen::program::TensorId;
use counterflow_codegen::shape::Shape;
use counterflow_codegen::variant::Variant;
use counterflow_codegen::verify::Checked;
use std::collections::HashMap;
use std::fmt;
use std::marker::PhantomData;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

/// Plans that an op keeps. A serving engine has a handful of batch sizes; a plan is made again in microseconds.
const PLANS: usize = 256;
/// Counts of arrivals that they have together: 16 MiB.
const MOST_ARRIVALS: usize = 1 << 22;

/// A schedule that was chosen, proven, compiled and loaded on one rank, ready to launch. A clone is the same op. `S` says
/// how its launches take their tensors: by name, or by the methods of a schedule's [`Launcher`](super::Launcher).
///
/// ```
/// use counterflow::{Communicator, Dtype, schedules::GemmRsOp};
///
/// Communicator::each(&Communicator::emulated(2)?, |rank| {
///     rank.reserve(2 << 20)?;
///     let op = rank.op_of::<GemmRsOp>().up_to(64, 32, 16).build()?;
///     println!("built for {} as {}", op.most(), op.variant());
///     let y = op.needs("y")?; // half of the rows are added up here
///     assert_eq!((y.shape, y.dtype, y.in_heap), ([32, 32], Dtype::Bf16, false));
///     assert!(op.needs("bias").is_err(), "the schedule has no such tensor");
///     Ok(())
/// })?;
/// # Ok::<(), counterflow::Error>(())
/// ```
pub struct Op<S = ByName>(pub(super) Arc<Inner>, pub(super) PhantomData<fn() -> S>);

impl<S> fmt::Debug for Op<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut op = f.debug_struct("Op");
        op.field("schedule", &self.0.kernel().name)
            .field("most", &format_args!("{}", self.most()));
        let stages = self.0.buckets.iter().flat_map(|bucket| &bucket.stages);
        let variants = stages.map(|stage| stage.proof.variant.to_string());
        op.field("variants", &variants.collect::<Vec<_>>()).finish()
    }
}

impl<S> Clone for Op<S> {
    fn clone(&self) -> Self {
        Op(self.0.clone(), PhantomData)
    }
}

/// Rows, columns and depth of a launch, and its rows beside the product if it states them.
type Stated = ([u32; 3], Option<u32>);

/// Plans of an op's launches, by their sizes.
#[derive(Debug, Default)]
pub(super) struct Plans {
    all: HashMap<Stated, Arc<Planned>>,
    /// The one that was asked for last: most launches are as large as the one before.
    latest: Option<(Stated, Arc<Planned>)>,
}

impl Plans {
    fn get(&mut self, sizes: Stated) -> Option<Arc<Planned>> {
        let latest = self.latest.as_ref();
        if let Some((_, planned)) = latest.filter(|(known, _)| *known == sizes) {
            return Some(planned.clone());
        }
        let planned = self.all.get(&sizes)?.clone();
        self.latest = Some((sizes, planned.clone()));
        Some(planned)
    }

    fn keep(&mut self, sizes: Stated, planned: &Arc<Planned>) {
        let held: usize = self.all.values().map(|known| known.arrivals()).sum();
        if self.all.len() >= PLANS || held > MOST_ARRIVALS {
            self.all.clear();
        }
        self.all.insert(sizes, planned.clone());
        self.latest = Some((sizes, planned.clone()));
    }
}

#[derive(Debug)]
pub(super) struct Inner {
    pub rank: Arc<Communicator>,
    /// By the rows that they are for, the fewest first. There is one at least.
    pub buckets: Vec<Bucket>,
    pub plans: Mutex<Plans>,
    /// True if the caller vouches for what else is in the rank's stream.
    pub early: bool,
    /// SMs of the rank's share that launches leave to others.
    pub left: u32,
    /// Memory that one stage fills for the next: as much as the largest launch of any bucket needs.
    pub between: Option<Arc<Local<u8>>>,
}

/// Kernels that are launched for some numbers of rows.
#[derive(Debug)]
pub(super) struct Bucket {
    /// Proof of the kernel whose tensors launches are given: the only stage's, where there is one stage.
    pub proof: Arc<Proof>,
    /// Kernels that are launched one behind the other. There is one at least, and at most one waits for peers.
    pub stages: Vec<Stage>,
    /// Names of the schedules of an op of a family, and why they were chosen.
    pub chosen: Option<(String, Reason)>,
    /// Reason that the model's choice was not measured, where it was to be.
    pub unmeasured: Option<Arc<str>>,
}

/// A kernel of a bucket.
#[derive(Debug)]
pub(super) struct Stage {
    pub proof: Arc<Proof>,
    /// Counts of its launches.
    pub counted: Arc<Counted>,
    pub loaded: Arc<Loaded>,
    /// Origin of its tensors; `None` for scratch.
    pub sources: Vec<Option<Source>>,
    /// True if its depth is the columns of the launch.
    pub of_result: bool,
}

impl Stage {
    /// Plan of a stage's part of a launch.
    fn plan(&self, [m, n, k]: [u32; 3]) -> Result<Checked<Plan>, Error> {
        let k = if self.of_result { n } else { k };
        let shape = Shape {
            m,
            n,
            k,
            most_m: None,
            ..self.proof.shape.clone()
        };
        Ok(self.proof.series.plan(&shape)?)
    }

    /// Tensors of a stage in a launch that was given those, with `between` as the op's own memory.
    pub fn tensors(
        &self,
        opened: &[(TensorId, Open<'_>)],
        between: Option<&Arc<Local<u8>>>,
    ) -> Tensors {
        let given = |at: usize, id: TensorId, tensors: &mut Tensors| {
            let given = opened.iter().find(|(id, _)| id.index() == at);
            given
                .into_iter()
                .for_each(|(_, open)| open.bind(id, tensors));
        };
        tensors_of(&self.sources, given, between)
    }
}

/// True if a stage needs that tensor of a launch in the heap.
pub(super) fn in_heap(kernel: &Kernel, sources: &[Option<Source>], of: TensorId) -> bool {
    let mut sources = sources.iter().zip(0..);
    sources.any(|(source, at)| {
        *source == Some(Source::Given(of.index())) && kernel.is_in_heap(TensorId(at))
    })
}

/// A stage's tensors: `given` binds the one of the launch that has that place, `between` is the op's own memory.
pub(super) fn tensors_of(
    sources: &[Option<Source>],
    given: impl Fn(usize, TensorId, &mut Tensors),
    between: Option<&Arc<Local<u8>>>,
) -> Tensors {
    let mut tensors = Tensors::of(sources.len());
    for (source, index) in sources.iter().zip(0..) {
        let id = TensorId(index);
        match (source, between) {
            (Some(Source::Given(at)), _) => given(*at, id, &mut tensors),
            (Some(Source::Own), Some(memory)) => tensors.own(id, memory, u64::MAX),
            (Some(Source::Own), None) | (None, _) => {}
        }
    }
    tensors
}

impl Bucket {
    pub fn kernel(&self) -> &Checked<Kernel> {
        self.proof.series.kernel()
    }

    /// The names of its schedules.
    pub fn name(&self) -> &str {
        let chosen = self.chosen.as_ref();
        chosen.map_or(&self.kernel().name, |(name, _)| name)
    }

    /// True if one of its kernels needs that tensor of a launch in the heap.
    pub fn is_in_heap(&self, id: TensorId) -> bool {
        let mut stages = self.stages.iter();
        stages.any(|stage| in_heap(stage.proof.series.kernel(), &stage.sources, id))
    }

    /// The stage that waits for other ranks, if one does.
    pub fn waiting(&self, rank: &Communicator) -> Option<&Stage> {
        self.stages.iter().find(|stage| stage.loaded.waits(rank))
    }

    /// The stage that multiplies, or the first.
    pub fn main(&self) -> &Stage {
        let multiplies = |stage: &&Stage| stage.proof.series.kernel().gemm().is_some();
        let found = self.stages.iter().find(multiplies);
        found.unwrap_or(&self.stages[0])
    }

    /// The most rows of a launch.
    fn most(&self) -> u32 {
        self.proof.series.most().m
    }

    /// A launch of so many rows, columns and depth. Further dimensions have the sizes that the op was built for, or follow these.
    fn shape(&self, [m, n, k]: [u32; 3]) -> Shape {
        Shape {
            m,
            n,
            k,
            most_m: None,
            ..self.proof.shape.clone()
        }
    }

    /// The same with so many rows beside the product.
    fn shape_beside(&self, sizes: [u32; 3], rows: u32) -> Result<Shape, Error> {
        let dims = self.kernel().dims.iter();
        let beside = dims.filter(|dim| dim.is_further() && dim.name.ends_with(".rows"));
        let names: Vec<&str> = beside.map(|dim| &dim.name[..]).collect();
        if names.is_empty() || self.stages.len() > 1 {
            return Err(Error::Usage {
                what: format!("rows beside the product of {}", self.name()),
                legal: "state them for one schedule that moves rows other than the product's"
                    .into(),
            });
        }
        let shape = self.shape(sizes);
        Ok(names
            .into_iter()
            .fold(shape, |shape, name| shape.dim(name, rows)))
    }
}

/// Tensors by name: [`Launch::tensor`](super::Launch::tensor).
///
/// ```
/// # use counterflow::{Communicator, Op, op::ByName, schedules};
/// # let rank = &Communicator::emulated(1)?[0];
/// let schedule = schedules::gemm();
/// let op: Op<ByName> = rank.op(&schedule).first_options().up_to(64, 64, 64).build()?; // `Op` is the same type
/// let error = op.on(rank).tensor("bias", &rank.zeros::<f32>([64])?).launch().unwrap_err();
/// println!("{error}: {}", error.help().unwrap_or_default()); // it names the tensors that there are
/// # Ok::<(), counterflow::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub enum ByName {}

impl<S> Op<S> {
    /// The choices that its largest launch was built with.
    pub fn variant(&self) -> &Variant {
        &self.0.largest().main().proof.variant
    }

    /// The choices of a launch of so many rows. They differ from [`Op::variant`] only below a bucket of
    /// [`OpBuilder::buckets`](super::OpBuilder::buckets).
    ///
    /// ```
    /// # use counterflow::{Communicator, schedules::AgGemmOp};
    /// # let rank = &Communicator::emulated(1)?[0];
    /// let op = rank.op_of::<AgGemmOp>().up_to(64, 64, 64).build()?;
    /// assert_eq!(op.variant_of(8), op.variant()); // it has one bucket
    /// # Ok::<(), counterflow::Error>(())
    /// ```
    pub fn variant_of(&self, rows: usize) -> &Variant {
        &self.0.buckets[self.0.bucket(rows)].main().proof.variant
    }

    /// The schedule of a launch of so many rows. Of an op of a family ([`Communicator::op_for`]) it is the candidate that was
    /// chosen; names of schedules that are launched one behind the other are joined by `+`, and variants are those of the one
    /// that multiplies.
    ///
    /// ```
    /// # use counterflow::{Communicator, families::AllGatherGemm, schedules::AgGemmOp};
    /// # let rank = &Communicator::emulated(1)?[0];
    /// # rank.reserve(2 << 20)?;
    /// let op = rank.op_for::<AllGatherGemm>().schedule("all_gather+gemm").up_to(64, 64, 64).build()?;
    /// assert_eq!(op.schedule_of(64), "all_gather+gemm");
    /// assert_eq!(rank.op_of::<AgGemmOp>().up_to(64, 64, 64).build()?.schedule_of(64), "ag_gemm");
    /// # Ok::<(), counterflow::Error>(())
    /// ```
    pub fn schedule_of(&self, rows: usize) -> &str {
        self.0.buckets[self.0.bucket(rows)].name()
    }

    /// Reason that launches of so many rows have their schedule, of an op of a family. A schedule's own op has no
    /// other.
    ///
    /// ```
    /// # use counterflow::{Communicator, families::AllGatherGemm, family::Reason};
    /// # let rank = &Communicator::emulated(1)?[0];
    /// # rank.reserve(2 << 20)?;
    /// let op = rank.op_for::<AllGatherGemm>().schedule("ag_gemm").up_to(64, 64, 64).build()?;
    /// assert_eq!(op.why(64), Reason::Named);
    /// # Ok::<(), counterflow::Error>(())
    /// ```
    pub fn why(&self, rows: usize) -> Reason {
        let bucket = &self.0.buckets[self.0.bucket(rows)];
        let chosen = bucket.chosen.as_ref();
        chosen.map_or(Reason::Named, |(_, why)| why.clone())
    }

    /// Reason that launches of so many rows have the model's choice and not a measured one, where candidates were to be measured
    /// ([`OpBuilder::tuning`](super::OpBuilder::tuning)): too little memory, a stream that records, a trial that gave up. None where
    /// a winner is known, and where nothing was to be measured.
    ///
    /// ```
    /// # use counterflow::{Communicator, schedules::AgGemmOp};
    /// # let rank = &Communicator::emulated(1)?[0];
    /// let op = rank.op_of::<AgGemmOp>().up_to(64, 64, 64).build()?;
    /// assert_eq!(op.unmeasured(64), None); // emulated ranks measure nothing by themselves
    /// # Ok::<(), counterflow::Error>(())
    /// ```
    pub fn unmeasured(&self, rows: usize) -> Option<&str> {
        self.0.buckets[self.0.bucket(rows)].unmeasured.as_deref()
    }

    /// The largest launch that it is for.
    pub fn most(&self) -> &Shape {
        self.0.largest().proof.series.most()
    }

    /// Requirements of the largest launch on the tensor of that name.
    ///
    /// # Errors
    /// [`Error::Usage`] if the schedule has no such tensor.
    pub fn needs(&self, tensor: &str) -> Result<Needs, Error> {
        let id = argument::find(self.0.kernel(), tensor)?;
        let largest = &self.0.largest().proof.largest;
        Ok(self.0.needs(id, largest))
    }

    /// Requirements of a launch of so many rows, or of [`Sizes`]. Scales of 1×128 of fewer rows have shorter lines: give the memory of the
    /// largest launch in that shape ([`QuantTensor::shaped`](crate::QuantTensor::shaped)).
    ///
    /// ```
    /// # use counterflow::{Communicator, Dtype, QuantTensor, Scales, prelude::e4m3, schedules::AgGemmOp};
    /// # let ranks = Communicator::emulated(2)?;
    /// # Communicator::each(&ranks, |rank| {
    /// let op = rank.op_of::<AgGemmOp>().dtype(Dtype::E4M3).scales(Scales::Blocks1d2d);
    /// let op = op.first_options().up_to(64, 64, 128).build()?;
    /// let x = QuantTensor::allocate::<e4m3>(rank, "x", &op.needs("x")?)?;
    /// let of_39_rows = x.shaped(&op.needs_at("x", 39)?)?; // 20 rows of rank 0, 19 of rank 1
    /// assert_eq!((x.scales().shape(), of_39_rows.scales().shape()), (&[2, 32][..], &[2, 20][..]));
    /// # rank.barrier()
    /// # })?;
    /// # Ok::<(), counterflow::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Usage`] if the schedule has no such tensor; [`Error::Rejected`] for sizes that the op was not built for.
    pub fn needs_at(&self, tensor: &str, sizes: impl Into<Sizes>) -> Result<Needs, Error> {
        let id = argument::find(self.0.kernel(), tensor)?;
        let planned = self.0.plan(sizes)?;
        Ok(self.0.needs(id, &planned.plan))
    }
}

impl<S> Op<S> {
    /// The rows of a tensor that a rank has in a launch of so many: its shard, where ranks divide the tensor's rows, else all.
    /// Shards are equally long, but for the last ones. What is gathered has room for whole shards of all ranks.
    ///
    /// ```
    /// # use counterflow::{Communicator, schedules::AgGemmOp};
    /// # let ranks = Communicator::emulated(3)?;
    /// # Communicator::each(&ranks, |rank| {
    /// # rank.reserve(2 << 20)?;
    /// let op = rank.op_of::<AgGemmOp>().first_options().up_to(64, 32, 16).build()?;
    /// assert_eq!((op.shard("x", 0, 64)?, op.shard("x", 2, 64)?), (0..22, 44..64));
    /// assert_eq!((op.needs("x")?.shape, op.shard("w", 2, 64)?), ([66, 16], 0..32));
    /// # rank.barrier()
    /// # })?;
    /// # Ok::<(), counterflow::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Usage`] if the schedule has no such tensor, or there is no such rank; [`Error::Rejected`] for more rows than the
    /// op was built for.
    pub fn shard(&self, tensor: &str, rank: u32, rows: usize) -> Result<Range<usize>, Error> {
        let kernel = self.0.kernel();
        let buffer = &kernel.buffers[argument::find(kernel, tensor)?.index()];
        let world = self.0.rank.world();
        if rank >= world {
            return Err(Error::Usage {
                what: format!("the rows of rank {rank} of {world}"),
                legal: format!("0 to {}", world - 1),
            });
        }
        let planned = self.0.plan(rows)?;
        let geometry = &planned.plan.geometry;
        Ok(match kernel.dims[usize::from(buffer.rows.0)].sharded {
            true => geometry.shard(buffer.rows, rank).range(),
            false => 0..geometry.size(buffer.rows) as usize,
        })
    }
}

impl Inner {
    /// The bucket of the largest launch.
    pub fn largest(&self) -> &Bucket {
        &self.buckets[self.buckets.len() - 1]
    }

    /// The kernel of the largest launch. Those of all buckets are made of one schedule, with the same tensors.
    pub fn kernel(&self) -> &Checked<Kernel> {
        self.largest().kernel()
    }

    /// As [`Shape::beside_rows`].
    pub fn beside_rows(&self) -> Option<&str> {
        let most = self.largest().proof.series.most();
        let none = self.largest().shape([0, most.n, most.k]);
        none.beside_rows(self.kernel())
    }

    /// The bucket of a launch: the first that has so many rows.
    fn bucket(&self, rows: usize) -> usize {
        let all = self.buckets.iter();
        let fits = |bucket: &Bucket| bucket.most() as usize >= rows;
        // The plan of a launch beyond the largest is refused.
        all.take_while(|bucket| !fits(bucket))
            .count()
            .min(self.buckets.len() - 1)
    }

    /// Needs of the largest bucket's tensor in a launch, wherever another bucket has it in the heap.
    fn needs(&self, id: TensorId, plan: &Plan) -> Needs {
        let kernel = self.kernel();
        let name = &kernel.buffers[id.index()].name;
        let heap = |bucket: &Bucket| {
            let there = argument::same(bucket.kernel(), name);
            there.is_some_and(|id| bucket.is_in_heap(id))
        };
        let mut needs = Needs::of(kernel, plan, id);
        needs.in_heap |= self.buckets.iter().any(heap);
        needs
    }

    /// The plan of a launch.
    pub fn plan(&self, sizes: impl Into<Sizes>) -> Result<Arc<Planned>, Error> {
        let stated = sizes.into();
        let (sizes, beside) = (
            stated.of(self.largest().proof.series.most()),
            stated.rows_beside(),
        );
        let lock = || self.plans.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(planned) = lock().get((sizes, beside)) {
            return Ok(planned);
        }
        let at = self.bucket(sizes[0] as usize);
        let bucket = &self.buckets[at];
        let shape = match beside {
            None => bucket.shape(sizes),
            Some(rows) => bucket.shape_beside(sizes, rows)?,
        };
        let plan = bucket.proof.series.plan(&shape)?;
        let heap = |id| bucket.is_in_heap(id);
        let planned = Planned::new(bucket.kernel(), at, plan, self.rank.rank(), heap);
        let planned = Arc::new(match &bucket.stages[..] {
            [_] => planned,
            stages => {
                let plans = stages.iter().map(|stage| stage.plan(sizes));
                let plans = plans.collect::<Result<Vec<_>, _>>()?;
                let each = stages.iter().zip(&plans).map(|(stage, plan)| Wired {
                    kernel: stage.proof.series.kernel(),
                    plan,
                    sources: &stage.sources,
                });
                fits(bucket.name(), (bucket.kernel(), &planned.plan), each)?;
                planned.with_stages(plans)
            }
        });
        lock().keep((sizes, beside), &planned);
        Ok(planned)
    }
}
