//! Who has launched how often, and who has left, so that nobody waits for a launch that never comes.

use crate::sync::{AtomicU64, Ordering, fence};
use std::fmt;

/// A rank has its communicator.
const IN: u64 = 0;
/// It was dropped.
const LEFT: u64 = 1;
/// What the rank had enqueued by then is done, too: nobody waits for anything of it.
const OVER: u64 = 2;

/// What is known of each rank, in memory that all of them have.
pub(super) trait Counts: fmt::Debug + Send + Sync {
    /// How many ranks there are.
    fn world(&self) -> usize;
    /// How many launches a rank has enqueued for which ranks wait for each other.
    fn launched(&self, rank: usize) -> &AtomicU64;
    /// Whether its communicator was dropped: [`IN`], [`LEFT`] or [`OVER`].
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

/// What is known of each rank.
#[derive(Debug)]
pub(super) struct Roll(Box<dyn Counts>);

impl Roll {
    /// Nobody has launched, nobody has left.
    pub fn new(world: usize) -> Roll {
        let rank = |_| (AtomicU64::new(0), AtomicU64::new(0));
        Roll(Box::new((0..world).map(rank).collect::<Vec<_>>()))
    }

    /// The same in memory that is zero.
    pub fn on(counts: impl Counts + 'static) -> Roll {
        Roll(Box::new(counts))
    }

    /// Counts a launch of a rank, which is about to be enqueued. Gives a rank that left and has not made it.
    pub fn launches(&self, rank: u32) -> Option<u32> {
        let own = self.0.launched(rank as usize);
        let launch = 1 + own.fetch_add(1, Ordering::Relaxed);
        if self.has_left(rank) {
            // By a handle that was left.
            self.0.left(rank as usize).store(LEFT, Ordering::Relaxed);
        }
        // One of a launch and a rank that leaves must see the other: both write before this, and read after it.
        fence(Ordering::SeqCst);
        self.find(|peer| self.has_left(peer) && self.launched(peer) < launch)
    }

    /// A rank leaves. Gives a rank that has made a launch that this one has not.
    pub fn leaves(&self, rank: u32) -> Option<u32> {
        self.0.left(rank as usize).store(LEFT, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        let launched = self.launched(rank);
        self.find(|peer| self.launched(peer) > launched)
    }

    /// A rank that left.
    pub fn gone(&self) -> Option<u32> {
        self.find(|rank| self.has_left(rank))
    }

    /// Whether that rank left.
    pub fn has_left(&self, rank: u32) -> bool {
        self.0.left(rank as usize).load(Ordering::Relaxed) != IN
    }

    /// A rank that left has nothing enqueued any more.
    pub fn ends(&self, rank: u32) {
        self.0.left(rank as usize).store(OVER, Ordering::Release);
    }

    /// Whether that rank left, with nothing enqueued any more.
    pub fn is_over(&self, rank: u32) -> bool {
        self.0.left(rank as usize).load(Ordering::Acquire) == OVER
    }

    /// How many launches a rank has enqueued for which ranks wait for each other.
    pub fn launched(&self, rank: u32) -> u64 {
        self.0.launched(rank as usize).load(Ordering::Relaxed)
    }

    /// The same of each.
    pub fn all_launched(&self) -> Vec<u64> {
        let ranks = 0..self.0.world() as u32;
        ranks.map(|rank| self.launched(rank)).collect()
    }

    fn find(&self, is: impl Fn(u32) -> bool) -> Option<u32> {
        (0..self.0.world() as u32).find(|rank| is(*rank))
    }
}
