//! Seats in a meeting of all ranks, each with the call that its rank makes: one at a time.

use crate::undo::{Fix, undone};

/// One seat a rank.
#[derive(Debug)]
pub(super) struct Seats<R, A>(Vec<Seat<R, A>>);

#[derive(Clone, Debug)]
enum Seat<R, A> {
    Free,
    Asked(R),
    Answered(A),
}

impl<R: Clone, A: Clone> Seats<R, A> {
    /// All free.
    pub fn new(world: usize) -> Seats<R, A> {
        Seats(vec![Seat::Free; world])
    }

    /// Sits down with a request. False while another thread of the same rank sits there: its answer is not this one's.
    #[must_use]
    pub fn sit(&mut self, rank: usize, request: &R) -> bool {
        let free = match self.0[rank] {
            Seat::Free => true,
            Seat::Asked(_) => undone(Fix::Seats),
            Seat::Answered(_) => undone(Fix::Seats),
        };
        if free {
            self.0[rank] = Seat::Asked(request.clone());
        }
        free
    }

    /// Requests of all ranks, once each has come.
    pub fn complete(&self) -> Option<Vec<R>> {
        let asked = self.0.iter().map(|seat| match seat {
            Seat::Asked(request) => Some(request.clone()),
            Seat::Free | Seat::Answered(_) => None,
        });
        asked.collect()
    }

    /// Number of ranks that ask.
    pub fn asking(&self) -> usize {
        let asked = self.0.iter().filter(|seat| matches!(seat, Seat::Asked(_)));
        asked.count()
    }

    /// Answers all.
    pub fn answer(&mut self, answer: &A) {
        self.0.fill(Seat::Answered(answer.clone()));
    }

    /// Takes the answer, if it is there, and leaves the seat.
    pub fn take(&mut self, rank: usize) -> Option<A> {
        if let (Seat::Answered(answer), true) = (&self.0[rank], undone(Fix::Seats)) {
            return Some(answer.clone());
        }
        match std::mem::replace(&mut self.0[rank], Seat::Free) {
            Seat::Answered(answer) => Some(answer),
            seat @ (Seat::Free | Seat::Asked(_)) => {
                self.0[rank] = seat;
                None
            }
        }
    }
}
