//! A meeting of all ranks: each waits until all ask, and all get the answer. Nobody waits for ever, and whoever waits is
//! told at once if the communicator ends.

use super::abort::End;
use super::seats::Seats;
use super::verdict::Verdict;
use crate::error::{Error, Stall};
use crate::sync::{Condvar, Mutex, PoisonError};
use crate::undo::{Fix, undone};
use std::fmt::Display;
use std::time::{Duration, Instant};

/// Time after which a rank that waits for others looks around: kernels wake nobody.
const GLANCE: Duration = Duration::from_millis(20);

/// Meeting of the ranks of a process.
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

    /// Wakes who waits, to look whether the communicator has ended, or a rank has left.
    pub fn wake(&self) {
        // Who has looked before that waits by now, and misses nothing.
        if !undone(Fix::Wake) {
            drop(self.seats.lock().unwrap_or_else(PoisonError::into_inner));
        }
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
                    "rank {gone} ended early: {} while rank {rank} {request}",
                    end.how_left(gone)
                ))
            } else if left.is_zero() {
                Verdict::from(Stall {
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
