//! Counts of builds and launches on a rank, for metrics exporters.

use crate::begins::Begins;
use crate::driver::{Current, Event, Stream};
use crate::error::Error;
use counterflow_codegen::kernel::{Kernel, RoleKind};
use std::cell::OnceCell;
use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Timed launches whose events are kept, at most: the GPU is hardly ever so far behind.
const PENDING: usize = 1024;

/// Reason that an op has its choices.
///
/// [`OpCounts`] has an example.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Why {
    /// The caller settled all choices, or the schedule has none.
    OnlyOne,
    /// The caller asked for the first options ([`OpBuilder::first_options`](crate::OpBuilder::first_options)).
    FirstOptions,
    /// The choices won a measurement of this shape, or of one nearby.
    Measured,
    /// The model predicts that they are the fastest.
    Model,
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Why::OnlyOne => "the only choice",
            Why::FirstOptions => "first options",
            Why::Measured => "measured",
            Why::Model => "the model's",
        })
    }
}

/// Counts of all ops of one schedule and variant on a rank. They only grow, also when ops are dropped.
///
/// ```
/// use counterflow::Communicator;
/// use counterflow::metrics::{OpCounts, Why};
///
/// /// Lines for an exporter.
/// fn lines(rank: &Communicator) -> impl Iterator<Item = String> {
///     let all: Vec<OpCounts> = rank.op_counts();
///     all.into_iter().map(|of| {
///         let by_model = of.why == Why::Model;
///         format!("launches{{op={:?},by_model={by_model}}} {}", of.schedule, of.launches)
///     })
/// }
/// # let _ = lines;
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OpCounts {
    /// The schedule's name.
    pub schedule: String,
    /// The variant, as logs name it.
    pub variant: String,
    /// Reason that the first of them had these choices.
    pub why: Why,
    /// True if one kernel both multiplies and moves data between ranks.
    pub fused: bool,
    /// Ops built.
    pub built: u64,
    /// Launches enqueued, without those in graphs and those of no rows.
    pub launches: u64,
    /// Launches recorded in graphs.
    pub recorded: u64,
    /// Launches by replays of [`Graph`](crate::Graph)s. Replays of graphs that the program captured call nobody, so nobody counts
    /// them.
    pub replayed: u64,
    /// Rows of the launches and the replayed ones together.
    pub rows: u64,
    /// Bytes that these move over this rank's links, those that their tensors need: what is gathered counts where it arrives,
    /// what is summed where it leaves.
    pub bytes: u64,
    /// Launches, replayed ones too, that were timed and are done
    /// ([`Communicator::time_launches`](crate::Communicator::time_launches)).
    pub timed: u64,
    /// Time of those on the GPU.
    pub gpu_time: Duration,
}

/// Work that a rank put into its own order, or recorded in graphs. Numbers only grow.
///
/// ```
/// use counterflow::{Communicator, metrics::Enqueued};
///
/// /// Launches and copies between two counts.
/// fn between(before: Enqueued, after: Enqueued) -> u64 {
///     let all = |of: Enqueued| of.kernels + of.steps + of.copies + of.fills;
///     all(after) - all(before)
/// }
/// # let rank = &Communicator::emulated(1)?[0];
/// let before = rank.enqueued();
/// rank.zeros::<f32>([1, 4])?.fill(1)?;
/// assert_eq!(between(before, rank.enqueued()), 1);
/// # Ok::<(), counterflow::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Enqueued {
    /// Kernels of ops.
    pub kernels: u64,
    /// [`Step`](crate::op::Step)s: kernels of the program's own, quantisers and side kernels. Most have one kernel.
    pub steps: u64,
    /// Copies from tensors and user buffers to others.
    pub copies: u64,
    /// Bytes of these copies.
    pub copied_bytes: u64,
    /// Fills of tensors and user buffers.
    pub fills: u64,
}

/// The counts of one schedule and variant.
#[derive(Debug)]
pub(crate) struct Counted {
    why: Why,
    pub fused: bool,
    built: AtomicU64,
    launches: AtomicU64,
    recorded: AtomicU64,
    replayed: AtomicU64,
    rows: AtomicU64,
    bytes: AtomicU64,
    times: Mutex<Times>,
}

/// Begin of a launch's kernel.
#[derive(Debug)]
struct Begun<'a> {
    stream: &'a Stream,
    start: OnceCell<Event>,
}

impl Begins for Begun<'_> {
    fn begin(&self) -> Result<(), Error> {
        let event = Event::record(self.stream)?;
        // A launch begins once.
        let _ = self.start.set(event);
        Ok(())
    }
}

/// Times on the GPU.
#[derive(Debug, Default)]
struct Times {
    /// Events at the begin and end of launches, the oldest first.
    pending: VecDeque<Arc<[Event; 2]>>,
    done: u64,
    total: Duration,
}

impl Times {
    /// Adds up launches that are done, in order.
    fn settle(&mut self) {
        let is_done = |times: &Arc<[Event; 2]>| times[1].is_done().unwrap_or(true);
        while self.pending.front().is_some_and(is_done) {
            let Some(times) = self.pending.pop_front() else {
                return;
            };
            let [start, end] = &*times;
            // A launch that died has no time.
            if let Ok(time) = end.since(start) {
                self.done += 1;
                self.total += time;
            }
        }
    }

