//! What an op is built of.

use super::built::{Bucket, ByName, Inner, Op};
use super::typed::{Launcher, Schedule};

use crate::communicator::Communicator;
use crate::driver::range;
use crate::error::Error;
use crate::group::ALIGN;
use crate::jit::Compiler;
use crate::launch::Loaded;
use crate::proof::{Asked, Proof};
use counterflow_codegen::dtype::Dtype;
use counterflow_codegen::plan::COUNTER_LINE;
use counterflow_codegen::program::{CounterId, Program, RoleKind, Setting, TensorId};
use counterflow_codegen::shape::Shape;
use counterflow_codegen::variant::{Layout, Scales, Variant};
use std::borrow::Cow;
use std::collections::BTreeSet;
use std::marker::PhantomData;
use std::sync::{Arc, Mutex};
use tracing::debug;

/// A schedule, and what it shall be built for. The types, the layout and the largest launch are the caller's; choices
/// that are still open become the fastest ones for this GPU.
///
/// ```
/// use counterflow::{Communicator, Dtype, Layout, Shape, schedules::AgGemmOp};
///
/// let rank = &Communicator::emulated(1)?[0];
/// let builder = rank.op_of::<AgGemmOp>()
///     .dtype(Dtype::F16) // in place of the schedule's bf16
///     .layout(Layout::Nn) // w is [K, N]
///     .set("tiles", (128, 128)) // a choice that the schedule leaves open, by its name
///     .first_options() // and all others, instead of the fastest known ones
///     .shape(Shape::new(1024, 256, 64)); // the same as `up_to(1024, 256, 64)`
/// assert_eq!(builder.build()?.variant().layout, Layout::Nn);
///
/// // A choice or shape that is not legal is refused with the compiler's report.
/// let error = rank.op_of::<AgGemmOp>().set("tiles", (1, 3)).up_to(64, 64, 64).build().unwrap_err();
/// assert_eq!(error.kind(), "rejected");
/// println!("{error}");
/// # Ok::<(), counterflow::Error>(())
/// ```
#[derive(Clone, Debug)]
#[must_use = "nothing is built before `build`"]
pub struct OpBuilder<'a, S = ByName> {
    rank: &'a Communicator,
    program: Cow<'a, Program>,
    variant: Variant,
    shape: Option<Shape>,
    buckets: BTreeSet<u32>,
    compiler: Option<&'a Compiler>,
    early: bool,
    /// SMs of the rank's share that launches leave to others.
    left: u32,
    first_options: bool,
    launcher: PhantomData<fn() -> S>,
}

/// The memory that an op takes on each rank at most, beside the tensors that its launches are given. Ops of a communicator
/// share scratch.
///
/// ```
/// # use counterflow::{Communicator, op::Workspace, schedules::GemmOp};
/// # let rank = &Communicator::emulated(1)?[0];
/// let Workspace { heap, own } = rank.op_of::<GemmOp>().first_options().up_to(64, 64, 64).workspace()?;
/// println!("{heap} bytes to reserve, {own} bytes elsewhere");
/// # Ok::<(), counterflow::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Workspace {
    /// Bytes of the symmetric heap: scratch and counters.
    pub heap: u64,
    /// Bytes of the GPU's memory elsewhere: tables of arrivals.
    pub own: u64,
}

impl Communicator {
    /// Builds a schedule for this rank, with what the builder is told. Building is collective: every rank builds the
    /// same.
    ///
    /// ```
    /// use counterflow::{Communicator, prelude::bf16, schedules};
    ///
    /// let rank = &Communicator::emulated(1)?[0];
    /// let schedule = schedules::gemm();
    /// let op = rank.op(&schedule).first_options().up_to(64, 64, 64).build()?;
    /// let (x, w) = (rank.zeros::<bf16>([64, 64])?, rank.zeros::<bf16>([64, 64])?);
    /// let mut y = rank.zeros::<bf16>([64, 64])?;
    /// op.on(rank).tensor("x", &x).tensor("w", &w).tensor("y", &mut y).launch()?.wait()?;
    /// # Ok::<(), counterflow::Error>(())
    /// ```
    pub fn op<'a>(&'a self, schedule: &'a Program) -> OpBuilder<'a> {
        OpBuilder::new(self, Cow::Borrowed(schedule))
    }

