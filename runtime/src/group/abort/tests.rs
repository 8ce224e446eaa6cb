use super::*;
use std::time::{Duration, Instant};

/// Two kernels a rank, which have other names for the same numbers.
fn named(world: u32) -> Arc<End> {
    let end = Arc::new(End::plain(world as usize));
    for rank in 0..world {
        for (number, kernel) in [(0, "gather"), (1, "scatter")] {
            let names = Names {
                kernel: format!("{kernel} of rank {rank}"),
                roles: vec![format!("load of {kernel}")],
                waits: vec![Awaited {
                    name: format!("arrived of {kernel}"),
                    first: 2,
                    at: Some(format!("{kernel}.rs:7")),
                }],
            };
            // Nobody drops the kernels.
            std::mem::forget(End::name(&end, (rank, number), names));
        }
    }
    end
}

fn told(end: &End) -> String {
    end.alive().expect_err("ended").to_string()
}

fn aborted(what: &str) -> Verdict {
    Verdict::Aborted(what.into())
}

#[test]
fn a_record_names_the_kernel_that_waited_and_not_the_last_one_loaded() {
    let end = named(2);
    assert!(end.alive().is_ok());
    let mut record = Told::of(Cause::TimeLimit, 1, 100);
    (record.index, record.wanted, record.block) = (5, 4, 3);
    end.record(1, record);
    assert_eq!(
        told(&end),
        "rank 1 waited too long: load of gather of CTA 3 in gather of rank 1 saw 0 of 4 on arrived of gather[3] (gather.rs:7); launches enqueued, rank by rank: 0, 0"
    );
    assert_eq!(
        end.word.get(),
        1,
        "those who were not told by it are told now"
    );
}

#[test]
fn the_first_by_time_is_the_cause_and_who_was_told_never_is() {
    use Cause::{Barrier, TimeLimit, ToldByHost, ToldByPeer};
    let cases = [
        ([(ToldByPeer, 1), (TimeLimit, 9), (TimeLimit, 8)], 2),
        ([(TimeLimit, 5), (ToldByHost, 1), (TimeLimit, 6)], 0),
        ([(ToldByPeer, 4), (Barrier, 7), (ToldByPeer, 3)], 1),
    ];
    for (records, culprit) in cases {
        let end = named(3);
        for (rank, (cause, time)) in records.into_iter().enumerate() {
            let record = Told::of(cause, rank as u32, time);
            end.record(rank as u32, record);
        }
        let Some(Verdict::Stalled(stall)) = end.verdict() else {
            panic!("{:?}", end.verdict());
        };
        assert_eq!(stall.rank, culprit, "{records:?}");
        assert_eq!(stall.within, records[culprit as usize].0 == Barrier);
    }
}

#[test]
fn a_peers_end_is_not_a_time_limit() {
    let end = named(2);
    end.record(0, Told::of(Cause::ToldByPeer, 0, 1));
    let error = end.alive().expect_err("ended");
    assert_eq!(error.kind(), "aborted", "{error}");
    let end = named(2);
    end.end(aborted("rank 1 ended early: no room"));
    // The kernels that wait are told, and record that they were.
    assert_eq!(end.word.get(), 1);
    end.record(0, Told::of(Cause::ToldByHost, 0, 1));
    assert_eq!(told(&end), "rank 1 ended early: no room");
}

#[test]
fn the_first_cause_stays_and_a_kernels_record_comes_before_a_later_one_of_the_host() {
    let end = named(2);
    assert_eq!(end.end(aborted("first")), aborted("first"));
    assert_eq!(end.end(aborted("second")), aborted("first"));
    end.record(0, Told::of(Cause::TimeLimit, 0, 1));
    assert_eq!(told(&end), "first");
    let end = named(2);
    end.record(0, Told::of(Cause::TimeLimit, 0, 1));
    assert!(matches!(end.end(aborted("late")), Verdict::Stalled(_)));
    assert!(told(&end).starts_with("rank 0 waited too long"));
}

#[test]
fn a_record_is_looked_at_once_it_is_complete() {
    let end = named(1);
    let whole = Told::of(Cause::TimeLimit, 0, 1);
    end.record(0, whole.unwritten());
    assert!(end.alive().is_ok());
    end.record(0, whole);
    assert!(end.alive().is_err());
}

#[test]
fn a_rank_that_is_dropped_while_a_peer_waits_for_its_launch_ends_it() {
    let end = named(2);
    end.launches(0).expect("a launch");
    end.launches(1).expect("a launch");
    end.leaves(1, Gone::Dropped);
    assert!(end.alive().is_ok(), "what it launched is there");
    let error = end.launches(0).expect_err("rank 1 is gone");
    assert_eq!(
        error.to_string(),
        "rank 1 ended early: its communicator was dropped after 1 launches, and rank 0 has made 2"
    );
    let end = named(2);
    end.launches(0).expect("a launch");
    end.leaves(1, Gone::Dropped);
    assert_eq!(
        told(&end),
        "rank 1 ended early: its communicator was dropped after 0 launches, and rank 0 has made 1"
    );
    assert_eq!(end.gone(), Some(1));
}

#[test]
fn a_rank_whose_thread_panics_tells_the_others_at_once() {
    let end = named(2);
    struct Dropped<'a>(&'a End);
    impl Drop for Dropped<'_> {
        fn drop(&mut self) {
            self.0.leaves(1, Gone::Dropped);
        }
    }
    let start = Instant::now();
    let panicked = std::thread::scope(|scope| {
        let rank = scope.spawn(|| {
            let _rank = Dropped(&end);
            panic!("on purpose");
        });
        while end.word.get() == 0 {
            assert!(start.elapsed() < Duration::from_secs(60), "nobody was told");
            std::thread::sleep(Duration::from_millis(1));
        }
        rank.join().is_err()
    });
    assert!(panicked);
    assert_eq!(told(&end), "rank 1 panicked");
}
