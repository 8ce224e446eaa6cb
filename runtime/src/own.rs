//! A rank's own stream, and who may put work into it when.

use crate::done::Latest;
use crate::driver::{self, Address, Current, Gpu, Stream, is_done};
use crate::error::{Error, Stall};
use crate::retire::{self, Mark};
use crate::this_thread::this_thread;
use crate::unfinished::Unfinished;
use std::any::Any;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tracing::debug;

/// A rank's own stream.
#[derive(Debug)]
pub(crate) struct Own {
    gpu: Gpu,
    stream: Stream,
    /// True if others were given the stream: then it may hold their kernels.
    lent: AtomicBool,
    turns: Mutex<Turns>,
    free: Condvar,
    /// Time that a thread waits for another's turn to end.
    limit: Duration,
    latest: Latest,
    /// Graphs that the program captured with launches of the rank, while it may replay them.
    captures: AtomicUsize,
    /// Recordings of graphs that have not ended.
    recordings: AtomicUsize,
    /// Tensors that were allocated.
    allocated: AtomicU64,
    /// Modules that were loaded.
    loaded: AtomicU64,
    /// Waits of the host for the stream's work.
    waits: AtomicU64,
    /// Work that was put into the stream, or into a graph: kernels of ops, steps, copies, fills.
    enqueued: [AtomicU64; 4],
    /// Bytes of these copies.
    copied: AtomicU64,
    /// Launches in the stream that may still run.
    unfinished: Unfinished,
    /// Graph that a thread records the rank's own order into, and that thread.
    recording: Mutex<Option<(usize, Arc<dyn Records>)>>,
}

/// Kind of work in a rank's own order.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Work {
    Kernel,
    Step,
    Copy,
    Fill,
}

/// Owner of some memory.
type Memory = Arc<dyn Any + Send + Sync>;

/// Graph that a rank's own order is recorded into.
pub(crate) trait Records: std::fmt::Debug + Send + Sync {
    /// Stream that records.
    fn stream(&self) -> &Stream;

    /// Keeps the memory for as long as the graph and its replays.
    fn keeps(&self, memory: Memory);

    /// No other recording of this process has it.
    fn number(&self) -> u64;

    /// The recording itself, for those that know it.
    fn itself(self: Arc<Self>) -> Memory;
}

/// The rank's own order is recorded until this is dropped.
#[derive(Debug)]
pub(crate) struct Recorded<'a>(&'a Own);

impl Drop for Recorded<'_> {
    fn drop(&mut self) {
        *self.0.recorded() = None;
    }
}

/// Turns of a rank's threads: they launch one after another.
#[derive(Debug, Default)]
struct Turns {
    /// The thread that enqueues something that waits for others.
    holder: Option<usize>,
    /// Number of threads that wait for their turn.
    waiting: usize,
}

/// A rank's turn to enqueue, until it is dropped.
#[derive(Debug)]
pub(crate) struct Turn<'a>(&'a Own);

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let waiting = {
            let mut turns = self.0.turns();
            turns.holder = None;
            turns.waiting
        };
        // To wake nobody is a call of the system, too: a good part of what a launch costs.
        if waiting > 0 {
            self.0.free.notify_one();
        }
    }
}

impl Turns {
    fn is_mine(&self) -> bool {
        self.holder == Some(this_thread())
    }
}

/// Refusal of a call that would wait for the turn that its own thread has.
fn waits_for_itself(what: &str) -> Error {
    Error::Usage {
        what: format!("{what} within `Step::launch`, whose closure has the rank's turn to enqueue"),
        legal: "do it before the step or after it: the closure only enqueues the step's own kernels, in the stream that it is given".into(),
    }
}

impl Own {
    /// Nobody has it yet.
    pub fn new(gpu: &Gpu, stream: &Stream, limit: Duration) -> Own {
        Own {
            gpu: gpu.clone(),
            stream: stream.clone(),
            lent: AtomicBool::new(false),
            turns: Mutex::default(),
            free: Condvar::new(),
            limit,
            latest: Latest::default(),
            captures: AtomicUsize::new(0),
            recordings: AtomicUsize::new(0),
            allocated: AtomicU64::new(0),
            loaded: AtomicU64::new(0),
            waits: AtomicU64::new(0),
            enqueued: Default::default(),
            copied: AtomicU64::new(0),
            unfinished: Unfinished::default(),
            recording: Mutex::default(),
        }
    }

