//! Streams of the ranks' launches.
//!
//! Ranks that share a GPU may be given one stream. A launch is enqueued after what is in the stream and before what comes
//! later. So if a stream has a rank's launch that waits for a peer's launch of the same number, and the peer's own stream
//! comes behind that before it has made it, each waits for the other. The same holds for the streams of the memory that a
//! launch borrows, and for a rank's own stream that is lent.

use crate::driver::{Event, Stream, is_past};
use crate::error::Error;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The latest launches in each stream that may still run.
#[derive(Debug, Default)]
pub(super) struct Callers(Mutex<All>);

#[derive(Debug, Default)]
struct All {
    standing: Vec<Standing>,
    /// Number of passages so far.
    passages: u64,
    /// With more than so many, those that are done are looked for: to ask the GPU at every launch would cost as much as to
    /// launch.
    many: usize,
}

/// Fewer than these are never looked through.
const FEW: usize = 32;

/// Until when a launch stands in a stream.
#[derive(Clone, Debug)]
enum Until {
    /// The launch is being enqueued, in that passage.
    Enqueued(u64),
    Event(Arc<Event>),
    /// Until the stream is empty: nobody asked where the launch ends, and nobody but its rank has had the stream.
    Empty,
}

#[derive(Debug)]
struct Standing {
    stream: Stream,
    rank: u32,
    /// The rank's latest launch there that waits for peers: its number in the ledger.
    launch: u64,
    until: Until,
}

impl Standing {
    fn is_entering(&self) -> bool {
        matches!(self.until, Until::Enqueued(_))
    }

    fn is_done(&self) -> bool {
        // A context that is dead holds nothing up.
        match &self.until {
            Until::Enqueued(_) => false,
            Until::Event(done) => done.is_past(),
            Until::Empty => !self.stream.is_capturing() && is_past(&self.stream),
        }
    }
}

impl All {
    /// A peer, and its launch in that stream that waits for this rank's `launch`.
    fn before(&self, stream: &Stream, rank: u32, launch: u64) -> Option<(u32, u64)> {
        let standing = self.standing.iter().find(|standing| {
            let waits = standing.rank != rank && standing.launch >= launch;
            waits && standing.stream.is(stream) && !standing.is_done()
        });
        standing.map(|standing| (standing.rank, standing.launch))
    }

    fn stands(&mut self, new: Standing) {
        self.standing.retain(|old| {
            let same = old.rank == new.rank && old.stream.is(&new.stream);
            old.is_entering() || !same || old.launch > new.launch
        });
        if self.standing.len() >= self.many.max(FEW) {
            self.standing.retain(|old| !old.is_done());
            self.many = 2 * self.standing.len();
        }
        self.standing.push(new);
    }

    /// Ends that passage: what was enqueued stands until then, or was not enqueued.
    fn ends(&mut self, passage: u64, until: Option<&Until>) {
        let entering = |standing: &mut Standing| matches!(standing.until, Until::Enqueued(of) if of == passage);
        let entering: Vec<Standing> = self.standing.extract_if(.., entering).collect();
        let Some(until) = until else { return };
        for standing in entering {
            self.stands(Standing {
                until: until.clone(),
                ..standing
            });
        }
    }
}

/// A rank enqueues something behind some streams, which come after it: its own, or what a group of it does meanwhile.
#[derive(Debug)]
pub(crate) struct Passage<'a> {
    callers: &'a Callers,
    number: u64,
    /// The rank's latest launch by then that waits for peers.
    pub launch: Option<u64>,
    /// True if peers look for it.
    entered: bool,
}

impl Passage<'_> {
    /// Ends the passage: the launch stands in the streams until `done`. None: nobody has asked for that, and the one
    /// stream is the rank's own.
    pub fn ends(self, done: Option<Arc<Event>>) {
        if self.entered {
            let until = done.map_or(Until::Empty, Until::Event);
            self.callers.lock().ends(self.number, Some(&until));
        }
    }
}

impl Drop for Passage<'_> {
    fn drop(&mut self) {
        if self.entered {
            self.callers.lock().ends(self.number, None);
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
        all.passages += 1;
        let number = all.passages;
        if let (Some(launch), true) = (launch, entered) {
            all.standing.extend(streams.map(|stream| Standing {
                stream: stream.clone(),
                rank,
                launch,
                until: Until::Enqueued(number),
            }));
        }
        Ok(Passage {
            callers: self,
            number,
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
            until: Until::Event(done.clone()),
        });
    }
}
