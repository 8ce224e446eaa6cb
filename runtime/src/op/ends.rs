//! End of a launch, whatever comes behind it in its stream.

use crate::communicator::Communicator;
use crate::driver::{Event, Graph, Stream};
use crate::error::Error;
use crate::op::Op;
use crate::pending::Pending;
use crate::schedules::{Sender, gather};
use crate::tensor::Tensor;
use crate::user_buffer::UserBuffer;
use half::bf16;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// A rank with launches that each wait for the peer's of the same number.
struct Ready<'a> {
    rank: &'a Communicator,
    op: Op,
    x: UserBuffer<bf16>,
    w: Tensor<bf16>,
    y: Tensor<bf16>,
}

impl Ready<'_> {
    fn new(rank: &Communicator) -> Result<Ready<'_>, Error> {
        rank.reserve(4 << 20)?;
        let program = gather(Sender::Ctas(4));
        Ok(Ready {
            rank,
            op: rank.op(&program).up_to(8, 8, 8).first_options().build()?,
            x: rank.allocate("x", [8, 8])?,
            w: rank.zeros([8, 8])?,
            y: rank.zeros([8, 8])?,
        })
    }

    fn launch(&mut self) -> Result<Pending, Error> {
        let launch = self.op.on(self.rank).tensor("x", &self.x);
        let launch = launch.tensor("w", &self.w);
        launch.tensor("y", &mut self.y).launch()
    }
}

