//! Builders of ops.

mod measure;
mod proofs;
mod trial;
mod types;

use super::built::{Bucket, ByName, Inner, Op};
use super::typed::{Computes, Launcher, Schedule};
use super::workspace::Workspace;

use crate::communicator::Communicator;
use crate::driver::range;
use crate::error::Error;
use crate::family::Family;
use crate::jit::Compiler;
use crate::tuning::Tuning;
use counterflow_codegen::program::{Program, Setting};
use counterflow_codegen::shape::Shape;
use counterflow_codegen::variant::Variant;
use std::borrow::Cow;
use std::collections::BTreeSet;
use std::marker::PhantomData;
use std::sync::{Arc, Mutex};

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
    batch_invariant: bool,
    /// None: what the environment says.
    tuning: Option<Tuning>,
    /// Family that is built instead of `program`, the first of its schedules.
    family: Option<Family>,
    /// The candidate that the caller names.
    only: Option<String>,
    launcher: PhantomData<fn() -> S>,
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

    /// Builds an op whose launches take each tensor by a method of its name: `op_of::<AgGemmOp>()`, the launcher that
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

    /// Builds a family: the fastest of its schedules for this GPU and for each bucket of rows, also as none of the fused ones.
    /// Winners that come with the package, or the user's own, decide where there are any nearby. Elsewhere a measurement does
    /// ([`OpBuilder::tuning`]), or the model ([`family::choose`](crate::family::choose)). All candidates take the same tensors.
    ///
    /// ```
    /// use counterflow::{Communicator, families::GemmReduceScatter, prelude::bf16};
    ///
    /// Communicator::each(&Communicator::emulated(2)?, |rank| {
    ///     let builder = rank.op_for::<GemmReduceScatter>().up_to(512, 64, 32).buckets([16, 128]);
    ///     rank.reserve(builder.workspace()?.heap + (2 << 20))?;
    ///     let op = builder.build()?;
    ///     println!("{}: {}", op.schedule_of(16), op.why(16));
    ///     let (x, w) = (rank.zeros::<bf16>([512, 32])?, rank.zeros::<bf16>([64, 32])?);
    ///     let mut y = rank.allocate::<bf16>("y", [256, 64])?; // this rank's half of the sum's rows
    ///     op.on(rank).x(&x).w(&w).y(&mut y).rows(16).launch()?.wait()
    /// })?;
    /// # Ok::<(), counterflow::Error>(())
    /// ```
    pub fn op_for<F: Computes>(&self) -> OpBuilder<'_, F> {
        OpBuilder::of_family(self, &F::family())
    }

    /// Builds an op of a family of your own. Its launches take tensors by name.
    ///
    /// ```
    /// use counterflow::{Communicator, family::Family, schedules::{ag_gemm, ag_gemm_ring}};
    ///
    /// let family = Family::new("gathered", ag_gemm()).or(ag_gemm_ring());
    /// let rank = &Communicator::emulated(1)?[0];
    /// rank.reserve(2 << 20)?;
    /// let op = rank.family(&family).up_to(64, 64, 64).build()?;
    /// println!("{}: {}", op.schedule_of(64), op.why(64));
    /// # Ok::<(), counterflow::Error>(())
    /// ```
    pub fn family(&self, family: &Family) -> OpBuilder<'_> {
        OpBuilder::of_family(self, family)
    }
}

