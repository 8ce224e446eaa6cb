//! Each rank's number of launches, and the ranks that left, so that nobody waits for a launch that never comes.

use crate::sync::{AtomicU64, Ordering, fence};
use std::fmt;

/// A rank has its communicator.
const IN: u64 = 0;
/// The rank's communicator was dropped.
const LEFT: u64 = 1;
/// The rank's last launches are done, too: nobody waits for anything of it.
const OVER: u64 = 2;
/// The rank has its communicator, and its part of [`each`](crate::Communicator::each) ended while others' go on.
const DONE: u64 = 3;

/// Manner in which a rank is gone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Gone {
    /// The rank's communicator was dropped.
    Dropped,
    /// The rank's part of `each` ended.
    Done,
}

impl fmt::Display for Gone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Gone::Dropped => "its communicator was dropped",
            Gone::Done => "its part of `each` ended",
        })
    }
}

/// Words of each rank, in memory that all of them have.
pub(super) trait Counts: fmt::Debug + Send + Sync {
    /// Number of ranks.
    fn world(&self) -> usize;
    /// Number of launches that a rank has enqueued for which ranks wait for each other.
    fn launched(&self, rank: usize) -> &AtomicU64;
    /// Presence of a rank: [`IN`], [`LEFT`], [`OVER`] or [`DONE`].
    fn left(&self, rank: usize) -> &AtomicU64;
}

/// Ranks of one process: launches, and whether they left.
impl Counts for Vec<(AtomicU64, AtomicU64)> {
    fn world(&self) -> usize {
        self.len()
    }

    fn launched(&self, rank: usize) -> &AtomicU64 {
        &self[rank].0
    }

    fn left(&self, rank: usize) -> &AtomicU64 {
        &self[rank].1
    }
}

/// State of each rank.
#[derive(Debug)]
pub(super) struct Roll(Box<dyn Counts>);

impl Roll {
    /// Nobody has launched, nobody has left.
    pub fn new(world: usize) -> Roll {
        let rank = |_| (AtomicU64::new(0), AtomicU64::new(0));
        Roll(Box::new((0..world).map(rank).collect::<Vec<_>>()))
    }

    /// Keeps the roll in memory that is zero.
    pub fn on(counts: impl Counts + 'static) -> Roll {
        Roll(Box::new(counts))
    }

    /// Counts a launch of a rank, which is about to be enqueued. Gives a rank that left and has not made it.
    pub fn launches(&self, rank: u32) -> Option<u32> {
        let own = self.0.launched(rank as usize);
        let launch = 1 + own.fetch_add(1, Ordering::Relaxed);
        if self.is_over(rank) {
            // By a handle that was left.
            self.0.left(rank as usize).store(LEFT, Ordering::Relaxed);
        }
        // One of a launch and a rank that leaves must see the other: both write before this, and read after it.
        fence(Ordering::SeqCst);
        self.find(|peer| self.has_left(peer) && self.launched(peer) < launch)
    }

    /// A rank leaves. Gives a rank that has made a launch that this one has not.
    pub fn leaves(&self, rank: u32, how: Gone) -> Option<u32> {
        let how = match how {
            Gone::Dropped => LEFT,
            Gone::Done => DONE,
        };
        self.0.left(rank as usize).store(how, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        let launched = self.launched(rank);
        self.find(|peer| self.launched(peer) > launched)
    }

    /// A rank whose part had ended is there for the next one.
    pub fn comes_back(&self, rank: u32) {
        let left = self.0.left(rank as usize);
        // One that was dropped meanwhile stays gone.
        let _ = left.compare_exchange(DONE, IN, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Manner in which a rank left.
    pub fn how(&self, rank: u32) -> Gone {
        match self.0.left(rank as usize).load(Ordering::Relaxed) {
            DONE => Gone::Done,
            _ => Gone::Dropped,
        }
    }

    /// A rank that left.
    pub fn gone(&self) -> Option<u32> {
        self.find(|rank| self.has_left(rank))
    }

    /// True if that rank left.
    pub fn has_left(&self, rank: u32) -> bool {
        self.0.left(rank as usize).load(Ordering::Relaxed) != IN
    }

    /// A rank that left has nothing enqueued any more.
    pub fn ends(&self, rank: u32) {
        self.0.left(rank as usize).store(OVER, Ordering::Release);
    }

    /// True if that rank left, with nothing enqueued any more.
    pub fn is_over(&self, rank: u32) -> bool {
        self.0.left(rank as usize).load(Ordering::Acquire) == OVER
    }

    /// Number of launches that a rank has enqueued for which ranks wait for each other.
    pub fn launched(&self, rank: u32) -> u64 {
        self.0.launched(rank as usize).load(Ordering::Relaxed)
    }

    /// Number of such launches of each rank.
    pub fn all_launched(&self) -> Vec<u64> {
        let ranks = 0..self.0.world() as u32;
        ranks.map(|rank| self.launched(rank)).collect()
    }

    fn find(&self, is: impl Fn(u32) -> bool) -> Option<u32> {
        (0..self.0.world() as u32).find(|rank| is(*rank))
    }
}
