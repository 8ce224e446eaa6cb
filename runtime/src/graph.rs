//! Launches that were recorded once and are replayed.
//!
//! A [`Graph`] holds what its launches use, and gives the driver's graph to nobody: it is launched here alone, in the
//! order of the rank's own stream. So when the handle is dropped, all replays are in that stream, and what they use is
//! put on the list of what goes once the stream has come past this point. CUDA's user objects, which a driver's graph
//! can hold, would add nothing: their last release calls back from a thread that may not call the driver, so all that it
//! could do is to put the same on the same list.

use crate::attempt::Attempt;
use crate::caller::{Caller, Order, Place, in_order};
use crate::communicator::Communicator;
use crate::driver::{self, Current, range};
use crate::error::Error;
use crate::group::Entry;
use crate::metrics::InGraph;
use crate::pending::Pending;
use crate::recording::{Frozen, Recording};
use crate::retire;
use std::ops::RangeInclusive;
use std::sync::Arc;
use tracing::debug;

/// Recorded launches with frozen arguments. It keeps the memory and the kernels that they use. Dropping it under a replay
/// is fine. Every rank replays its own, as it would launch: the ranks' launches are compared at each replay.
///
/// ```
/// use counterflow::{Communicator, prelude::bf16, schedules::GemmOp};
///
/// let rank = &Communicator::emulated(1)?[0];
/// let op = rank.op_of::<GemmOp>().first_options().up_to(64, 64, 64).build()?;
/// let (x, mut y, mut z) = (rank.zeros::<bf16>([64, 64])?, rank.zeros::<bf16>([64, 64])?, rank.zeros::<bf16>([64, 64])?);
/// let graph = rank.capture(|recording| {
///     op.on(recording).x(&x).w(&x).y(&mut y).launch()?;
///     op.on(recording).x(&y).w(&x).y(&mut z).launch().map(drop)
/// })?;
/// assert_eq!((graph.len(), graph.is_empty()), (2, false));
/// x.fill(0)?; // each replay sees what is there then
/// let done = graph.launch(rank)?;
/// drop(graph); // the replay keeps what it uses
/// done.wait()?;
/// # Ok::<(), counterflow::Error>(())
/// ```
#[derive(Debug)]
pub struct Graph {
    rank: Arc<Communicator>,
    graph: Arc<driver::Graph>,
    frozen: Frozen,
}

impl Communicator {
    /// Records the launches that `record` makes on what it is given. Nothing of them runs now. Launches with copies by
    /// copy engine are refused: the values that these wait for change with every launch.
    ///
    /// ```
    /// use counterflow::{Communicator, prelude::bf16, schedules::GemmOp};
    ///
    /// let rank = &Communicator::emulated(1)?[0];
    /// let op = rank.op_of::<GemmOp>().first_options().up_to(64, 64, 64).build()?;
    /// let (x, mut y) = (rank.zeros::<bf16>([64, 64])?, rank.zeros::<bf16>([64, 64])?);
    /// let graph = rank.capture(|recording| {
    ///     let recorded = op.on(recording).x(&x).w(&x).y(&mut y).launch()?;
    ///     assert!(recorded.wait().is_err(), "nothing runs, so nothing can be waited for");
    ///     Ok(())
    /// })?;
    /// graph.launch(rank)?.wait()?;
    /// # Ok::<(), counterflow::Error>(())
    /// ```
    ///
    /// # Errors
    /// Those of `record`; what the driver cannot record.
    pub fn capture(
        &self,
        record: impl FnOnce(&Recording) -> Result<(), Error>,
    ) -> Result<Graph, Error> {
        self.alive()?;
        let recording = Recording::begin(self)?;
        let told = record(&recording);
        ended(&recording, told)
    }

