//! What a program does within a step of its own, while that has the rank's turn to enqueue.

use crate::schedules::product;
use counterflow_runtime::op::Running;
use counterflow_runtime::{Communicator, Error, Op, Pending, Tensor};
use half::bf16;
use std::sync::mpsc::channel;
use std::time::Duration;

/// Long enough for a slow machine, and short enough to fail where it would hang.
const LIMIT: Duration = Duration::from_secs(20);

/// What was made before.
struct Ready {
    op: Op,
    x: Tensor<bf16>,
}

impl Ready {
    fn launch(&self, rank: &Communicator) -> Result<Pending, Error> {
        let launch = self.op.on(rank).tensor("x", &self.x);
        let mut y = self.x.rows(0..8)?;
        launch.tensor("w", &self.x).tensor("y", &mut y).launch()
    }
}

type Call = fn(&Communicator, &Ready) -> Result<(), Error>;

/// What a call within a step gives. A call that hangs fails here.
fn within(call: Call) -> Result<(), Error> {
    let (send, receive) = channel();
    std::thread::spawn(move || {
        let ranks = Communicator::emulated(1).expect("ranks");
        ranks[0].reserve(8 << 20).expect("memory");
        let told = Communicator::each(&ranks, |rank| {
            let program = product((64, 64));
            let op = rank.op(&program).up_to(8, 8, 8).first_options().build()?;
            let x = rank.zeros([8, 8])?;
            let ready = Ready { op, x };
            let step = rank.step(rank);
            // SAFETY: no kernel is launched.
            let done = unsafe { step.launch(|_: &Running<'_>| call(rank, &ready)) };
            // It holds nothing of the rank afterwards.
            rank.zeros::<bf16>([4, 4])?;
            rank.barrier()?;
            done?.wait()
        });
        let _ = send.send(told.map(drop));
    });
    receive.recv_timeout(LIMIT).expect("it hangs")
}

#[test]
fn calls_that_wait_for_the_turn_of_their_own_step_are_refused_at_once() {
    let all: [(&str, Call); 10] = [
        ("zeros", |rank, _| rank.zeros::<bf16>([4, 4]).map(drop)),
        ("allocate", |rank, _| {
            rank.allocate::<bf16>("x", [4, 4]).map(drop)
        }),
        ("reserve", |rank, _| rank.reserve(16 << 20)),
        ("barrier", |rank, _| rank.barrier()),
        ("split", |rank, _| rank.split(0, 0).map(drop)),
        ("build", |rank, _| {
            let program = product((64, 64));
            let op = rank.op(&program).up_to(8, 8, 8).first_options();
            op.build().map(drop)
        }),
        ("a step", |rank, _| {
            // SAFETY: nothing is enqueued.
            unsafe { rank.step(rank).launch(|_| Ok(())) }.map(drop)
        }),
        ("a step elsewhere", |rank, _| {
            let stream = rank.gpu().stream()?;
            // SAFETY: nothing is enqueued.
            unsafe { rank.step(&stream).launch(|_| Ok(())) }.map(drop)
        }),
        ("a replay", |rank, _| {
            let graph = rank.capture(|_| Ok(()))?;
            graph.launch(rank).map(drop)
        }),
        ("a launch", |rank, ready| ready.launch(rank).map(drop)),
    ];
    for (what, call) in all {
        let told = within(call).expect_err(what);
        assert_eq!(told.kind(), "usage", "{what}: {told}");
        assert!(
            told.to_string().contains("within `Step::launch`"),
            "{what}: {told}"
        );
    }
}

/// The thread that has the turn has nobody to wait for.
#[test]
fn what_needs_no_turn_of_its_own_goes_on_within_a_step() {
    let all: [(&str, Call); 3] = [
        ("the stream", |rank, _| rank.stream().synchronize()),
        ("a fill", |_, ready| ready.x.fill(0)),
        ("a tensor for others", |rank, ready| {
            ready.x.to_dlpack(&rank.gpu().stream()?).map(drop)
        }),
    ];
    for (what, call) in all {
        within(call).unwrap_or_else(|error| panic!("{what}: {error}"));
    }
}