    /// The same, with launches that take each tensor by a method of its name: `op_of::<AgGemmOp>()`, the launcher that
    /// `#[schedule]` puts beside `ag_gemm`.
    ///
    /// ```
    /// use counterflow::{Communicator, prelude::bf16, schedules::AgGemmOp};
    ///
    /// Communicator::each(&Communicator::emulated(2)?, |rank| {
    ///     rank.reserve(2 << 20)?;
    ///     let op = rank.op_of::<AgGemmOp>().up_to(32, 16, 8).build()?;
    ///     let x = rank.allocate::<bf16>("x", [32, 8])?; // all rows: peers push theirs
    ///     let (w, mut y) = (rank.zeros::<bf16>([16, 8])?, rank.zeros::<bf16>([32, 16])?);
    ///     x.write(&[bf16::ONE; 32 * 8])?;
    ///     w.write(&[bf16::ONE; 16 * 8])?;
    ///     op.on(rank).x(&x).w(&w).y(&mut y).launch()?.wait()?;
    ///     assert_eq!(y.read()?, [bf16::from_f32(8.0); 32 * 16]);
    ///     Ok(())
    /// })?;
    /// # Ok::<(), counterflow::Error>(())
    /// ```
    pub fn op_of<S: Schedule>(&self) -> OpBuilder<'_, S> {
        OpBuilder::new(self, Cow::Owned(S::program()))
    }
}

impl<'a, S: Launcher> OpBuilder<'a, S> {
    fn new(rank: &'a Communicator, program: Cow<'a, Program>) -> Self {
        OpBuilder {
            rank,
            program,
            variant: Variant::new(rank.world()),
            shape: None,
            buckets: BTreeSet::new(),
            compiler: None,
            early: false,
            left: 0,
            first_options: false,
            launcher: PhantomData,
        }
    }

    /// The element type, in place of the first parameter's wherever that occurs. FP8 replaces it only in what products
    /// multiply, and in what is copied from or to that.
    pub fn dtype(mut self, dtype: Dtype) -> Self {
        self.variant.dtype = Some(dtype);
        self
    }

    /// The FP8 type of products' second operands, where it is not that of the first: of e4m3 and e5m2 one each, such as
    /// gradients by weights.
    ///
    /// ```
    /// use counterflow::{Communicator, Dtype, prelude::{bf16, e4m3, e5m2}, schedules::GemmOp};
    ///
    /// let rank = &Communicator::emulated(1)?[0];
    /// let op = rank.op_of::<GemmOp>().dtype(Dtype::E5M2).second(Dtype::E4M3);
    /// let op = op.first_options().up_to(64, 64, 64).build()?;
    /// let (x, w, mut y) = (rank.zeros::<e5m2>([64, 64])?, rank.zeros::<e4m3>([64, 64])?, rank.zeros::<bf16>([64, 64])?);
    /// x.write(&[e5m2::ONE; 64 * 64])?;
    /// w.write(&[e4m3::ONE; 64 * 64])?;
    /// op.on(rank).x(&x).w(&w).y(&mut y).launch()?.wait()?;
    /// assert_eq!(y.read()?, [bf16::from_f32(64.0); 64 * 64]);
    /// # Ok::<(), counterflow::Error>(())
    /// ```
    pub fn second(mut self, dtype: Dtype) -> Self {
        self.variant.second = Some(dtype);
        self
    }

