//! One time for all ranks: the GPUs' clocks, aligned by the signals between them.
//!
//! A wait is met after every signal that it needs was sent. So for each pair of ranks the least time from a signal of
//! one to the wait of the other, each by its own clock, bounds the difference of the two clocks from above; the other
//! direction bounds it from below. Bounds add up along paths over other ranks. The estimate is the middle of the
//! bounds, as in NTP: it is right if the fastest signals take the same time in both directions, and never off by more
//! than half of what the bounds leave.

use super::events::Misread;

/// Relation of a rank's clock to rank 0's.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Clock {
    /// Nanoseconds that this rank's clock is ahead of rank 0's.
    pub ahead: i64,
    /// By how much that may be off, in nanoseconds. `None`: no signals bound it, and the ranks' starts were taken for the
    /// same moment.
    pub within: Option<i64>,
}

/// No bound. Sums of two do not overflow.
const NONE: i64 = i64::MAX / 4;

/// Upper bounds of `clock of b - clock of a`, by pair.
pub(super) struct Bounds {
    world: usize,
    most: Vec<i64>,
}

impl Bounds {
    pub fn new(world: usize) -> Bounds {
        let mut most = vec![NONE; world * world];
        for rank in 0..world {
            most[rank * world + rank] = 0;
        }
        Bounds { world, most }
    }

    /// The clock of `b` is ahead of that of `a` by at most `most`.
    pub fn at_most(&mut self, (a, b): (usize, usize), most: i64) {
        let bound = &mut self.most[a * self.world + b];
        *bound = most.min(*bound);
    }

    /// The clocks, where ranks without bounds start at `starts`.
    pub fn solve(mut self, starts: &[u64]) -> Result<Vec<Clock>, Misread> {
        let world = self.world;
        for over in 0..world {
            for a in 0..world {
                for b in 0..world {
                    let path = self.most[a * world + over] + self.most[over * world + b];
                    self.at_most((a, b), path.min(NONE));
                }
            }
        }
        if let Some(rank) = (0..world).find(|rank| self.most[rank * world + rank] < 0) {
            return Err(Misread::Clocks { rank });
        }
        let clocks = (0..world).map(|rank| {
            let (above, below) = (self.most[rank], self.most[rank * world]);
            if above >= NONE || below >= NONE {
                let ahead = starts[rank] as i64 - starts[0] as i64;
                return Clock {
                    ahead,
                    within: None,
                };
            }
            Clock {
                ahead: (above - below).div_euclid(2),
                within: Some((above + below + 1) / 2),
            }
        });
        Ok(clocks.collect())
    }
}