    /// Records what `record` enqueues in this rank's own order on this thread: launches on the rank or its own stream, steps,
    /// copies and fills of tensors and buffers. A launch counts where it is made, wherever it was begun. So code that knows nothing of graphs, such as a layer's step, becomes one. Nothing of it runs now; calls
    /// that wait for the GPU, or write values of the host, are refused.
    ///
    /// ```
    /// use counterflow::{Communicator, prelude::bf16, schedules::GemmOp};
    ///
    /// let rank = &Communicator::emulated(1)?[0];
    /// let op = rank.op_of::<GemmOp>().first_options().up_to(64, 64, 64).build()?;
    /// let (x, mut y, z) = (rank.zeros::<bf16>([64, 64])?, rank.zeros::<bf16>([64, 64])?, rank.zeros::<bf16>([64, 64])?);
    /// let graph = rank.capture_own(|| {
    ///     op.on(rank).x(&x).w(&x).y(&mut y).launch()?;
    ///     assert!(y.read().is_err(), "nothing has run");
    ///     z.copy_from(&y)
    /// })?;
    /// x.write(&[bf16::ONE; 64 * 64])?;
    /// graph.launch(rank)?.wait()?;
    /// assert_eq!(z.read()?, [bf16::from_f32(64.0); 64 * 64]);
    /// # Ok::<(), counterflow::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Communicator::capture`]; [`Error::Usage`] within another one. On emulated ranks, also for [`Step`](crate::op::Step)s that
    /// read or write memory: they are done when they are launched.
    pub fn capture_own(&self, record: impl FnOnce() -> Result<(), Error>) -> Result<Graph, Error> {
        self.alive()?;
        let recording = Arc::new(Recording::begin(self)?);
        let own = self.own().clone();
        let records = own.records(recording.clone());
        let told = records.and_then(|_records| record());
        ended(&recording, told)
    }

    /// Number of the recording that this thread makes of the rank's own order, and None outside of
    /// [`Communicator::capture_own`]. No other recording of the process has it.
    ///
    /// Replays use the memory that launches were recorded with, at any later time. So who lends memory to one call after another,
    /// such as an allocator or a layer, lends a recording memory that nobody else gets.
    ///
    /// ```
    /// use counterflow::Communicator;
    ///
    /// let rank = &Communicator::emulated(1)?[0];
    /// let mut found = Vec::new();
    /// for _ in 0..2 {
    ///     rank.capture_own(|| Ok(found.push(rank.capture_id())))?;
    /// }
    /// assert!(found[0].is_some() && found[1].is_some() && found[0] != found[1]);
    /// assert_eq!(rank.capture_id(), None);
    /// # Ok::<(), counterflow::Error>(())
    /// ```
    pub fn capture_id(&self) -> Option<u64> {
        self.own().recording().map(|recording| recording.number())
    }
}

/// The graph of a recording that ends with that.
fn ended(recording: &Recording, told: Result<(), Error>) -> Result<Graph, Error> {
    // The stream must not stay as it is, also if that failed.
    let ended = recording.end();
    told?;
    let (graph, frozen) = ended?;
    let rank = recording.rank();
    debug!(
        rank = rank.rank(),
        launches = frozen.launches.len(),
        "graph"
    );
    Ok(Graph {
        rank: rank.clone(),
        graph: Arc::new(graph),
        frozen,
    })
}

impl Graph {
    /// Replays it: after everything that is in that stream now, and before everything that comes later. It waits for no
    /// peer: in the ledger, each of its launches counts as one.
    ///
    /// # Errors
    /// As [`Launch::launch`](crate::op::Launch::launch).
    pub fn launch<'a>(&self, on: impl Into<Caller<'a>>) -> Result<Pending, Error> {
        let _range = range(|| format!("replay {} launches, rank {}", self.len(), self.rank.rank()));
        let own = self.rank.own_stream();
        let order = on.into().order(&self.rank);
        replayed(&self.rank, &self.frozen.launches, &order, |current| {
            self.frozen.counted.iter().for_each(InGraph::replays);
            current.launch(&self.graph, own)?;
            self.frozen.counted.iter().for_each(InGraph::replayed);
            Ok(())
        })
    }

    /// Number of launches in the graph.
    pub fn len(&self) -> usize {
        self.frozen.launches.len()
    }

    /// True without launches; the graph may hold other work.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Replays launches: `work` enqueues them. Peers that would wait for a launch that fails are told.
