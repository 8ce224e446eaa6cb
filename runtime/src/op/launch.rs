//! One launch of an op: what it is given, the checks, its place among the caller's work.

use super::argument;
use super::built::{Inner, Stage};
use super::given::{Argument, lenders};
use super::planes;
use super::sizes::Sizes;
use super::spare::{self, Given};
use crate::attempt::Attempt;
use crate::begins::Begins;
use crate::caller::{Caller, Captured, Order, Place, captured, in_order};
use crate::communicator::Communicator;
use crate::driver::{Current, Stream, range};
use crate::error::Error;
use crate::launch::{How, Ready, Tensors, follower};
use crate::metrics::{Clock, InGraph};
use crate::own::Work;
use crate::pending::Pending;
use crate::recording::Keeps;
use counterflow_codegen::plan::Plan;
use counterflow_codegen::program::TensorId;
use counterflow_codegen::verify::Checked;
use smallvec::SmallVec;
use std::any::Any;
use std::sync::Arc;
use tracing::debug;

/// As many as most launches have tensors, scales and all: those need no memory of their own.
type Few<T> = SmallVec<[T; 8]>;

/// Stages of a launch, with their plans and tensors. There are hardly more than two.
type Stages<'a> = SmallVec<[(&'a Stage, &'a Arc<Checked<Plan>>, Tensors); 2]>;

/// A launch that is being put together. Nothing is enqueued before [`Launch::launch`].
///
/// ```
/// use counterflow::{Communicator, prelude::bf16, schedules};
///
/// let rank = &Communicator::emulated(1)?[0];
/// let schedule = schedules::gemm();
/// let op = rank.op(&schedule).first_options().up_to(64, 64, 64).build()?;
/// let (x, mut y) = (rank.zeros::<bf16>([64, 64])?, rank.zeros::<bf16>([64, 64])?);
/// op.on(rank).tensor("x", &x).tensor("w", &x).tensor("y", &mut y).rows(40).launch()?.wait()?;
///
/// // What it writes is given by `&mut`.
/// let error = op.on(rank).tensor("x", &x).tensor("w", &x).tensor("y", &y).launch().unwrap_err();
/// println!("{error}: {}", error.help().unwrap_or_default());
/// # Ok::<(), counterflow::Error>(())
/// ```
#[derive(Debug)]
#[must_use = "nothing is enqueued before `launch`"]
pub struct Launch<'a> {
    op: &'a Inner,
    caller: Caller<'a>,
    given: Given<'a>,
    /// The first that is no tensor of the schedule, or has other scales.
    refused: Option<Box<Error>>,
    sizes: Sizes,
}