impl<'a, S: Launcher> OpBuilder<'a, S> {
    fn new(rank: &'a Communicator, program: Cow<'a, Program>) -> Self {
        // From now on nobody asks an order by closure.
        let program = match program {
            Cow::Borrowed(program) => program.tabulated(rank.world()),
            Cow::Owned(program) => Cow::Owned(program.tabulated(rank.world()).into_owned()),
        };
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
            batch_invariant: false,
            tuning: None,
            family: None,
            only: None,
            launcher: PhantomData,
        }
    }

    fn of_family(rank: &'a Communicator, family: &Family) -> Self {
        OpBuilder {
            family: Some(family.tabulated(rank.world())),
            ..OpBuilder::new(rank, Cow::Owned(family.first().clone()))
        }
    }

    /// Names the candidate of a family, instead of the fastest known one: a schedule, or several joined by `+`.
    ///
    /// ```
    /// use counterflow::{Communicator, families::AllGatherGemm};
    ///
    /// let rank = &Communicator::emulated(1)?[0];
    /// rank.reserve(2 << 20)?;
    /// let op = rank.op_for::<AllGatherGemm>().schedule("ag_gemm_pull").up_to(64, 64, 64).build()?;
    /// assert_eq!(op.schedule_of(1), "ag_gemm_pull");
    /// let error = rank.op_for::<AllGatherGemm>().schedule("ring").up_to(64, 64, 64).build().unwrap_err();
    /// assert_eq!(error.help(), Some("its candidates are ag_gemm, ag_gemm_pull, low_latency_all_gather+gemm, all_gather+gemm"));
    /// # Ok::<(), counterflow::Error>(())
    /// ```
    pub fn schedule(mut self, candidate: &str) -> Self {
        self.only = Some(candidate.into());
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

    /// The largest launch: rows over all ranks, and a rank's columns and depth. A launch states its own, none larger:
    /// [`Launch::rows`](super::Launch::rows), [`Launch::columns`](super::Launch::columns) and
    /// [`Launch::depth`](super::Launch::depth). The depth may be 0 where each rank is given all that is along it; then so
    /// is every sum.
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

    /// Gives a row the same bits whatever the number of rows of its launch is, and whatever the other rows hold. Choices that are
    /// still open become the fastest of those variants that are batch-invariant, and those of all buckets are of one class of
    /// bits ([`BitsClass`](counterflow_codegen::bits::BitsClass)): they sum along K alike.
    ///
    /// ```
    /// use counterflow::{Communicator, schedules::{GemmArOp, GemmRsAddOp}};
    ///
    /// Communicator::each(&Communicator::emulated(2)?, |rank| {
    ///     rank.reserve(8 << 20)?;
    ///     let op = rank.op_of::<GemmArOp>().batch_invariant();
    ///     let op = op.up_to(4096, 256, 64).buckets([64, 1024]).build()?;
    ///     println!("{} for a few rows, {} for many", op.variant_of(64), op.variant());
    ///
    ///     // Ranks that add in memory do so in the order in which they come.
    ///     let adds = rank.op_of::<GemmRsAddOp>().batch_invariant().up_to(64, 256, 64);
    ///     assert_eq!(adds.build().unwrap_err().kind(), "rejected");
    ///     Ok(())
    /// })?;
    /// # Ok::<(), counterflow::Error>(())
    /// ```
    pub fn batch_invariant(mut self) -> Self {
        self.batch_invariant = true;
        self
    }

    /// Sets how much is measured where no winner is known nearby, instead of what the environment variable `COUNTERFLOW_TUNE` says
    /// (`off`, `quick`, `full`). If neither says anything, it is [`Tuning::Quick`], and nothing is measured where ranks share a GPU,
    /// be they of this communicator or of one that it was split off, or where another communicator of this process is on one of the
    /// GPUs. Emulated ranks measure only what this call asks for. With [`Tuning::Off`], the choice is the same in every run.
    ///
    /// Candidates run in a communicator of their own, with memory of their own that [`Workspace::tuning`] tells and that is free again
    /// when [`OpBuilder::build`] returns. Where it is not there, nothing is measured and the model chooses. A candidate waits for a
    /// peer for little more than a second with [`Tuning::Quick`], three with [`Tuning::Full`], and at most a quarter of
    /// [`Communicator::timeout`]: if it stalls, as beside a kernel of another library, or of another communicator, that waits for its
    /// own peer, the trial ends on all ranks, the model chooses ([`Op::unmeasured`] says why), and this communicator goes on. Where
    /// such a kernel keeps the candidates from running at all, their memory is freed once they could run.
    ///
    /// All ranks take what rank 0 knows or measured with them; a product that each rank builds by itself is measured by each, among
    /// variants of the same bits. A winner is kept in the user's table, if nothing was settled, no SMs were left to others, no ranks
    /// share a GPU and no other communicator of the process is on the GPUs: the next program that builds the op measures nothing.
    /// Until it is kept, results may have other bits in the next run. Nothing is measured while a graph of the rank is recorded, or
    /// one lives that the program captured. Capture no other work meanwhile.
    ///
    /// ```
    /// use counterflow::{Communicator, schedules::GemmOp, tuning::Tuning};
    ///
    /// let rank = &Communicator::emulated(1)?[0];
    /// let builder = rank.op_of::<GemmOp>().tuning(Tuning::Off).up_to(64, 64, 64);
    /// assert_eq!(builder.workspace()?.tuning, 0);
    /// # Ok::<(), counterflow::Error>(())
    /// ```
    pub fn tuning(mut self, tuning: Tuning) -> Self {
        self.tuning = Some(tuning);
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
    /// let op = rank.op_of::<GemmOp>().pdl_after_foreign_kernels().first_options();
    /// let op = op.up_to(64, 64, 64).build()?;
    /// # Ok::<(), counterflow::Error>(())
    /// ```
    ///
    /// # Condition
    /// Every other kernel in that stream that was itself launched early waits for its own predecessor. One that ends
    /// without doing so lets this launch read what the kernel before it has not written yet.
    pub fn pdl_after_foreign_kernels(mut self) -> Self {
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
    /// let op = rank.op_of::<AgGemmOp>().sm_margin(32).up_to(4096, 2048, 64).build()?; // at most 100 CTAs
    /// let error = rank.op_of::<AgGemmOp>().sm_margin(132).up_to(64, 64, 64).build().unwrap_err();
    /// assert_eq!(error.to_string(), "132 of 132 SMs left to others");
    /// # Ok::<(), counterflow::Error>(())
    /// ```
    pub fn sm_margin(mut self, sms: u32) -> Self {
        self.left = sms;
        self
    }

    /// Memory that building will allocate. Nothing is allocated by this call.
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
        self.memory_to_build()
    }

    /// Proves what building is going to load, and compiles it into the cache. Nothing is loaded, measured or agreed on: each rank calls it
    /// when it likes, and for ops that are built one after another later it may run side by side. An emulated rank compiles nothing,
    /// unless `COUNTERFLOW_FILL` asks for it.
    ///
    /// ```
    /// use counterflow::{Communicator, schedules::GemmOp};
    ///
    /// let rank = &Communicator::emulated(1)?[0];
    /// let builders = [64, 128].map(|m| rank.op_of::<GemmOp>().first_options().up_to(m, 64, 64));
    /// std::thread::scope(|scope| {
    ///     for builder in &builders {
    ///         scope.spawn(|| builder.compile_ahead());
    ///     }
    /// });
    /// assert_eq!(rank.modules_loaded(), 0);
    /// let ops = builders.map(|builder| builder.build());
    /// assert!(ops.iter().all(|op| op.is_ok()) && rank.modules_loaded() == 2);
    /// # Ok::<(), counterflow::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`OpBuilder::build`], as far as proofs go. What does not compile is told by that.
    pub fn compile_ahead(&self) -> Result<(), Error> {
        self.compiles_ahead()
    }

    /// Chooses, proves, compiles or takes from the cache, loads, and agrees with the other ranks. Collective: every rank
    /// builds the same, in the same order. Only a kernel that has neither counters nor scratch, such as
    /// [`Communicator::op`]'s of a
    /// plain product, is built by each rank when it likes, or not at all.
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
        let programs = match &self.family {
            Some(family) => family.programs(),
            None => vec![&*self.program],
        };
        let together = self.family.is_some() || !self.program.counters.is_empty();
        for program in programs {
            self.rank.agrees_on_orders(program)?;
        }
        if let (Err(error), true) = (self.measures(), together) {
            // Only this rank's environment says so.
            return Err(self.rank.refuses(error));
        }
        let proofs = self.proofs(&|bucket, found| self.measured(bucket, found));
        let proofs = proofs.map_err(|error| match error {
            // What is wrong with a schedule, all ranks find; with the file of winners, perhaps one of them.
            Error::File { .. } => self.rank.refuses(error),
            error => error,
        })?;
        let between = self.between(&proofs)?;
        // The largest first: the others have their scratch in its memory.
        let rows = proofs.iter().map(|bucket| bucket.front.shape.m.to_string());
        let rows = rows.collect::<Vec<_>>().join(", ");
        let buckets = proofs.into_iter().map(|bucket| self.load(bucket, &rows));
        let mut buckets: Vec<Bucket> = buckets.collect::<Result<_, _>>()?;
        buckets.reverse();
        let inner = Inner {
            rank: Arc::new(self.rank.handle()),
            buckets,
            plans: Mutex::default(),
            early: self.early,
            left: self.left,
            between,
        };
        Ok(Op(Arc::new(inner), PhantomData))
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
                builder.sm_margin(left).build()
            };
            let ctas = |op: &Op, rows: usize| {
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