    /// What FP8 operands are multiplied by. Launches take each operand's scale as a tensor of its own, `x.scale` for `x`, in the
    /// GPU's memory, which they read when they run: one f32 of any alignment; or, with [`Scales::Rows`], one f32 for each of its
    /// rows, as a tensor of as many rows and one column. Scales of rows that are gathered travel with them: like their operand
    /// they are in the symmetric heap, where a rank fills its own chunk. One scale for all of what is gathered is given to all
    /// ranks alike.
    ///
    /// Scales of blocks are planes as quantisers write them: of 1×128 `[⌈K/128⌉][rows padded to 4]`, of 128×128 `[⌈rows/128⌉][⌈K/128⌉
    /// padded to 4]`. Where they are gathered, each rank's chunk has a plane of its own, all behind each other in the heap, and a
    /// chunk has a multiple of 4 rows, or of 128, but for the last. Lines of 1×128 are as long as a full chunk has rows:
    /// [`Op::needs_at`](super::Op::needs_at) has that number for each number of rows.
    ///
    /// ```
    /// use counterflow::{Communicator, Dtype, Scales, prelude::{bf16, e4m3}, schedules::GemmOp};
    ///
    /// let rank = &Communicator::emulated(1)?[0];
    /// let op = rank.op_of::<GemmOp>().dtype(Dtype::E4M3).scales(Scales::Whole);
    /// let op = op.first_options().up_to(64, 64, 64).build()?;
    /// let (x, w, mut y) = (rank.zeros::<e4m3>([64, 64])?, rank.zeros::<e4m3>([64, 64])?, rank.zeros::<bf16>([64, 64])?);
    /// let (of_x, of_w) = (rank.zeros::<f32>([1, 1])?, rank.zeros::<f32>([1, 1])?);
    /// x.write(&[e4m3::ONE; 64 * 64])?;
    /// w.write(&[e4m3::ONE; 64 * 64])?;
    /// of_x.write(&[0.5])?;
    /// of_w.write(&[0.25])?;
    /// let launch = op.on(rank).x(&x).w(&w).y(&mut y);
    /// launch.tensor("x.scale", &of_x).tensor("w.scale", &of_w).launch()?.wait()?;
    /// assert_eq!(y.read()?, [bf16::from_f32(64.0 * 0.5 * 0.25); 64 * 64]);
    ///
    /// let op = rank.op_of::<GemmOp>().dtype(Dtype::E4M3).scales(Scales::Rows);
    /// let op = op.first_options().up_to(64, 64, 64).build()?;
    /// let (of_x, of_w) = (rank.zeros::<f32>([64, 1])?, rank.zeros::<f32>([64, 1])?);
    /// let rows: Vec<f32> = (0..64).map(|row| 0.25 * row as f32).collect();
    /// of_x.write(&rows)?;
    /// of_w.write(&[0.5; 64])?;
    /// let launch = op.on(rank).x(&x).w(&w).y(&mut y);
    /// launch.tensor("x.scale", &of_x).tensor("w.scale", &of_w).launch()?.wait()?;
    /// assert_eq!(y.read()?[3 * 64], bf16::from_f32(64.0 * 0.75 * 0.5));
    ///
    /// use counterflow::schedules::AgGemmOp;
    /// let all = Communicator::emulated(2)?;
    /// Communicator::each(&all, |rank| {
    ///     let op = rank.op_of::<AgGemmOp>().dtype(Dtype::E4M3).scales(Scales::Rows);
    ///     let op = op.first_options().up_to(64, 64, 64).build()?;
    ///     assert!(op.needs("x.scale")?.in_heap);
    ///     let (x, of_x) = (rank.allocate::<e4m3>("x", [64, 64])?, rank.allocate::<f32>("x.scale", [64, 1])?);
    ///     let (w, mut y) = (rank.zeros::<e4m3>([64, 64])?, rank.zeros::<bf16>([64, 64])?);
    ///     let of_w = rank.zeros::<f32>([64, 1])?;
    ///     w.write(&[e4m3::ONE; 64 * 64])?;
    ///     of_w.write(&[0.5; 64])?;
    ///     x.write(&[e4m3::ONE; 64 * 64])?; // this rank's 32 rows count
    ///     of_x.write(&vec![rank.rank() as f32 + 1.0; 64])?;
    ///     let launch = op.on(rank).x(&x).w(&w).y(&mut y);
    ///     launch.tensor("x.scale", &of_x).tensor("w.scale", &of_w).launch()?.wait()?;
    ///     let y = y.read()?;
    ///     assert_eq!([y[0], y[63 * 64]], [32.0, 64.0].map(bf16::from_f32)); // rows of rank 0, and of rank 1
    ///
    ///     let op = rank.op_of::<AgGemmOp>().dtype(Dtype::E4M3).scales(Scales::Blocks1d2d);
    ///     let op = op.first_options().up_to(64, 64, 256).build()?;
    ///     rank.reserve(2 << 20)?; // a slot of the heap
    ///     let (x, w) = (rank.allocate::<e4m3>("x", [64, 256])?, rank.zeros::<e4m3>([64, 256])?);
    ///     let planes = op.needs("x.scale")?.shape;
    ///     assert_eq!(planes, [2 * 2, 32]); // of each rank two lines, of 32 rows
    ///     let (of_x, of_w) = (rank.allocate::<f32>("x.scale", planes)?, rank.zeros::<f32>([1, 4])?);
    ///     w.write(&[e4m3::ONE; 64 * 256])?;
    ///     of_w.write(&[0.5, 0.25, 0.0, 0.0])?; // a number for each 128 of K, and padding
    ///     x.write(&[e4m3::ONE; 64 * 256])?;
    ///     let me = rank.rank() as usize;
    ///     let mine = [[1.0; 32], [4.0; 32]].concat().iter().map(|scale| scale * (me + 1) as f32).collect::<Vec<_>>();
    ///     of_x.rows(2 * me..2 * me + 2)?.write(&mine)?; // or a quantiser does
    ///     let mut y = rank.zeros::<bf16>([64, 64])?;
    ///     let launch = op.on(rank).x(&x).w(&w).y(&mut y);
    ///     launch.tensor("x.scale", &of_x).tensor("w.scale", &of_w).launch()?.wait()?;
    ///     let y = y.read()?;
    ///     assert_eq!([y[0], y[63 * 64]], [192.0, 384.0].map(bf16::from_f32)); // 128 · (1 · 0.5 + 4 · 0.25), and twice that
    ///     Ok(())
    /// })?;
    /// # Ok::<(), counterflow::Error>(())
    /// ```
    pub fn scales(mut self, scales: Scales) -> Self {
        self.variant.scales = Some(scales);
        self
    }