    fn push(&mut self, times: Arc<[Event; 2]>) {
        self.settle();
        if self.pending.len() == PENDING {
            self.pending.pop_front();
        }
        self.pending.push_back(times);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Counted {
    /// A launch was recorded in a graph.
    pub fn recorded(&self) {
        self.recorded.fetch_add(1, Ordering::Relaxed);
    }

    /// A launch was enqueued.
    pub fn launched(&self, rows: u32, bytes: u64) {
        self.launches.fetch_add(1, Ordering::Relaxed);
        self.add(rows, bytes);
    }

    fn add(&self, rows: u32, bytes: u64) {
        self.rows.fetch_add(rows.into(), Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Enqueues a launch in that stream, which begins with what `launch` is given, and its end.
    pub fn timed(
        &self,
        stream: &Stream,
        launch: impl FnOnce(&dyn Begins) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let begun = Begun {
            stream,
            start: OnceCell::new(),
        };
        launch(&begun)?;
        let Some(start) = begun.start.into_inner() else {
            return Ok(());
        };
        let end = Event::record(stream)?;
        lock(&self.times).push(Arc::new([start, end]));
        Ok(())
    }

    fn counts(&self, (schedule, variant): (&str, &str)) -> OpCounts {
        let mut times = lock(&self.times);
        times.settle();
        let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
        OpCounts {
            schedule: schedule.into(),
            variant: variant.into(),
            why: self.why,
            fused: self.fused,
            built: of(&self.built),
            launches: of(&self.launches),
            recorded: of(&self.recorded),
            replayed: of(&self.replayed),
            rows: of(&self.rows),
            bytes: of(&self.bytes),
            timed: times.done,
            gpu_time: times.total,
        }
    }
}

/// Begin and end of a launch in a graph, at each replay.
#[derive(Debug)]
pub(crate) struct Clock<'a> {
    current: Current<'a>,
    records: &'a Stream,
    events: [Event; 2],
}

impl<'a> Clock<'a> {
    /// For a launch that the stream `records`, of the rank with that stream of its own.
    pub fn new(current: Current<'a>, own: &Stream, records: &'a Stream) -> Result<Self, Error> {
        // Events that keep time are made where they are recorded first.
        let events = [Event::record(own)?, Event::record(own)?];
        Ok(Clock {
            current,
            records,
            events,
        })
    }

    /// The launch is recorded.
    pub fn end(self) -> Result<Arc<[Event; 2]>, Error> {
        self.current
            .record_in_replays(self.records, &self.events[1])?;
        Ok(Arc::new(self.events))
    }
}

impl Begins for Clock<'_> {
    fn begin(&self) -> Result<(), Error> {
        self.current
            .record_in_replays(self.records, &self.events[0])
    }
}

/// A launch in a graph, whose replays are counted.
#[derive(Debug)]
pub(crate) struct InGraph {
    pub counted: Arc<Counted>,
    pub rows: u32,
    pub bytes: u64,
    /// Events at the begin and end of each replay, if replays are timed.
    pub times: Option<Arc<[Event; 2]>>,
}

impl InGraph {
    /// A replay is about to be enqueued. If the one before still runs, nobody learns how long it takes.
    pub fn replays(&self) {
        if let Some(own) = &self.times {
            let mut times = lock(&self.counted.times);
            times.settle();
            times.pending.retain(|times| !Arc::ptr_eq(times, own));
        }
    }

    /// Counts a replay: it is enqueued.
    pub fn replayed(&self) {
        self.counted.replayed.fetch_add(1, Ordering::Relaxed);
        self.counted.add(self.rows, self.bytes);
        if let Some(own) = &self.times {
            lock(&self.counted.times).push(own.clone());
        }
    }
}

/// The counts of a rank.
#[derive(Debug, Default)]
pub(crate) struct Metrics {
    /// By schedule and variant.
    ops: Mutex<BTreeMap<(String, String), Arc<Counted>>>,
    times: AtomicBool,
}

impl Metrics {
    /// Counts that an op was built, and gives where its launches are counted.
    pub fn built(&self, kernel: &Kernel, why: Why) -> Arc<Counted> {
        let key = (kernel.name.clone(), kernel.variant.to_string());
        let mut ops = lock(&self.ops);
        let counted = ops.entry(key).or_insert_with(|| {
            Arc::new(Counted {
                why,
                fused: is_fused(kernel),
                built: AtomicU64::default(),
                launches: AtomicU64::default(),
                recorded: AtomicU64::default(),
                replayed: AtomicU64::default(),
                rows: AtomicU64::default(),
                bytes: AtomicU64::default(),
                times: Mutex::default(),
            })
        });
        counted.built.fetch_add(1, Ordering::Relaxed);
        counted.clone()
    }

    /// The counts so far, by schedule and variant.
    pub fn counts(&self) -> Vec<OpCounts> {
        let ops = lock(&self.ops);
        let each = ops.iter();
        each.map(|((schedule, variant), counted)| counted.counts((schedule, variant)))
            .collect()
    }

    /// Times launches from now on, or no more.
    pub fn time(&self, on: bool) {
        self.times.store(on, Ordering::Relaxed);
    }

    /// True if launches are timed.
    pub fn times(&self) -> bool {
        self.times.load(Ordering::Relaxed)
    }
}

/// True if a kernel both multiplies and moves data between ranks.
fn is_fused(kernel: &Kernel) -> bool {
    let mut roles = kernel.roles.iter();
    let multiplies = roles.any(|role| matches!(role.kind, RoleKind::Gemm(_)));
    let mut buffers = kernel.buffers.iter();
    multiplies && kernel.variant.world > 1 && buffers.any(|buffer| buffer.usage.placement.symmetric)
}
