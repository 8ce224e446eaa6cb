//! Which ranks' launches stand in which streams.
//!
//! Ranks that share a GPU may be given one stream. A launch is enqueued after what is in the stream and before what comes
//! later. So if a stream has a rank's launch that waits for a peer's launch of the same number, and the peer's own stream
//! comes behind that before it has made it, each waits for the other. The same holds for the streams of the memory that a
//! launch borrows, and for a rank's own stream that is lent.

use crate::driver::{Event, Stream};
use crate::error::Error;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The latest launches in each stream that may still run.
#[derive(Debug, Default)]
pub(super) struct Callers(Mutex<All>);

#[derive(Debug, Default)]
struct All(Vec<Standing>);

#[derive(Debug)]
struct Standing {
    stream: Stream,
    rank: u32,
    /// The rank's latest launch there that waits for peers: its number in the ledger.
    launch: u64,
    /// None: it is being enqueued.
    done: Option<Arc<Event>>,
}

impl Standing {
    fn is_done(&self) -> bool {
        // A context that is dead holds nothing up.
        let done = self.done.as_ref();
        done.is_some_and(|done| done.is_done().unwrap_or(true))
    }
}

impl All {
    /// A peer, and its launch in that stream that waits for this rank's `launch`.
    fn before(&self, stream: &Stream, rank: u32, launch: u64) -> Option<(u32, u64)> {
        let standing = self.0.iter().find(|standing| {
            let waits = standing.rank != rank && standing.launch >= launch;
            waits && standing.stream.is(stream) && !standing.is_done()
        });
        standing.map(|standing| (standing.rank, standing.launch))
    }

    fn stands(&mut self, new: Standing) {
        self.0.retain(|old| {
            let same = old.rank == new.rank && old.stream.is(&new.stream);
            old.done.is_none() || !(same && old.launch <= new.launch || old.is_done())
        });
        self.0.push(new);
    }

    /// What that rank was enqueueing stands until `done`, or was not enqueued.
    fn ends(&mut self, rank: u32, done: Option<&Arc<Event>>) {
        let entering = |standing: &mut Standing| standing.rank == rank && standing.done.is_none();
        let entering: Vec<Standing> = self.0.extract_if(.., entering).collect();
        for standing in entering.into_iter().filter(|_| done.is_some()) {
            self.stands(Standing {
                done: done.cloned(),
                ..standing
            });
        }
    }
}

/// A rank enqueues something behind some streams, which come after it. One at a time of each rank.
#[derive(Debug)]
pub(crate) struct Passage<'a> {
    callers: &'a Callers,
    rank: u32,
    /// The rank's latest launch by then that waits for peers.
    pub launch: Option<u64>,
    /// Whether peers look for it.
    entered: bool,
}

impl Passage<'_> {
    /// It stands in the streams until `done`.
    pub fn ends(self, done: &Arc<Event>) {
        if self.entered {
            self.callers.lock().ends(self.rank, Some(done));
        }
    }
}

impl Drop for Passage<'_> {
    fn drop(&mut self) {
        if self.entered {
            self.callers.lock().ends(self.rank, None);
        }
    }
}

impl Callers {
    fn lock(&self) -> MutexGuard<'_, All> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets a rank enqueue its launches `next..end`, or other work, behind what is in these streams and before what comes
    /// later there. `entered` says whether peers may come behind it there. The check and the entry are one step, so of two
    /// ranks that come at once one is refused.
    pub fn passes<'s>(
        &self,
        rank: u32,
        streams: impl Iterator<Item = &'s Stream> + Clone,
        (next, end): (u64, u64),
        entered: bool,
    ) -> Result<Passage<'_>, Error> {
        let launch = end.checked_sub(1);
        let mut all = self.lock();
        for stream in streams.clone() {
            if let Some((peer, theirs)) = all.before(stream, rank, next) {
                return Err(Error::Usage {
                    what: format!(
                        "rank {rank} comes behind launch {theirs} of rank {peer} in one stream, and that waits for launch {theirs} of rank {rank}"
                    ),
                    legal: "give each rank a stream of its own, also for the memory that its launches borrow"
                        .into(),
                });
            }
        }
        if let (Some(launch), true) = (launch, entered) {
            all.0.extend(streams.map(|stream| Standing {
                stream: stream.clone(),
                rank,
                launch,
                done: None,
            }));
        }
        Ok(Passage {
            callers: self,
            rank,
            launch,
            entered,
        })
    }

    /// A rank's launches until that number stand in one more stream until `done`.
    pub fn stands(&self, rank: u32, stream: &Stream, launch: u64, done: &Arc<Event>) {
        self.lock().stands(Standing {
            stream: stream.clone(),
            rank,
            launch,
            done: Some(done.clone()),
        });
    }
}