    /// The type of outputs (`Out`) that have the type of the first parameter, instead of that. Of FP8, each result is multiplied by
    /// one f32 in the GPU's memory, then rounded, and saturates: launches take it as a tensor of its own, `y.scale` for `y`, and
    /// read it when they run.
    ///
    /// ```
    /// use counterflow::{Communicator, Dtype, prelude::{bf16, e4m3}, schedules::GemmOp};
    ///
    /// let rank = &Communicator::emulated(1)?[0];
    /// let op = rank.op_of::<GemmOp>().output(Dtype::E4M3);
    /// let op = op.first_options().up_to(64, 64, 64).build()?;
    /// let (x, w, mut y) = (rank.zeros::<bf16>([64, 64])?, rank.zeros::<bf16>([64, 64])?, rank.zeros::<e4m3>([64, 64])?);
    /// let scale = rank.zeros::<f32>([1, 1])?;
    /// x.write(&[bf16::ONE; 64 * 64])?;
    /// w.write(&[bf16::ONE; 64 * 64])?;
    /// for (by, wanted) in [(0.25, 16.0), (8.0, 448.0)] {
    ///     scale.write(&[by])?;
    ///     op.on(rank).x(&x).w(&w).y(&mut y).tensor("y.scale", &scale).launch()?.wait()?;
    ///     assert_eq!(y.read()?, [e4m3::from_f32(wanted); 64 * 64]);
    /// }
    /// # Ok::<(), counterflow::Error>(())
    /// ```
    pub fn output(mut self, dtype: Dtype) -> Self {
        self.variant.output = Some(dtype);
        self
    }

    /// Gives each FP8 output its amax: one f32 in the GPU's memory, a tensor of its own, `y.amax` for `y`. A launch makes it as large
    /// as the largest absolute value of what it computes for the output, before the scale; what it held before counts, and should
    /// not be negative. Where one is NaN, so is the amax. Delayed scaling makes the next scale of it.
    ///
    /// ```
    /// use counterflow::{Communicator, Dtype, prelude::{bf16, e4m3}, schedules::GemmOp};
    ///
    /// let rank = &Communicator::emulated(1)?[0];
    /// let op = rank.op_of::<GemmOp>().output(Dtype::E4M3).amax();
    /// let op = op.first_options().up_to(64, 64, 64).build()?;
    /// let (x, w, mut y) = (rank.zeros::<bf16>([64, 64])?, rank.zeros::<bf16>([64, 64])?, rank.zeros::<e4m3>([64, 64])?);
    /// let (scale, mut amax) = (rank.zeros::<f32>([1, 1])?, rank.zeros::<f32>([1, 1])?);
    /// w.write(&[bf16::ONE; 64 * 64])?;
    /// scale.write(&[2.0])?;
    /// for (of, wanted) in [(-0.5, 32.0), (0.25, 32.0), (1.0, 64.0)] {
    ///     x.write(&[bf16::from_f32(of); 64 * 64])?;
    ///     let launch = op.on(rank).x(&x).w(&w).y(&mut y).tensor("y.scale", &scale);
    ///     launch.tensor("y.amax", &mut amax).launch()?.wait()?;
    ///     assert_eq!(amax.read()?, [wanted]);
    /// }
    /// # Ok::<(), counterflow::Error>(())
    /// ```
    pub fn amax(mut self) -> Self {
        self.variant.amax = true;
        self
    }

