//! Ranks that are threads of one process.

use super::{Rendezvous, absent, must_fit};
use crate::error::Error;
use counterflow_codegen::shape::MAX_WORLD;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// A rank's message, until all have come; then the messages of all, until the rank takes them.
#[derive(Clone, Debug, Default)]
enum Seat {
    #[default]
    Free,
    Given(Vec<u8>),
    Answered(Vec<Vec<u8>>),
}

#[derive(Debug)]
struct Table {
    seats: Mutex<Vec<Seat>>,
    turn: Condvar,
}

/// A rank that is a thread of this process.
#[derive(Debug)]
pub struct Threads {
    rank: u32,
    table: Arc<Table>,
}

impl Threads {
    /// So many ranks: give each to a thread of its own. No more than 129 are made: one more than a communicator takes, which
    /// says so.
    ///
    /// ```
    /// use counterflow_runtime::rendezvous::{Rendezvous, Threads};
    /// # use std::time::Duration;
    /// let alone = &Threads::of(1)[0];
    /// assert_eq!(alone.all_gather(b"here", Duration::from_secs(1))?, [b"here"]);
    /// # Ok::<(), counterflow_runtime::Error>(())
    /// ```
    pub fn of(world: u32) -> Vec<Threads> {
        let world = world.min(MAX_WORLD + 1);
        let table = Arc::new(Table {
            seats: Mutex::new(vec![Seat::Free; world as usize]),
            turn: Condvar::new(),
        });
        let rank = |rank| Threads {
            rank,
            table: table.clone(),
        };
        (0..world).map(rank).collect()
    }
}

impl Rendezvous for Threads {
    fn rank(&self) -> u32 {
        self.rank
    }

    fn world(&self) -> u32 {
        let seats = self.table.seats.lock();
        seats.unwrap_or_else(PoisonError::into_inner).len() as u32
    }

    fn all_gather(&self, mine: &[u8], limit: Duration) -> Result<Vec<Vec<u8>>, Error> {
        must_fit(mine)?;
        let until = Instant::now() + limit;
        let own = self.rank as usize;
        let mut seats = self
            .table
            .seats
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let mut given = false;
        loop {
            if !given && matches!(seats[own], Seat::Free) {
                seats[own] = Seat::Given(mine.to_vec());
                given = true;
                let all = seats.iter().map(|seat| match seat {
                    Seat::Given(bytes) => Some(bytes.clone()),
                    Seat::Free | Seat::Answered(_) => None,
                });
                if let Some(all) = all.collect::<Option<Vec<_>>>() {
                    seats.fill(Seat::Answered(all));
                    self.table.turn.notify_all();
                }
            }
            if given && let Seat::Answered(_) = seats[own] {
                // Another thread of this rank may wait for the seat.
                self.table.turn.notify_all();
                if let Seat::Answered(all) = std::mem::take(&mut seats[own]) {
                    return Ok(all);
                }
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let missing = (0..).zip(seats.iter());
                let missing = missing.filter(|(_, seat)| !matches!(seat, Seat::Given(_)));
                let missing: Vec<u32> = missing.map(|(rank, _)| rank).collect();
                if given {
                    seats[own] = Seat::Free;
                }
                return Err(absent(&missing, "come", limit));
            }
            let waited = self.table.turn.wait_timeout(seats, left);
            seats = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn all_get_all_messages_round_after_round() {
        let ranks = Threads::of(3);
        std::thread::scope(|scope| {
            for rank in &ranks {
                scope.spawn(move || {
                    for round in 0..200u32 {
                        let mine = [rank.rank() as u8, round as u8];
                        let all = rank.all_gather(&mine, LONG).expect("gathered");
                        let wanted: Vec<_> = (0..3).map(|r| vec![r, round as u8]).collect();
                        assert_eq!(all, wanted);
                    }
                    rank.barrier(LONG).expect("met");
                });
            }
        });
    }

    #[test]
    fn who_does_not_come_is_named() {
        let ranks = Threads::of(4);
        let told = std::thread::scope(|scope| {
            let both = [1, 3].map(|rank: usize| {
                let rank = &ranks[rank];
                scope.spawn(move || rank.all_gather(b"x", Duration::from_millis(200)))
            });
            both.map(|rank| {
                rank.join()
                    .expect("no panic")
                    .expect_err("late")
                    .to_string()
            })
        });
        assert!(
            told.iter()
                .any(|told| told.starts_with("ranks 0, 2 did not come within")),
            "{told:?}"
        );
        let long = ranks[0].all_gather(&vec![0; super::super::LONGEST + 1], LONG);
        assert_eq!(long.expect_err("too long").kind(), "usage");
    }
}
