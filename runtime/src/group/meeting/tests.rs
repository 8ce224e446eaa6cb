use super::abort::End;
use super::meeting::Meeting;
use super::roll::Gone;
use super::verdict::Verdict;
use crate::cuda::{Cause, Told};
use std::time::Duration;

const LONG: Duration = Duration::from_secs(60);

/// Error of rank 0, which waits for rank 1, which does something else.
fn waits(other: impl FnOnce(&End)) -> String {
    let (end, meeting) = (End::plain(2), Meeting::new(2));
    let error = std::thread::scope(|scope| {
        let rank = scope.spawn(|| meeting.meet(0, &"meets", &end, LONG, |_| ()));
        std::thread::sleep(Duration::from_millis(50));
        other(&end);
        rank.join().expect("no panic").expect_err("told")
    });
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
        waits(|end| end.leaves(1, Gone::Dropped)),
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