impl<'a> Launch<'a> {
    pub(super) fn new(op: &'a Inner, caller: Caller<'a>) -> Launch<'a> {
        Launch {
            op,
            caller,
            given: spare::take(),
            refused: None,
            sizes: Sizes::default(),
        }
    }

    /// Gives the schedule's tensor of that name: `&` an input, `&mut` an output. What is gathered may be given by `&`. A tensor with
    /// scales is given as a [`QuantTensor`](super::QuantTensor).
    pub fn tensor(mut self, name: &str, memory: impl Into<Argument<'a>>) -> Self {
        let (kernel, memory) = (self.op.kernel(), memory.into());
        match argument::find(kernel, name) {
            // Most are so, and each launch does this for each tensor.
            Ok(id) if planes::are_none(kernel, id, &memory) => self.given.push((id, memory)),
            given => match given.and_then(|id| planes::assign(kernel, id, memory)) {
                Ok(assigned) => self.given.extend(assigned.into_iter().flatten()),
                Err(refused) => {
                    self.refused.get_or_insert_with(|| Box::new(refused));
                }
            },
        }
        self
    }

    /// The rows of this launch over all ranks, at most those that the op was built for. All ranks give the same. If it
    /// is not called: as many as the op was built for. A launch of no rows looks at no tensor and enqueues no kernel, and counts
    /// as one where ranks wait for each other: all make it. It is refused where an output, or what ranks gather, has other rows.
    pub fn rows(mut self, m: usize) -> Self {
        self.sizes = self.sizes.rows(m);
        self
    }

    /// The depth of this launch on a rank, at most that which the op was built for. All ranks give the same. If it is not called:
    /// the op's. So a gradient of a weight is built once, and launched for each number of tokens.
    ///
    /// ```
    /// # use counterflow::{Communicator, Layout, prelude::bf16, schedules::WgradOp};
    /// # let rank = &Communicator::emulated(1)?[0];
    /// let op = rank.op_of::<WgradOp>().layout(Layout::Tn).up_to(64, 32, 4096).build()?;
    /// let (dy, x) = (rank.zeros::<bf16>([4096, 64])?, rank.zeros::<bf16>([4096, 32])?);
    /// let mut grad = rank.zeros::<f32>([64, 32])?;
    /// for tokens in [4096, 1000, 1] {
    ///     op.on(rank).dy(&dy).x(&x).grad(&mut grad).depth(tokens).launch()?.wait()?; // of the first rows of both
    /// }
    /// # Ok::<(), counterflow::Error>(())
    /// ```
    pub fn depth(mut self, k: usize) -> Self {
        self.sizes = self.sizes.depth(k);
        self
    }

    /// The columns of this launch on a rank, at most those that the op was built for. All ranks give the same. If it is not
    /// called: the op's.
    ///
    /// A launch of other columns is refused where columns of tiles have counters of their own and this launch has another number
    /// of them: the counters' places would move. Build an op for each such number.
    ///
    /// ```
    /// # use counterflow::{Communicator, prelude::bf16, schedules::GemmOp};
    /// # let rank = &Communicator::emulated(1)?[0];
    /// let op = rank.op_of::<GemmOp>().up_to(64, 256, 32).build()?;
    /// let (x, w) = (rank.zeros::<bf16>([64, 32])?, rank.zeros::<bf16>([256, 32])?);
    /// let mut y = rank.zeros::<bf16>([64, 128])?;
    /// op.on(rank).x(&x).w(&w).y(&mut y).columns(128).launch()?.wait()?; // of the first 128 rows of `w`
    /// # Ok::<(), counterflow::Error>(())
    /// ```
    pub fn columns(mut self, n: usize) -> Self {
        self.sizes = self.sizes.columns(n);
        self
    }

    /// The rows over all ranks of what moves beside the product in this launch, at most those that the op was built for. All ranks
    /// give the same. If it is not called: the op's. So an op whose product is of tokens, beside rows of as many, is built once.
    ///
    /// ```
    /// # use counterflow::{Communicator, Error, Shape, op::Sizes, prelude::bf16, schedules};
    /// # let ranks = Communicator::emulated(2)?;
    /// # Communicator::each(&ranks, |rank| {
    /// # rank.reserve(4 << 20)?;
    /// // y = x · wᵀ beside an all-gather of z
    /// let shape = Shape::new(32, 64, 16).dim("z.rows", 48).dim("z.columns", 16);
    /// let schedule = schedules::bulk();
    /// let op = rank.op(&schedule).first_options().shape(shape).build()?;
    /// assert_eq!(op.needs_at("z", Sizes::default().beside(10))?.shape, [10, 16]);
    /// let z = rank.allocate::<bf16>("z", [10, 16])?; // of fewer rows
    /// let (x, w) = (rank.zeros::<bf16>([32, 16])?, rank.zeros::<bf16>([64, 16])?);
    /// let mut y = rank.zeros::<bf16>([32, 64])?;
    /// op.on(rank).tensor("x", &x).tensor("w", &w).tensor("y", &mut y).tensor("z", &z).beside(10).launch()?.wait()
    /// # })?;
    /// # Ok::<(), Error>(())
    /// ```
    pub fn beside(mut self, rows: usize) -> Self {
        self.sizes = self.sizes.beside(rows);
        self
    }

    /// Enqueues it and returns at once; it waits for no peer, within two limits. What is given is kept for as long as the
    /// launch needs it.
    ///
    /// On a stream that the program captures, the launch becomes part of the program's graph, which keeps what is given
    /// until it is gone and its replays are done. Replays come in the order of the rank's other work, as launches do. No call
    /// sees them, so they are compared on the GPUs: all ranks replay equally often, in one order among their launches, and one
    /// at a time. A difference is [`Error::Mismatch`]; a replay that a rank does not make is waited for until the time limit.
    /// Once something was captured, each launch of the rank costs its host about 6 µs more. cudarc's slices are
    /// refused there: no graph can keep them. Of ranks in one process, one captures at a time, and makes its graph ready before
    /// the next, or none captures in CUDA's global mode: another thread that makes a graph ready ends such a capture.
    ///
    /// A rank may be 4,096 launches ahead of the slowest one, since the launches of ranks are compared. Where copy engines
    /// move data, the host may be 8 such launches ahead of its own GPU. A launch beyond a limit waits until the
    /// slowest rank, or the GPU, has caught up; every wait ends after the time limit.
    ///
    /// # Errors
    /// [`Error::Usage`], before anything is enqueued, for a tensor that is absent or has another name, type, shape,
    /// communicator or GPU than it needs, for an output given by `&`, for tensors that overlap where one is written, and
    /// for a stream of another GPU. [`Error::NotYet`] for copies by copy engine in a stream that records a graph. [`Error::Rejected`] for sizes that the op was not built
    /// for. [`Error::Mismatch`] if a peer launches something else. [`Error::Stalled`] if an earlier launch gave up.
    /// A refusal before anything was enqueued ends nothing: correct the launch and make it. Peers that wait for it too long,
    /// or for a rank that leaves instead, are told what it was refused. A launch that fails later ends the communicator, where
    /// ranks wait for each other.
    pub fn launch(self) -> Result<Pending, Error> {
        let Launch {
            op,
            caller,
            mut given,
            refused,
            sizes,
        } = self;
        op.rank.alive()?;
        let order = caller.order(&op.rank);
        let attempt = Attempt::new(&op.rank);
        let launched = match refused {
            None => op.launch(&mut given, sizes, &order, &attempt),
            Some(refused) => Err(*refused),
        };
        spare::keep(given);
        let waits = !order.records() && op.largest().waiting(&op.rank).is_some();
        attempt.told(waits, &op.kernel().name, launched)
    }
}