fn replayed(
    rank: &Arc<Communicator>,
    launches: &[(Option<Entry>, u32)],
    order: &Order<'_>,
    work: impl FnOnce(Current<'_>) -> Result<(), Error>,
) -> Result<Pending, Error> {
    rank.alive()?;
    let attempt = Attempt::new(rank);
    let replayed = checked(rank, launches, order, work, &attempt);
    let waits = launches.iter().any(|(entry, _)| entry.is_some());
    attempt.told(waits, "a graph", replayed)
}

fn checked(
    rank: &Arc<Communicator>,
    launches: &[(Option<Entry>, u32)],
    order: &Order<'_>,
    work: impl FnOnce(Current<'_>) -> Result<(), Error>,
    attempt: &Attempt<'_>,
) -> Result<Pending, Error> {
    let current = rank.gpu().current()?;
    let outside = match order.place(rank, current)? {
        Place::Own => None,
        Place::Outside(stream) => Some(stream),
        Place::Recording(_) | Place::Captured(_) => {
            return Err(Error::Usage {
                what: "a graph launched in a graph".into(),
                legal: "record its launches there".into(),
            });
        }
    };
    let _turn = rank.turn(current)?;
    let waits = launches.iter().filter(|(entry, _)| entry.is_some());
    let streams = std::iter::once(rank.own_stream()).chain(outside);
    let passage = rank.passes(streams, waits.count() as u64)?;
    let own = rank.own_stream();
    let replayed = in_order(rank, current, (passage, Vec::new()), outside, &[], || {
        let entries = launches.iter().filter_map(|(entry, _)| entry.as_ref());
        // The rank has the turn, so they follow one another.
        let mut written: Option<RangeInclusive<u64>> = None;
        for entry in entries.clone() {
            let launch = attempt.write(entry)?;
            let first = written.map_or(launch, |written| *written.start());
            written = Some(first..=launch);
        }
        // From here on the host waits for nobody.
        let _entering = own.enter()?;
        let with_entries = launches.iter().filter(|(entry, _)| entry.is_some());
        let most = with_entries.map(|(_, ctas)| *ctas).max();
        let order = written.clone();
        let order = order.map(|all| rank.order(current, all, most.unwrap_or(0)));
        let _enqueueing = order.transpose()?;
        let mut compared = written.into_iter().flatten().zip(entries);
        compared.try_for_each(|(launch, entry)| attempt.compare(launch, entry))?;
        work(current)
    });
    // What its launches write is not in the list of the rank's own stream.
    rank.own().unfinished().unknown();
    replayed
}

/// Replays may still run.
impl Drop for Graph {
    fn drop(&mut self) {
        let kept = std::mem::take(&mut self.frozen);
        retire::later(
            self.rank.gpu(),
            self.rank.own_stream(),
            (self.graph.clone(), kept),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rank 1 replays one launch in that place, and is refused: the error's kind there, and what rank 0 is told.
    fn refused(
        entry: Option<Entry>,
        on: u32,
        work: Result<(), Error>,
    ) -> (&'static str, Option<String>) {
        let ranks = Communicator::emulated(2).expect("ranks");
        let own = Arc::new(ranks[1].handle());
        let order = Caller::from(&ranks[on as usize]).order(&own);
        let error = replayed(&own, &[(entry, 1)], &order, |_| work).expect_err("refused");
        let told = ranks[0].synchronize().err();
        (error.kind(), told.map(|told| told.to_string()))
    }

    fn fails() -> Result<(), Error> {
        Err(Error::Wrong {
            what: "the driver is out of order".into(),
            help: "none".into(),
        })
    }

    #[test]
    fn a_replay_that_fails_is_told_to_peers_that_wait_for_its_launches() {
        let entry = Entry::new("k", 0, 1, 1);
        // The ledger has the launch already.
        let (was, told) = refused(Some(entry), 1, fails());
        assert_eq!(was, "wrong");
        assert_eq!(
            told.expect("rank 0 is told"),
            "rank 1 ended early: it does not launch a graph: the driver is out of order"
        );
        // Nobody knows of one that is refused before.
        assert_eq!(refused(Some(entry), 0, Ok(())), ("usage", None));
    }

    #[test]
    fn a_recording_that_has_ended_takes_no_launch_whoever_still_has_it() {
        let rank = &Communicator::emulated(1).expect("a rank")[0];
        let held = |rank: &Communicator| -> Arc<Recording> {
            let recording = rank.own().recording().expect("one");
            recording.itself().downcast().expect("one of ours")
        };
        let mut kept = None;
        let recorded = rank.capture_own(|| {
            kept = Some(held(rank));
            Ok(())
        });
        recorded.expect("a graph");
        let kept = kept.expect("it ran");
        assert!(!rank.own().may_record_or_replay(), "it has ended");
        let current = rank.gpu().current().expect("a GPU");
        let order = Caller::from(&*kept).order(rank);
        let error = order.place(rank, current).expect_err("refused");
        assert_eq!(error.to_string(), "a launch in a recording that has ended");
        drop(kept);
        assert!(!rank.own().may_record_or_replay(), "it ends once");
    }

    #[test]
    fn a_refused_replay_that_no_peer_waits_for_ends_nothing() {
        assert_eq!(refused(None, 0, Ok(())), ("usage", None));
        assert_eq!(refused(None, 1, fails()), ("wrong", None));
    }
}
