//! A graph while it is recorded.

use crate::communicator::Communicator;
use crate::driver::{Graph, Stream};
use crate::error::Error;
use crate::group::Entry;
use crate::metrics::InGraph;
use crate::own::Records;
use crate::unfinished::Unfinished;
use std::any::Any;
use std::mem;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// A graph that is being recorded: launch ops on it, and enqueue other work on its [stream](Recording::stream).
///
/// ```
/// use counterflow::{Communicator, Error, Op, Recording, Tensor, prelude::bf16, schedules::GemmOp};
///
/// fn layer(
///     recording: &Recording,
///     op: &Op<GemmOp<'static>>,
///     x: &Tensor<bf16>,
///     y: &mut Tensor<bf16>,
/// ) -> Result<(), Error> {
///     op.on(recording).x(x).w(x).y(y).launch()?;
///     // SAFETY: nothing is enqueued there that the graph would have to keep.
///     let stream = unsafe { recording.stream() };
///     assert!(stream.is_capturing());
///     Ok(())
/// }
///
/// let rank = &Communicator::emulated(1)?[0];
/// let op = rank.op_of::<GemmOp>().first_options().up_to(64, 64, 64).build()?;
/// let (x, mut y) = (rank.zeros([64, 64])?, rank.zeros([64, 64])?);
/// rank.capture(|recording| layer(recording, &op, &x, &mut y))?.launch(rank)?.wait()?;
/// # Ok::<(), counterflow::Error>(())
/// ```
#[derive(Debug)]
pub struct Recording {
    rank: Arc<Communicator>,
    stream: Stream,
    frozen: Mutex<Frozen>,
    /// Launches in the graph that may still run when the next one begins.
    unfinished: Unfinished,
    /// No other recording of this process has it.
    number: u64,
    ended: AtomicBool,
}

/// The launches of a graph, and what they use.
#[derive(Debug, Default)]
pub(crate) struct Frozen {
    /// Entry of each launch in the ledger, None if no peer waits for it, and its number of CTAs.
    pub launches: Vec<(Option<Entry>, u32)>,
    /// Counters of the launches.
    pub counted: Vec<InGraph>,
    /// Memory and kernels.
    pub kept: Vec<Arc<dyn Any + Send + Sync>>,
}

/// Keeps for a graph what its launches use.
pub(crate) trait Keeps: std::fmt::Debug {
    /// For as long as the graph and its replays.
    fn keep(&self, thing: Arc<dyn Any + Send + Sync>);
}

impl Keeps for Recording {
    fn keep(&self, thing: Arc<dyn Any + Send + Sync>) {
        self.frozen().kept.push(thing);
    }
}

/// A closure that panics leaves it open.
impl Drop for Recording {
    fn drop(&mut self) {
        self.close();
    }
}

impl Records for Recording {
    fn stream(&self) -> &Stream {
        &self.stream
    }

    fn keeps(&self, memory: Arc<dyn Any + Send + Sync>) {
        self.keep(memory);
    }

    fn number(&self) -> u64 {
        self.number
    }

    fn itself(self: Arc<Self>) -> Arc<dyn Any + Send + Sync> {
        self
    }
}

impl Recording {
    /// Begins one.
    pub(crate) fn begin(rank: &Communicator) -> Result<Recording, Error> {
        static NUMBERS: AtomicU64 = AtomicU64::new(0);
        let stream = rank.gpu().stream()?;
        Graph::record(&stream)?;
        rank.own().begins_recording();
        Ok(Recording {
            rank: Arc::new(rank.handle()),
            stream,
            frozen: Mutex::default(),
            unfinished: Unfinished::default(),
            number: NUMBERS.fetch_add(1, Ordering::Relaxed),
            ended: AtomicBool::new(false),
        })
    }

    /// Ends it: the graph, and what it must keep.
    pub(crate) fn end(&self) -> Result<(Graph, Frozen), Error> {
        let graph = Graph::recorded(&self.stream);
        self.close();
        Ok((graph?, mem::take(&mut *self.frozen())))
    }

    fn close(&self) {
        if !self.ended.swap(true, Ordering::AcqRel) {
            self.rank.own().ends_recording();
        }
    }

    /// Rejects launches once it has ended: its stream would run them, outside of every order.
    ///
    /// # Errors
    /// [`Error::Usage`].
    pub(crate) fn is_open(&self) -> Result<(), Error> {
        match self.ended.load(Ordering::Acquire) {
            false => Ok(()),
            true => Err(Error::Usage {
                what: "a launch in a recording that has ended".into(),
                legal: "launch it within `Communicator::capture`, or on the rank".into(),
            }),
        }
    }

    /// The rank whose launches it takes.
    pub(crate) fn rank(&self) -> &Arc<Communicator> {
        &self.rank
    }

    /// The stream that records: a raw door, for work that is not a launch of an op.
    ///
    /// # Safety
    /// What else is enqueued there keeps nothing that it uses: its memory and kernels must live until the graph is
    /// dropped and its replays are done. Do not end the recording.
    #[allow(unsafe_code, reason = "a door: what it is told cannot be checked")]
    pub unsafe fn stream(&self) -> &Stream {
        &self.stream
    }

    /// Launches in the graph that may still run.
    pub(crate) fn unfinished(&self) -> &Unfinished {
        &self.unfinished
    }

    /// Stream for launches that the graph keeps.
    pub(crate) fn records_in(&self) -> &Stream {
        &self.stream
    }

    /// Adds a launch that was recorded.
    pub(crate) fn add(
        &self,
        launch: (Option<Entry>, u32),
        kept: impl IntoIterator<Item = Arc<dyn Any + Send + Sync>>,
    ) {
        let mut frozen = self.frozen();
        frozen.launches.push(launch);
        frozen.kept.extend(kept);
    }

    /// Replays of a launch that was recorded are counted there.
    pub(crate) fn counts(&self, launch: InGraph) {
        self.frozen().counted.push(launch);
    }

    fn frozen(&self) -> std::sync::MutexGuard<'_, Frozen> {
        self.frozen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