impl Inner {
    /// Launches with those tensors, once they were checked.
    fn launch(
        &self,
        given: &mut Given<'_>,
        sizes: Sizes,
        order: &Order<'_>,
        attempt: &Attempt<'_>,
    ) -> Result<Pending, Error> {
        let op = self;
        let rank = &op.rank;
        let current = rank.gpu().current()?;
        let place = order.place(rank, current)?;
        let [m, n, k] = sizes.of(op.largest().proof.series.most());
        if m == 0 {
            return match op.beside_rows() {
                None => nothing(op, current, place, attempt),
                Some(name) => Err(Error::Usage {
                    what: format!("a launch of no rows, where {name} has others"),
                    legal: "skip the launch on all ranks, or launch at least one row".into(),
                }),
            };
        }
        let _range = range(|| {
            let name = &op.kernel().name;
            format!(
                "launch {name}, rank {}, M = {m}, N = {n}, K = {k}",
                rank.rank()
            )
        });
        let planned = op.plan(sizes)?;
        let bucket = &op.buckets[planned.bucket];
        let kernel = bucket.kernel();
        let largest = std::ptr::eq(bucket, op.largest());
        let own = rank.own_stream();
        let outside = match place {
            Place::Outside(stream) => Some(stream),
            Place::Own | Place::Recording(_) | Place::Captured(_) => None,
        };
        let priority = match place {
            Place::Outside(stream) | Place::Captured(stream) => current.priority(stream)?,
            Place::Own | Place::Recording(_) => 0,
        };
        let records = matches!(place, Place::Recording(_) | Place::Captured(_));
        // A strict capture of this thread's forbids what is enqueued beside it.
        let _mode = records.then(|| rank.gpu().relaxed());
        let users = outside.unwrap_or(own);
        let waits = bucket.waiting(rank).is_some();
        let mut ids: Few<TensorId> = Few::new();
        // Those of other libraries' memory, each once.
        let mut theirs: Vec<Stream> = Vec::new();
        for (id, argument) in given.iter() {
            let name = || argument::called(op.kernel(), *id);
            let known = &op.kernel().buffers[id.index()].name;
            let same = match largest {
                true => Some(*id),
                false => argument::same(kernel, known),
            };
            let id = same.ok_or_else(|| Error::Usage {
                what: format!(
                    "{} for the kernel of this number of rows, which has no such tensor",
                    name()
                ),
                legal: "this is a bug of counterflow: please report it with the op's description"
                    .into(),
            })?;
            if ids.contains(&id) {
                return Err(Error::Usage {
                    what: format!("{} was given twice", name()),
                    legal: "give every tensor once".into(),
                });
            }
            let given = argument.given(name, rank, (records, waits))?;
            argument::check_one(kernel, &planned, id, &given)?;
            ids.push(id);
            if let Some(stream) = argument.stream(rank)
                && !stream.is(users)
                && !theirs.iter().any(|known| known.is(&stream))
            {
                if current.is_capturing(&stream) {
                    return Err(Error::Usage {
                        what: format!("the stream of {} records a graph", name()),
                        legal: "end the recording first".into(),
                    });
                }
                theirs.push(stream);
            }
        }
        argument::check_all(kernel, &ids)?;
        let _turn = rank.turn(current)?;
        // What is recorded is in no stream.
        let streams = (!records).then_some(own).into_iter();
        let streams = streams.chain(outside).chain(&theirs);
        let lenders = lenders(rank, given.iter().map(|(_, argument)| argument), &streams)?;
        let passage = rank.passes(streams, waits.into())?;
        // To open another library's memory makes a stream wait for its users, so all that needs no address is checked.
        for stream in &theirs {
            current.wait(users, &current.order(stream)?)?;
        }
        let foreign = given.iter().any(|(_, argument)| argument.is_foreign());
        let (mut opened, mut starts): (Few<_>, Few<_>) = (Few::new(), Few::new());
        for (id, (_, argument)) in ids.into_iter().zip(given.iter_mut()) {
            let open = argument.open(users)?;
            starts.push((id, open.start()));
            opened.push((id, open));
        }
        argument::check_starts(kernel, &planned, &starts)?;
        let mut stages = Stages::new();
        for (stage, plan) in bucket.stages.iter().zip(&planned.stages) {
            let tensors = stage.tensors(&opened, op.between.as_ref());
            stages.push((stage, plan, tensors));
        }
        // What a graph keeps beside the kernels.
        let kept = || {
            let given = opened.iter().filter_map(|(_, open)| open.kept());
            let between = op.between.clone();
            given.chain(between.map(|between| between as Arc<dyn Any + Send + Sync>))
        };
        // What a stage moves over links: of several, the one that waits for other ranks.
        let moves = |stage: &Stage| match bucket.stages.len() == 1 || stage.loaded.waits(rank) {
            true => planned.bytes,
            false => 0,
        };
        if records {
            for stage in &bucket.stages {
                stage.loaded.may_be_recorded()?;
            }
        }
        let how = |stream, keeps, unfinished| How {
            attempt,
            current,
            stream,
            early: false,
            unfinished,
            follower: 0,
            priority,
            keeps,
            records,
        };
        // No other kernels in the rank's order, and no other library's memory.
        let ours = !foreign && (op.early || !rank.has_lent());
        let follows = Follows {
            rank,
            left: op.left,
            ours,
        };
        if let Place::Recording(recording) = place {
            let stream = recording.records_in();
            let timed = rank.metrics().times();
            let how = how(stream, Some(recording), Some(recording.unfinished()));
            // An event that times a launch stands between it and the next.
            let follows = follows.unless(timed);
            let launches = all_ready(rank, how, false, &follows, &stages)?;
            // Before anything is recorded that uses it.
            kept().for_each(|thing| recording.keep(thing));
            for (launch, (stage, plan, tensors)) in launches.into_iter().zip(&stages) {
                let ctas = launch.ctas();
                recording.keep(stage.loaded.clone());
                let clock = timed
                    .then(|| Clock::new(current, own, stream))
                    .transpose()?;
                launch.enqueue(clock.as_ref().map(|clock| clock as &dyn Begins))?;
                let times = clock.map(Clock::end).transpose()?;
                let entry = stage.loaded.entry(rank, plan, tensors);
                let events = times
                    .clone()
                    .map(|times| times as Arc<dyn Any + Send + Sync>);
                recording.add((entry, ctas), events);
                stage.counted.recorded();
                rank.own().counts(Work::Kernel);
                recording.counts(InGraph {
                    counted: stage.counted.clone(),
                    rows: m,
                    bytes: moves(stage),
                    times,
                });
            }
            return Ok(Pending::recorded(rank));
        }
        if let Place::Captured(stream) = place {
            let mut entries = stages.iter();
            let entry =
                entries.find_map(|(stage, plan, tensors)| stage.loaded.entry(rank, plan, tensors));
            return captured(rank, current, stream, entry.as_ref(), |graph, begins| {
                let how = How {
                    keeps: Some(graph),
                    ..how(stream, None, None)
                };
                let launches = all_ready(rank, how, false, &follows.unless(true), &stages)?;
                // Before anything is captured that uses it.
                let kernels = stages.iter().map(|(stage, ..)| stage.loaded.clone());
                let kernels = kernels.map(|kernel| kernel as Arc<dyn Any + Send + Sync>);
                kept().chain(kernels).for_each(|thing| graph.keep(thing));
                attempt.enters();
                let mut begins = Some(begins);
                let mut launches = launches.into_iter();
                launches.try_for_each(|launch| {
                    rank.own().counts(Work::Kernel);
                    launch.enqueue(begins.take())
                })
            });
        }
        let early = outside.is_none() && ours;
        let how = how(own, None, Some(rank.own().unfinished()));
        let follows = follows.unless(rank.metrics().times());
        let launches = all_ready(rank, how, early, &follows, &stages)?;
        let lent = (passage, lenders);
        let done = in_order(rank, current, lent, outside, &theirs, || {
            let mut launches = launches.into_iter().zip(&bucket.stages);
            launches.try_for_each(|(launch, stage)| match rank.metrics().times() {
                true => stage
                    .counted
                    .timed(own, |start| launch.enqueue(Some(start))),
                false => launch.enqueue(None),
            })
        })?;
        // The launch is enqueued: what uses or frees another library's memory later comes after it.
        drop(stages);
        drop(opened);
        for stage in &bucket.stages {
            stage.counted.launched(m, moves(stage));
            rank.own().counts(Work::Kernel);
        }
        debug!(
            rank = rank.rank(),
            schedule = %bucket.name(),
            variant = %bucket.main().proof.variant,
            rows = m,
            columns = n,
            depth = k,
            bytes = planned.bytes,
            fused = bucket.main().counted.fused,
            "launch"
        );
        Ok(done)
    }
}