    /// Promotes sums of FP8 products: every 128 of K, what the tensor cores summed is added in f32 to sums of the threads' own. The
    /// tensor cores alone keep 13 fraction bits. Scales of blocks always do. Tiles have at most 256×128 or 128×256 elements.
    ///
    /// ```
    /// use counterflow::{Communicator, Dtype, schedules::GemmOp};
    ///
    /// let rank = &Communicator::emulated(1)?[0];
    /// let op = rank.op_of::<GemmOp>().dtype(Dtype::E4M3).promote();
    /// let op = op.first_options().up_to(64, 64, 64).build()?;
    /// assert!(op.variant().promote);
    /// # Ok::<(), counterflow::Error>(())
    /// ```
    pub fn promote(mut self) -> Self {
        self.variant.promote = true;
        self
    }

    /// The layout of the dots' operands.
    pub fn layout(mut self, layout: Layout) -> Self {
        self.variant.layout = layout;
        self
    }

    /// Settles a choice that the schedule leaves open.
    pub fn set(mut self, choice: &str, setting: impl Into<Setting>) -> Self {
        self.variant = self.variant.set(choice, setting);
        self
    }

    /// Settles choices that are still open as their first option, instead of the one that is fastest on this GPU.
    pub fn first_options(mut self) -> Self {
        self.first_options = true;
        self
    }

    /// The largest launch: rows over all ranks, and a rank's columns and depth. Launches have as many columns and the
    /// same depth, and at most so many rows.
    ///
    /// ```
    /// use counterflow::{Communicator, schedules::GemmOp};
    ///
    /// let rank = &Communicator::emulated(1)?[0];
    /// let op = rank.op_of::<GemmOp>().first_options().up_to(512, 64, 32).build()?;
    /// assert_eq!((op.most().m, op.most().n, op.most().k), (512, 64, 32));
    /// let error = rank.op_of::<GemmOp>().build().unwrap_err();
    /// assert_eq!(error.help(), Some("say the largest launch: `up_to(m, n, k)`"));
    /// # Ok::<(), counterflow::Error>(())
    /// ```
    pub fn up_to(self, m: usize, n: usize, k: usize) -> Self {
        // A size that does not fit is refused as too large by the verifier.
        let size = |size: usize| u32::try_from(size).unwrap_or(u32::MAX);
        self.shape(Shape::new(size(m), size(n), size(k)))
    }

    /// The largest launch, with further dimensions.
    pub fn shape(mut self, shape: Shape) -> Self {
        self.shape = Some(shape);
        self
    }

    /// Gives smaller launches variants of their own. `rows` are the largest launches of the buckets: one has the variant of
    /// the first bucket that holds its rows, and those beyond them that of [`OpBuilder::up_to`]. Choices that are still
    /// open become the fastest ones for the largest launch of each bucket. Buckets with the same choices are one, and
    /// one kernel is loaded for each that is left; tensors are the same for all. Every rank names the same buckets.
    ///
    /// ```
    /// use counterflow::{Communicator, schedules::AgGemmOp};
    ///
    /// let rank = &Communicator::emulated(1)?[0];
    /// rank.reserve(2 << 20)?;
    /// let op = rank.op_of::<AgGemmOp>().up_to(16384, 2048, 64).buckets([64, 1024]).build()?;
    /// println!("{} for a few rows, {} for many", op.variant_of(64), op.variant());
    /// # Ok::<(), counterflow::Error>(())
    /// ```
    pub fn buckets(mut self, rows: impl IntoIterator<Item = usize>) -> Self {
        let rows = rows.into_iter();
        self.buckets
            .extend(rows.map(|rows| u32::try_from(rows).unwrap_or(u32::MAX)));
        self
    }

