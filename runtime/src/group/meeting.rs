//! A meeting of all ranks: each waits until all ask, and all get the answer. Nobody waits for ever, and whoever waits is
//! told at once if the communicator ends.

use super::abort::{End, Verdict};
use super::seats::Seats;
use crate::error::{Error, Stall};
use std::fmt::Display;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long a rank that waits for others looks at nothing else: kernels and dropped ranks wake nobody.
const GLANCE: Duration = Duration::from_millis(20);

/// Where ranks meet.
#[derive(Debug)]
pub(super) struct Meeting<R, A> {
    world: usize,
    seats: Mutex<Seats<R, A>>,
    turn: Condvar,
}

impl<R: Clone + Display, A: Clone> Meeting<R, A> {
    /// With nobody there.
    pub fn new(world: usize) -> Meeting<R, A> {
        Meeting {
            world,
            seats: Mutex::new(Seats::new(world)),
            turn: Condvar::new(),
        }
    }

    /// Wakes who waits, to look whether the communicator has ended.
    pub fn wake(&self) {
        self.turn.notify_all();
    }

    /// Waits until all ranks ask, and gives the answer, which `act` finds in the thread of the last. A second thread of
    /// the same rank waits its turn: one call of a rank at a time.
    ///
    /// # Errors
    /// Why the communicator has ended. It also ends if a rank is gone, or does not come within `limit`.
    pub fn meet(
        &self,
        rank: u32,
        request: &R,
        end: &End,
        limit: Duration,
        act: impl Fn(&[R]) -> A,
    ) -> Result<A, Error> {
        let me = rank as usize;
        let until = Instant::now() + limit;
        let mut seats = self.seats.lock().unwrap_or_else(PoisonError::into_inner);
        let mut seated = false;
        loop {
            let alive = end.alive();
            if !seated && alive.is_ok() {
                seated = seats.sit(me, request);
                if let Some(asked) = seats.complete() {
                    seats.answer(&act(&asked));
                    self.turn.notify_all();
                }
            }
            if seated && let Some(answer) = seats.take(me) {
                // Another thread of this rank may wait for the seat.
                self.turn.notify_all();
                return Ok(answer);
            }
            alive?;
            let left = until.saturating_duration_since(Instant::now());
            let verdict = if let Some(gone) = end.gone() {
                Verdict::Aborted(format!(
                    "rank {gone} ended early: its communicator was dropped while rank {rank} {request}"
                ))
            } else if left.is_zero() {
                Verdict::Stalled(Stall {
                    rank,
                    role: format!("its host {request}"),
                    waited_on: "ranks do so".into(),
                    seen: Some(seats.asking() as u64),
                    wanted: self.world as u64,
                    ..Stall::default()
                })
            } else {
                let waited = self.turn.wait_timeout(seats, left.min(GLANCE));
                seats = waited.unwrap_or_else(PoisonError::into_inner).0;
                continue;
            };
            let first = end.end(verdict);
            self.turn.notify_all();
            return Err(first.into());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cuda::{Cause, Told};

    const LONG: Duration = Duration::from_secs(60);

    /// What rank 0 gets that waits for rank 1, which does something else.
    fn waits(other: impl FnOnce(&End)) -> String {
        let (end, meeting) = (End::plain(2), Meeting::new(2));
        let start = Instant::now();
        let error = std::thread::scope(|scope| {
            let rank = scope.spawn(|| meeting.meet(0, &"meets", &end, LONG, |_| ()));
            std::thread::sleep(Duration::from_millis(50));
            other(&end);
            rank.join().expect("no panic").expect_err("told")
        });
        assert!(start.elapsed() < Duration::from_secs(1), "{error}");
        let later = meeting.meet(1, &"meets", &end, LONG, |_| ());
        assert_eq!(later.expect_err("dead").to_string(), error.to_string());
        error.to_string()
    }

    #[test]
    fn all_get_the_answer_to_what_all_asked() {
        let (end, meeting) = (End::plain(3), Meeting::new(3));
        let answers = std::thread::scope(|scope| {
            let (end, meeting) = (&end, &meeting);
            let one = |rank| move || meeting.meet(rank, &rank, end, LONG, |asked| asked.to_vec());
            let ranks: Vec<_> = (0..3).map(|rank| scope.spawn(one(rank))).collect();
            let answers = ranks.into_iter().map(|rank| rank.join().expect("no panic"));
            answers.collect::<Result<Vec<_>, _>>()
        });
        assert_eq!(answers.expect("all came"), vec![vec![0, 1, 2]; 3]);
    }

    #[test]
    fn who_waits_is_told_at_once_why_a_peer_does_not_come() {
        let cause = "rank 1 ended early: no rows";
        let told = waits(|end| drop(end.end(Verdict::Aborted(cause.into()))));
        assert_eq!(told, cause);
        assert_eq!(
            waits(|end| end.leaves(1)),
            "rank 1 ended early: its communicator was dropped while rank 0 meets"
        );
        let told = waits(|end| end.record(1, Told::of(Cause::TimeLimit, 1, 5)));
        assert!(told.starts_with("rank 1 waited too long: "), "{told}");
    }

    #[test]
    fn a_rank_that_does_not_come_is_a_stall_of_who_waits() {
        let (end, meeting) = (End::plain(2), Meeting::new(2));
        let limit = Duration::from_millis(30);
        let error = meeting.meet(0, &"reserves 5 bytes", &end, limit, |_| ());
        assert_eq!(
            error.expect_err("nobody came").to_string(),
            "rank 0 waited too long: its host reserves 5 bytes and saw 1 of 2 ranks do so"
        );
        assert!(end.alive().is_err());
    }
}