/// How a stage of a launch may begin while the one before it runs: nothing else is between them in the stream.
struct Follows<'a> {
    rank: &'a Communicator,
    /// SMs that launches leave to others.
    left: u32,
    /// True if all that may be between them is ours.
    ours: bool,
}

impl Follows<'_> {
    /// None do, if something else stands between stages.
    fn unless(self, between: bool) -> Self {
        Follows {
            ours: self.ours && !between,
            ..self
        }
    }

    /// CTAs of the stage `next` that may come while the one before it, of that plan, waits for peers.
    fn ctas(&self, plan: &Plan, next: Option<&(&Stage, &Arc<Checked<Plan>>, Tensors)>) -> u32 {
        next.filter(|_| self.ours)
            .map_or(0, |(next, next_plan, _)| {
                follower(self.rank, self.left, plan, (&next.loaded, next_plan))
            })
    }
}

/// Makes the stages of a launch ready, one and all, before the first is enqueued. Peers know of it then. The first may begin
/// early where `early` says so, a later one where it follows.
fn all_ready<'a>(
    rank: &'a Communicator,
    how: How<'a>,
    early: bool,
    follows: &Follows<'_>,
    stages: &'a Stages<'_>,
) -> Result<SmallVec<[Ready<'a>; 2]>, Error> {
    let mut launches: SmallVec<[Ready<'a>; 2]> = SmallVec::new();
    for (at, (stage, plan, tensors)) in stages.iter().enumerate() {
        let how = How {
            early: if at == 0 { early } else { follows.ours },
            follower: follows.ctas(plan, stages.get(at + 1)),
            ..how
        };
        launches.push(stage.loaded.ready(rank, how, plan, tensors)?);
    }
    launches.iter_mut().try_for_each(Ready::write)?;
    Ok(launches)
}

/// A launch that has nothing to do: it takes its place in the caller's order, and among the launches that ranks compare. No
/// rank's counters move, so the next launch waits for what it would have waited for.
fn nothing(
    op: &Inner,
    current: Current<'_>,
    place: Place<'_>,
    attempt: &Attempt<'_>,
) -> Result<Pending, Error> {
    let rank = &op.rank;
    let waiting = op.largest().waiting(rank);
    let entry = waiting.and_then(|stage| stage.loaded.entry_of_no_rows(rank));
    let outside = match place {
        Place::Recording(recording) => {
            recording.add((entry, 0), []);
            return Ok(Pending::recorded(rank));
        }
        Place::Captured(stream) => {
            let _turn = rank.turn(current)?;
            let _mode = rank.gpu().relaxed();
            let begins = |_: &Captured, begins: &dyn Begins| begins.begin();
            return captured(rank, current, stream, entry.as_ref(), begins);
        }
        Place::Outside(stream) => Some(stream),
        Place::Own => None,
    };
    let _turn = rank.turn(current)?;
    let streams = std::iter::once(rank.own_stream()).chain(outside);
    // No peer waits for it.
    let passage = rank.passes(streams, 0)?;
    in_order(rank, current, (passage, Vec::new()), outside, &[], || {
        let written = entry
            .as_ref()
            .map(|entry| attempt.write(entry))
            .transpose()?;
        let _entering = rank.own_stream().enter()?;
        match (written, &entry) {
            (Some(launch), Some(entry)) => attempt.compare(launch, entry),
            (None, _) | (_, None) => Ok(()),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A longer borrow becomes a shorter one: tensors may be borrowed for less time than the op.
    #[test]
    fn a_launch_is_covariant() {
        fn shorter<'s>(long: Launch<'static>, _: &'s str) -> Launch<'s> {
            long
        }
        let _ = shorter;
    }
}