/// The first launch of two ranks is done although rank 0's stream then gets something that waits for rank 1's second
/// one, or rank 1's for rank 0's: `behind` enqueues it, given the stream of the other.
fn first_is_done(behind: impl Fn(&mut Ready<'_>, &Stream) -> Result<(), Error> + Sync) {
    let ranks = Communicator::emulated(2).expect("ranks");
    let other = ranks[1].stream();
    let done = Communicator::each(&ranks, |rank| {
        let mut ready = Ready::new(rank)?;
        rank.barrier()?;
        if rank.rank() == 0 {
            let (first, start) = (ready.launch()?, Instant::now());
            rank.barrier()?;
            behind(&mut ready, other)?;
            first.wait()?;
            assert!(first.is_done()?);
            assert!(start.elapsed() < Duration::from_secs(20));
            return rank.barrier();
        }
        ready.launch()?;
        // It waits for a launch that rank 0 does not make.
        ready.launch()?;
        rank.barrier()?;
        rank.barrier()
    });
    done.map(drop).expect("the first is done");
    ranks[0].abort("it is over");
}

#[test]
fn a_launch_is_done_before_a_later_one_whose_peer_has_yet_to_come() {
    let ranks = Communicator::emulated(2).expect("ranks");
    let done = Communicator::each(&ranks, |rank| {
        let mut ready = Ready::new(rank)?;
        rank.barrier()?;
        if rank.rank() == 0 {
            let first = ready.launch()?;
            let again = first.clone();
            ready.launch()?;
            first.wait()?;
            assert!(again.is_done()?);
            rank.barrier()?;
        } else {
            ready.launch()?;
            // Only when rank 0 has seen the end of its first one.
            rank.barrier()?;
            ready.launch()?;
        }
        rank.synchronize()
    });
    done.map(drop).expect("nobody waits for ever");
}

#[test]
fn a_launch_is_done_before_what_others_put_into_its_stream() {
    first_is_done(|ready, other| ready.rank.stream().wait(&Event::record(other)?));
}

#[test]
fn a_launch_is_done_before_what_comes_of_memory_that_is_handed_to_others() {
    first_is_done(|ready, other| {
        let elsewhere = ready.rank.gpu().stream()?;
        let given = ready.w.to_dlpack(&elsewhere)?;
        elsewhere.wait(&Event::record(other)?)?;
        // The rank's stream waits for it.
        drop(given);
        Ok(())
    });
}

#[test]
fn only_who_asks_pays_for_an_event() {
    let ranks = Communicator::emulated(1).expect("a rank");
    let rank = &ranks[0];
    let mut ready = Ready::new(rank).expect("ready");
    let event = |done: &Pending| done.known().is_some();
    let first = ready.launch().expect("a launch");
    assert!(!event(&first));
    let second = ready.launch().expect("a launch");
    assert!(event(&first), "another launch comes behind it");
    assert!(!event(&second));
    assert!(second.wait().is_ok() && event(&second));
    let third = ready.launch().expect("a launch");
    rank.stream();
    assert!(event(&third), "others may use the stream");
    assert!(event(&ready.launch().expect("a launch")));
}

/// Rank 1 has made a launch that waits for one which rank 0 has yet to make. Then all make memory, which is cleared behind
/// that on rank 1. What rank 0 does now is `then`, given its first launch and the memory; rank 0 makes no other launch.
fn behind_a_peers_next(
    then: impl Fn(&mut Ready<'_>, Pending, &UserBuffer<u32>) -> Result<(), Error> + Sync,
) {
    let ranks = Communicator::emulated(2).expect("ranks");
    let done = Communicator::each(&ranks, |rank| {
        let mut ready = Ready::new(rank)?;
        rank.barrier()?;
        let (first, start) = (ready.launch()?, Instant::now());
        if rank.rank() == 1 {
            ready.launch()?;
        }
        let made = rank.allocate::<u32>("made", [2])?;
        if rank.rank() == 0 {
            then(&mut ready, first, &made)?;
            assert!(start.elapsed() < Duration::from_secs(20));
        }
        rank.barrier()
    });
    done.map(drop).expect("nobody waits for ever");
    ranks[0].abort("it is over");
}

#[test]
fn a_launch_is_done_before_what_waits_for_a_peers_new_memory() {
    behind_a_peers_next(|_, first, made| {
        made.write_on(1, &[1, 2])?;
        first.wait()
    });
}

#[test]
fn what_a_rank_does_in_its_own_new_memory_waits_for_no_peer() {
    behind_a_peers_next(|_, _, made| {
        made.write(&[1, 2])?;
        assert_eq!(made.read()?, [1, 2]);
        made.rows(0..1)?.fill(0)?;
        assert_eq!(made.read_on(0)?, [0, 0]);
        Ok(())
    });
}

#[test]
fn a_launch_is_done_before_what_comes_with_another_op() {
    let ranks = Communicator::emulated(1).expect("a rank");
    let mut ready = Ready::new(&ranks[0]).expect("ready");
    let first = ready.launch().expect("a launch");
    assert!(first.known().is_none());
    // Its memory may have been another stream's.
    let program = gather(Sender::Ctas(4));
    let builder = ranks[0].op(&program);
    builder
        .up_to(8, 8, 8)
        .first_options()
        .build()
        .expect("an op");
    assert!(first.known().is_some());
}

/// The end of the launch could not be marked, and what others put into the stream may be behind it now.
#[test]
fn an_end_that_could_not_be_marked_is_told_to_who_asks() {
    let ranks = Communicator::emulated(1).expect("a rank");
    let rank = &ranks[0];
    let mut ready = Ready::new(rank).expect("ready");
    let first = ready.launch().expect("a launch");
    let own = rank.own_stream().clone();
    // An emulated stream that records takes no event.
    Graph::record(&own).expect("recording");
    rank.stream();
    Graph::recorded(&own).expect("recorded");
    let told = first.wait().expect_err("nobody knows");
    assert_eq!(told.kind(), "driver", "{told}");
    assert!(told.to_string().contains("end of a launch"), "{told}");
    ready
        .launch()
        .and_then(|done| done.wait())
        .expect("the next one");
}

/// The second to ask gets the stream when the end of the latest launch is marked, too, and not while another thread
/// launches.
#[test]
fn nobody_gets_the_stream_before_the_latest_launch_is_marked() {
    let ranks = Communicator::emulated(1).expect("a rank");
    let rank = &ranks[0];
    let mut ready = Ready::new(rank).expect("ready");
    let first = ready.launch().expect("a launch");
    let got = AtomicUsize::new(0);
    let current = rank.gpu().current().expect("a GPU");
    let turn = rank.turn(current).expect("its turn");
    thread::scope(|threads| {
        for _ in 0..2 {
            threads.spawn(|| {
                rank.stream();
                got.fetch_add(1, Ordering::Relaxed);
            });
        }
        thread::sleep(Duration::from_millis(100));
        assert_eq!(got.load(Ordering::Relaxed), 0, "a launch is being enqueued");
        drop(turn);
    });
    assert_eq!(got.into_inner(), 2);
    assert!(first.known().is_some());
}