    /// The compiler. If it is not called: this machine's, with the user's cache. Emulated GPUs need none.
    ///
    /// ```no_run
    /// use counterflow::jit::{Cache, Compiler};
    /// use counterflow::{Communicator, schedules::GemmOp};
    ///
    /// let compiler = Compiler::find()?.with_cache(Cache::at("/var/cache/kernels"));
    /// let rank = &Communicator::local(1)?[0];
    /// let op = rank.op_of::<GemmOp>().compiler(&compiler).up_to(4096, 4096, 4096).build()?;
    /// # Ok::<(), counterflow::Error>(())
    /// ```
    pub fn compiler(mut self, compiler: &'a Compiler) -> Self {
        self.compiler = Some(compiler);
        self
    }

    /// Lets launches on the rank's own stream start early (programmatic dependent launch) although
    /// [`Communicator::stream`] was called: their CTAs become resident while the kernel before still runs, and wait for its
    /// end before they touch memory. Without this, only launches of ours in a row do so, in a stream that nobody else has.
    ///
    /// ```
    /// use counterflow::{Communicator, schedules::GemmOp};
    ///
    /// let rank = &Communicator::emulated(1)?[0];
    /// let stream = rank.stream(); // its other kernels are launched without the attribute of programmatic launches
    /// let op = rank.op_of::<GemmOp>().early_after_foreign_kernels().first_options();
    /// let op = op.up_to(64, 64, 64).build()?;
    /// # Ok::<(), counterflow::Error>(())
    /// ```
    ///
    /// # Condition
    /// Every other kernel in that stream that was itself launched early waits for its own predecessor. One that ends
    /// without doing so lets this launch read what the kernel before it has not written yet.
    pub fn early_after_foreign_kernels(mut self) -> Self {
        self.early = true;
        self
    }

    /// Leaves so many SMs of the rank's share to others: launches have fewer CTAs, and choices that are still open become
    /// the fastest ones for what is left. Kernels of other libraries that wait for kernels of their own on other GPUs need
    /// it, as NCCL's do: if neither leaves the other the SMs that it needs, both wait for ever.
    ///
    /// ```
    /// use counterflow::{Communicator, schedules::AgGemmOp};
    ///
    /// let rank = &Communicator::emulated(1)?[0];
    /// let op = rank.op_of::<AgGemmOp>().leave_sms(32).up_to(4096, 2048, 64).build()?; // at most 100 CTAs
    /// let error = rank.op_of::<AgGemmOp>().leave_sms(132).up_to(64, 64, 64).build().unwrap_err();
    /// assert_eq!(error.to_string(), "132 of 132 SMs left to others");
    /// # Ok::<(), counterflow::Error>(())
    /// ```
    pub fn leave_sms(mut self, sms: u32) -> Self {
        self.left = sms;
        self
    }

    /// What building will allocate, before anything is allocated.
    ///
    /// ```
    /// use counterflow::{Communicator, schedules::GemmRsOp};
    ///
    /// Communicator::each(&Communicator::emulated(2)?, |rank| {
    ///     let op = rank.op_of::<GemmRsOp>().up_to(64, 32, 32);
    ///     rank.reserve(op.workspace()?.heap + (1 << 20))?; // and a MiB for tensors
    ///     op.build().map(drop)
    /// })?;
    /// # Ok::<(), counterflow::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`OpBuilder::build`], as far as proofs go.
    pub fn workspace(&self) -> Result<Workspace, Error> {
        let each = self.proofs()?;
        let each = each.iter().map(|proof| workspace(proof));
        Ok(
            each.fold(Workspace { heap: 0, own: 0 }, |sum, one| Workspace {
                heap: sum.heap + one.heap,
                own: sum.own + one.own,
            }),
        )
    }

    /// Of each bucket whose choices are not those of the next, the fewest rows first.
    fn proofs(&self) -> Result<Vec<Arc<Proof>>, Error> {
        let largest = self.shape.clone().ok_or_else(|| Error::Usage {
            what: format!("{} built for no shape", self.program.name),
            legal: "say the largest launch: `up_to(m, n, k)`".into(),
        })?;
        let mut roles = self.program.roles.iter();
        let copied = roles.any(|role| matches!(role.kind, RoleKind::CopyEngine));
        let share = self.rank.share(copied);
        let sms = share.checked_sub(self.left).filter(|sms| *sms > 0);
        let sms = sms.ok_or_else(|| Error::Usage {
            what: format!("{} of {share} SMs left to others", self.left),
            legal: format!("0 to {}", share - 1),
        })?;
        let of = |shape| {
            self.rank.proven().of(&Asked {
                program: &self.program,
                variant: self.variant.clone(),
                shape,
                gpu: self.rank.gpu().name(),
                sms,
                first_options: self.first_options,
            })
        };
        let smaller = self.buckets.range(..largest.m).rev();
        let mut found = vec![of(largest.clone())?];
        for m in smaller {
            let proof = of(Shape {
                m: *m,
                ..largest.clone()
            })?;
            if found
                .last()
                .is_some_and(|next| next.variant != proof.variant)
            {
                found.push(proof);
            }
        }
        found.reverse();
        Ok(found)
    }