    fn recorded(&self) -> MutexGuard<'_, Option<(usize, Arc<dyn Records>)>> {
        self.recording
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets this thread's work in the rank's own order join a graph, until what is given back is dropped.
    ///
    /// # Errors
    /// [`Error::Usage`] while some thread records it already.
    pub fn records(&self, recording: Arc<dyn Records>) -> Result<Recorded<'_>, Error> {
        let mut recorded = self.recorded();
        if recorded.is_some() {
            return Err(Error::Usage {
                what: "a recording of a rank's own order within another".into(),
                legal: "end the first one before".into(),
            });
        }
        *recorded = Some((this_thread(), recording));
        Ok(Recorded(self))
    }

    /// Graph that this thread records the rank's own order into, if it does.
    pub fn recording(&self) -> Option<Arc<dyn Records>> {
        let recorded = self.recorded();
        let own = recorded
            .as_ref()
            .filter(|(thread, _)| *thread == this_thread());
        own.map(|(_, recording)| recording.clone())
    }

    /// Enqueues other work than a launch in the stream: the next launch begins behind the end of all before it. Told once the work
    /// is enqueued, as a launch of another thread may have come meanwhile.
    pub fn enqueues<T>(&self, work: impl FnOnce(&Stream) -> T) -> T {
        let enqueued = work(&self.stream);
        self.unfinished.unknown();
        enqueued
    }

    /// Copies so many bytes in the rank's own order. A graph that records it keeps `memory`, which both are in.
    pub fn copies(
        &self,
        [to, from]: [Address; 2],
        bytes: u64,
        memory: [Memory; 2],
    ) -> Result<(), Error> {
        self.counts(Work::Copy);
        self.copied.fetch_add(bytes, Ordering::Relaxed);
        let Some(recording) = self.recording() else {
            return self.enqueues(|stream| driver::copy(stream, to, from, bytes));
        };
        memory
            .into_iter()
            .for_each(|memory| recording.keeps(memory));
        driver::enqueue_copy(recording.stream(), to, from, bytes)
    }

    /// Sets so many bytes in the rank's own order. A graph that records it keeps `memory`, which they are in.
    pub fn fills(&self, at: Address, byte: u8, bytes: u64, memory: Memory) -> Result<(), Error> {
        self.counts(Work::Fill);
        let Some(recording) = self.recording() else {
            return self.enqueues(|stream| driver::fill(stream, at, byte, bytes));
        };
        recording.keeps(memory);
        driver::enqueue_fill(recording.stream(), at, byte, bytes)
    }

    /// Rejects what the host does now while this thread records the rank's own order: no replay would do it.
    ///
    /// # Errors
    /// [`Error::Usage`].
    pub fn must_not_record(&self, what: &str) -> Result<(), Error> {
        match self.recording() {
            None => Ok(()),
            Some(_) => Err(Error::Usage {
                what: format!("{what} while this thread records the rank's own order"),
                legal: "do it before `Communicator::capture_own` or after it: graphs have launches, copies and fills"
                    .into(),
            }),
        }
    }

    /// Counts a wait of the host for the stream's work.
    ///
    /// # Errors
    /// [`Error::Usage`] where this thread records the rank's own order.
    pub fn waits(&self) -> Result<(), Error> {
        self.must_not_record("a wait of the host")?;
        self.waits.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// Waits of the host for the stream's work.
    pub fn waited(&self) -> u64 {
        self.waits.load(Ordering::Relaxed)
    }

    /// Counts a tensor that was allocated.
    pub fn allocates(&self) {
        self.allocated.fetch_add(1, Ordering::Relaxed);
    }

    /// Tensors that were allocated.
    pub fn allocated(&self) -> u64 {
        self.allocated.load(Ordering::Relaxed)
    }

    /// Counts a module that is loaded.
    pub fn loads(&self) {
        self.loaded.fetch_add(1, Ordering::Relaxed);
    }

    /// Modules that were loaded.
    pub fn loaded(&self) -> u64 {
        self.loaded.load(Ordering::Relaxed)
    }

    /// Counts work that is enqueued or recorded.
    pub fn counts(&self, work: Work) {
        self.enqueued[work as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Work that was enqueued or recorded, by kind.
    pub fn enqueued(&self) -> [u64; 4] {
        [0, 1, 2, 3].map(|kind: usize| self.enqueued[kind].load(Ordering::Relaxed))
    }

    /// Bytes of the copies among it.
    pub fn copied(&self) -> u64 {
        self.copied.load(Ordering::Relaxed)
    }

    /// GPU of the rank.
    pub fn gpu(&self) -> &Gpu {
        &self.gpu
    }

    /// The stream, for what waits for nobody.
    pub fn stream(&self) -> &Stream {
        &self.stream
    }

    /// End of its latest launch.
    pub fn latest(&self) -> &Latest {
        &self.latest
    }

    /// Launches in it that may still run.
    pub fn unfinished(&self) -> &Unfinished {
        &self.unfinished
    }

    /// True if it may hold kernels that are not ours.
    pub fn has_lent(&self) -> bool {
        self.lent.load(Ordering::Acquire)
    }

    fn turns(&self) -> MutexGuard<'_, Turns> {
        self.turns.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// True if this thread has the turn: code of the program's own runs within one of its steps.
    fn is_mine(&self) -> bool {
        self.turns().is_mine()
    }

    /// Rejects a call that waits for this turn, or for peers whose calls do, from a thread that has it: it would wait for
    /// itself.
    ///
    /// # Errors
    /// [`Error::Usage`].
    pub fn must_not_have_turn(&self, what: &str) -> Result<(), Error> {
        match self.is_mine() {
            true => Err(waits_for_itself(what)),
            false => Ok(()),
        }
    }

    fn lock(&self) -> Result<Turn<'_>, Error> {
        let mut turns = self.turns();
        if turns.is_mine() {
            return Err(waits_for_itself("a launch or an allocation"));
        }
        let mut since = None;
        while turns.holder.is_some() {
            let start = *since.get_or_insert_with(Instant::now);
            let left = self.limit.saturating_sub(start.elapsed());
            if left.is_zero() {
                return Err(Error::Stalled(Box::new(Stall {
                    role: "its thread has something to enqueue".into(),
                    waited_on: "steps of another thread of the same rank that ended".into(),
                    wanted: 1,
                    ..Stall::default()
                })));
            }
            turns.waiting += 1;
            let waited = self.free.wait_timeout(turns, left);
            turns = waited.unwrap_or_else(PoisonError::into_inner).0;
            turns.waiting -= 1;
        }
        turns.holder = Some(this_thread());
        Ok(Turn(self))
    }

    /// The turn to launch: what is written into the ledger first is enqueued first.
    ///
    /// # Errors
    /// What the driver refuses.
    pub fn turn(&self, current: Current<'_>) -> Result<Turn<'_>, Error> {
        let turn = self.lock()?;
        self.latest.settle(current, &self.stream).map(|()| turn)
    }

    /// The turn to enqueue something else that may wait for others.
    ///
    /// # Errors
    /// What the driver refuses.
    pub fn settled(&self) -> Result<Turn<'_>, Error> {
        // Memory is about to be taken: what graphs kept that are gone makes room.
        retire::sweep();
        let turn = self.turn(self.gpu.current()?)?;
        // Nobody launches before the turn ends.
        self.unfinished.unknown();
        Ok(turn)
    }

    /// The program captured a launch, and may replay it until [`Own::forgets`].
    pub fn captures(&self) {
        self.captures.fetch_add(1, Ordering::AcqRel);
    }

    /// A graph with a captured launch is gone.
    pub fn forgets(&self) {
        self.captures.fetch_sub(1, Ordering::AcqRel);
    }

    /// A graph of the rank's launches is recorded until [`Own::ends_recording`].
    pub fn begins_recording(&self) {
        self.recordings.fetch_add(1, Ordering::AcqRel);
    }

    /// A recording has ended.
    pub fn ends_recording(&self) {
        self.recordings.fetch_sub(1, Ordering::AcqRel);
    }

    /// True if a graph of the rank's launches is being recorded, or the program may replay one that it captured.
    pub fn may_record_or_replay(&self) -> bool {
        self.may_replay() || self.recordings.load(Ordering::Acquire) > 0
    }

    fn may_replay(&self) -> bool {
        self.captures.load(Ordering::Acquire) > 0
    }

    /// Does that if nothing is in the stream, while nobody launches or may replay.
    pub fn while_idle(&self, act: impl FnOnce()) {
        if self.may_replay() {
            return;
        }
        let turn = {
            let mut turns = self.turns();
            if turns.holder.is_some() {
                return;
            }
            turns.holder = Some(this_thread());
            Turn(self)
        };
        let idle = || !self.stream.is_capturing() && is_done(&self.stream).unwrap_or(false);
        if self.gpu.aside(idle) {
            act();
        }
        drop(turn);
    }

    /// After everything that is in the stream now. None if the driver refuses, as where it records a graph, and as long as
    /// the program may replay launches.
    pub fn mark(&self) -> Option<Mark> {
        if self.may_replay() {
            return None;
        }
        let mark = || Mark::of([(&self.gpu, &self.stream)]).ok();
        self.gpu.aside(mark)
    }

    /// From now on the stream may get others' work at any time.
    ///
    /// # Errors
    /// What the driver refuses.
    pub fn joins(&self) -> Result<(), Error> {
        // Within a step, nobody else launches either.
        let _turn = match self.is_mine() {
            true => None,
            false => Some(self.lock()?),
        };
        self.join()
    }

    fn join(&self) -> Result<(), Error> {
        let current = self.gpu.current();
        current.and_then(|current| self.latest.join(current, &self.stream))
    }

    /// The stream, for others. Nobody gets it before the latest launch has an event.
    pub fn lend(&self) -> &Stream {
        if !self.has_lent() {
            if let Err(error) = self.joins() {
                debug!(%error, "the end of a launch is not known");
                self.latest.lost(&error);
            }
            self.lent.store(true, Ordering::Release);
        }
        &self.stream
    }
}
