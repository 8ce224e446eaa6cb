//! Who has launched how often, and who has left, so that nobody waits for a launch that never comes.

use crate::sync::{AtomicBool, AtomicU64, Ordering, fence};

/// What is known of each rank.
#[derive(Debug)]
pub(super) struct Roll(Vec<Rank>);

#[derive(Debug)]
struct Rank {
    /// How many launches it has enqueued for which ranks wait for each other.
    launched: AtomicU64,
    /// Whether its communicator was dropped.
    left: AtomicBool,
}

impl Roll {
    /// Nobody has launched, nobody has left.
    pub fn new(world: usize) -> Roll {
        let rank = || Rank {
            launched: AtomicU64::new(0),
            left: AtomicBool::new(false),
        };
        Roll((0..world).map(|_| rank()).collect())
    }

    /// Counts a launch of a rank, which is about to be enqueued. Gives a rank that left and has not made it.
    pub fn launches(&self, rank: u32) -> Option<u32> {
        let own = &self.0[rank as usize].launched;
        let launch = 1 + own.fetch_add(1, Ordering::Relaxed);
        // One of a launch and a rank that leaves must see the other: both write before this, and read after it.
        fence(Ordering::SeqCst);
        self.find(|peer| {
            peer.left.load(Ordering::Relaxed) && peer.launched.load(Ordering::Relaxed) < launch
        })
    }

    /// A rank leaves. Gives a rank that has made a launch that this one has not.
    pub fn leaves(&self, rank: u32) -> Option<u32> {
        let own = &self.0[rank as usize];
        own.left.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        let launched = own.launched.load(Ordering::Relaxed);
        self.find(|peer| peer.launched.load(Ordering::Relaxed) > launched)
    }

    /// A rank that left.
    pub fn gone(&self) -> Option<u32> {
        self.find(|rank| rank.left.load(Ordering::Relaxed))
    }

    /// How many launches a rank has enqueued for which ranks wait for each other.
    pub fn launched(&self, rank: u32) -> u64 {
        self.0[rank as usize].launched.load(Ordering::Relaxed)
    }

    /// The same of each.
    pub fn all_launched(&self) -> Vec<u64> {
        let ranks = 0..self.0.len() as u32;
        ranks.map(|rank| self.launched(rank)).collect()
    }

    fn find(&self, is: impl Fn(&Rank) -> bool) -> Option<u32> {
        self.0.iter().position(is).map(|rank| rank as u32)
    }
}
