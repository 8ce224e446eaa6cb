//! Threads of each model, and what must hold whatever their order.

use super::abort::{End, Verdict};
use super::meeting::Meeting;
use super::roll::{Gone, Roll};
use crate::error::Error;
use crate::undo::Fix;
use loom::model::Builder;
use loom::sync::Arc;
use loom::thread;
use std::time::Duration;

/// A protocol, and the rule without which it fails.
pub(crate) struct Model {
    pub name: &'static str,
    pub fix: Fix,
    /// What the failure says without it: the model's own assertion, or loom's word for threads that all wait.
    pub failure: &'static str,
    /// How often a thread may be interrupted; None: whenever it can be.
    bound: Option<usize>,
    body: fn(),
}

impl Model {
    pub fn run(&self) {
        let mut builder = Builder::new();
        builder.preemption_bound = self.bound;
        builder.check(self.body);
    }
}

const GONE: &str = "rank 0 waits for a rank that is gone";
const ANOTHERS: &str = "another thread's answer";
const DEADLOCK: &str = "deadlock; threads = ";

pub(crate) const MODELS: &[Model] = &[
    Model {
        name: "a_launch_and_a_rank_that_leaves_see_each_other",
        fix: Fix::Fence,
        failure: GONE,
        bound: None,
        body: || launches_and_leaves(Gone::Dropped),
    },
    Model {
        name: "a_launch_and_a_rank_whose_part_is_done_see_each_other",
        fix: Fix::Fence,
        failure: GONE,
        bound: None,
        body: || launches_and_leaves(Gone::Done),
    },
    Model {
        name: "each_thread_of_a_rank_gets_the_answer_to_its_own_call",
        fix: Fix::Seats,
        failure: ANOTHERS,
        bound: Some(2),
        body: two_threads_of_a_rank,
    },
    Model {
        name: "who_waits_in_a_meeting_is_woken_when_the_communicator_ends",
        fix: Fix::Wake,
        failure: DEADLOCK,
        bound: Some(3),
        body: ends_while_a_rank_waits,
    },
    Model {
        name: "who_waits_in_a_meeting_is_woken_when_a_rank_leaves",
        fix: Fix::Wake,
        failure: DEADLOCK,
        bound: Some(3),
        body: leaves_while_a_rank_waits,
    },
];

/// Ranks that meet, each with a word, and get all words.
struct Ranks {
    end: End,
    meeting: Meeting<&'static str, Vec<&'static str>>,
}

impl Ranks {
    fn new(world: usize) -> Arc<Ranks> {
        Arc::new(Ranks {
            end: End::new(world),
            meeting: Meeting::new(world),
        })
    }

    fn meet(&self, rank: u32, word: &'static str) -> Result<Vec<&'static str>, Error> {
        let never = Duration::from_secs(100_000);
        let all = |asked: &[&'static str]| asked.to_vec();
        self.meeting.meet(rank, &word, &self.end, never, all)
    }
}

/// Rank 0 launches and waits for rank 1, which leaves so without having launched. One of both must say so.
fn launches_and_leaves(how: Gone) {
    let roll = Arc::new(Roll::new(2));
    let other = roll.clone();
    let leaves = thread::spawn(move || other.leaves(1, how));
    let launched = roll.launches(0);
    let left = leaves.join().expect("no panic");
    assert!(
        launched == Some(1) || left == Some(0),
        "{GONE}"
    );
}

fn two_threads_of_a_rank() {
    let ranks = Ranks::new(2);
    let threads = ["one", "other"].map(|word| {
        let ranks = ranks.clone();
        thread::spawn(move || {
            let all = ranks.meet(0, word).expect("nothing ends");
            assert_eq!(all[0], word, "{ANOTHERS}");
        })
    });
    for _ in 0..2 {
        ranks.meet(1, "peer").expect("nothing ends");
    }
    for thread in threads {
        thread.join().expect("no panic");
    }
}

fn ends_while_a_rank_waits() {
    let ranks = Ranks::new(2);
    let other = ranks.clone();
    let cause = || Verdict::Aborted("enough".into());
    let ends = thread::spawn(move || {
        other.end.end(cause());
        other.meeting.wake();
    });
    assert_eq!(ranks.meet(0, "word"), Err(Error(cause())));
    ends.join().expect("no panic");
}

fn leaves_while_a_rank_waits() {
    let ranks = Ranks::new(2);
    let other = ranks.clone();
    let leaves = thread::spawn(move || {
        other.end.leaves(1);
        other.meeting.wake();
    });
    assert!(ranks.meet(0, "word").is_err());
    leaves.join().expect("no panic");
}