    /// Chooses, proves, compiles or takes from the cache, loads, and agrees with the other ranks. Collective: every rank
    /// builds the same, in the same order.
    ///
    /// # Errors
    /// [`Error::Rejected`] for a schedule or shape that is not legal; [`Error::Environment`] for what would hang on this
    /// machine; what the compiler or driver refuses this rank or another one; a heap with too little reserved;
    /// [`Error::Mismatch`] if a rank builds something else.
    pub fn build(self) -> Result<Op<S>, Error> {
        let _range = range(|| {
            let (name, rank) = (&self.program.name, self.rank.rank());
            let most = self.shape.as_ref().map_or(0, |shape| shape.m);
            format!("build {name}, rank {rank}, M up to {most}")
        });
        let load = |proof: Arc<Proof>| {
            let loaded = Loaded::load(self.rank, self.compiler, &proof.pipeline, &proof.series)?;
            loaded.admit(self.rank, &proof.largest)?;
            debug!(
                rank = self.rank.rank(),
                schedule = %proof.series.kernel().name,
                variant = %proof.variant,
                most = %proof.shape,
                heap_bytes = workspace(&proof).heap,
                "op built"
            );
            Ok::<_, Error>(Bucket {
                loaded: Arc::new(loaded),
                proof,
            })
        };
        let inner = Inner {
            rank: Arc::new(self.rank.handle()),
            buckets: self
                .proofs()?
                .into_iter()
                .map(load)
                .collect::<Result<_, _>>()?,
            plans: Mutex::default(),
            early: self.early,
        };
        Ok(Op(Arc::new(inner), PhantomData))
    }
}

fn workspace(proof: &Proof) -> Workspace {
    let kernel = proof.series.kernel();
    let counters = (0..kernel.counters.len()).map(|index| CounterId(index as u16));
    let cells: u64 = counters
        .map(|counter| u64::from(proof.series.largest().counter_cells(counter)))
        .sum();
    let ids = (0..kernel.buffers.len()).map(|index| TensorId(index as u16));
    let scratch = ids.filter(|id| kernel.buffers[id.index()].is_scratch());
    let scratch = scratch.map(|id| proof.largest.bytes(kernel, id));
    let each = scratch.chain([cells * COUNTER_LINE]);
    Workspace {
        heap: each.map(|bytes| bytes.max(1).next_multiple_of(ALIGN)).sum(),
        own: Loaded::own_bytes(cells),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedules::{Sender, gather};
    use crate::user_buffer::UserBuffer;
    use half::bf16;

    #[test]
    fn launches_have_no_more_ctas_than_others_leave_them() {
        let ranks = Communicator::emulated(2).expect("ranks");
        let ctas = Communicator::each(&ranks, |rank| {
            rank.reserve(32 << 20)?;
            let program = gather(Sender::Ctas(4));
            let [m, side] = [4096, 256];
            let built = |left| {
                let builder = rank.op(&program).up_to(m, side, 64).first_options();
                builder.leave_sms(left).build()
            };
            let ctas = |op: &Op, rows| {
                let grid = op.0.plan(rows)?.plan.grid;
                Ok::<_, Error>(grid.gemm + grid.comm)
            };
            let (all, some) = (built(0)?, built(122)?);
            let x: UserBuffer<bf16> = rank.allocate("x", [64, 64])?;
            let w = rank.zeros::<bf16>([side, 64])?;
            let mut y = rank.zeros::<bf16>([64, side])?;
            let launch = some.on(rank).tensor("x", &x).tensor("w", &w);
            launch.tensor("y", &mut y).rows(64).launch()?.wait()?;
            Ok([ctas(&all, 4096)?, ctas(&some, 4096)?, ctas(&some, 2048)?])
        });
        for [all, some, fewer] in ctas.expect("ops") {
            assert!(all > 10, "{all}");
            assert_eq!([some, fewer], [10, 10]);
        }
    }
}
