//! Who sits in a meeting of all ranks, and what they asked: one call a rank at a time.

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
            Seat::Answered(_) => false,
        };
        if free {
            self.0[rank] = Seat::Asked(request.clone());
        }
        free
    }

    /// What all ask, once every rank has come.
    pub fn complete(&self) -> Option<Vec<R>> {
        let asked = self.0.iter().map(|seat| match seat {
            Seat::Asked(request) => Some(request.clone()),
            Seat::Free | Seat::Answered(_) => None,
        });
        asked.collect()
    }

    /// How many ask.
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
        match std::mem::replace(&mut self.0[rank], Seat::Free) {
            Seat::Answered(answer) => Some(answer),
            seat @ (Seat::Free | Seat::Asked(_)) => {
                self.0[rank] = seat;
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_thread_of_a_rank_waits_its_turn_and_never_takes_another_answer() {
        let mut seats = Seats::new(2);
        assert!(seats.sit(0, &"a"));
        assert!(!seats.sit(0, &"b"), "the first thread sits there");
        assert_eq!((seats.asking(), seats.complete()), (1, None));
        assert!(seats.sit(1, &"a"));
        assert_eq!(seats.complete(), Some(vec!["a", "a"]));
        seats.answer(&"memory of a");
        assert_eq!(seats.complete(), None);
        // Rank 1 takes its answer and comes back at once: rank 0's answer still lies there.
        assert_eq!(seats.take(1), Some("memory of a"));
        assert!(seats.sit(1, &"b"));
        assert!(!seats.sit(0, &"b"), "an answer lies there");
        assert_eq!(seats.take(1), None);
        assert_eq!(seats.take(0), Some("memory of a"));
        assert!(seats.sit(0, &"b"));
        assert_eq!(seats.complete(), Some(vec!["b", "b"]));
    }
}
