//! Ops of several stages, and launches of which a part was enqueued, on emulated ranks.

use super::captured::{LONG, ranks};
use super::{Caller, Op};
use crate::caller::{captured, in_order};
use crate::communicator::Communicator;
use crate::driver::{Event, Graph, MemoryOp, Stream};
use crate::error::Error;
use crate::family::{Collective, Family, Stage};
use crate::schedules::{Sender, gather, gathered, product};
use crate::tensor::Tensor;
use crate::user_buffer::UserBuffer;
use half::bf16;
use std::sync::Arc;
use std::time::Duration;

const SIDE: usize = 64;

/// A product that only this rank knows of, and then a gather.
fn family(sender: Sender) -> Family {
    let first = Stage::new(product((64, 64)));
    let first = first.tensor("x", "w").tensor("y", "g");
    let gathers = gather(sender);
    Family::new("gather", gathers.clone()).or_stages([first, Stage::new(gathers)])
}

/// A rank with an op of two stages.
struct Two {
    op: Op,
    x: UserBuffer<bf16>,
    w: Tensor<bf16>,
    y: Tensor<bf16>,
}

impl Two {
    fn new(rank: &Communicator, sender: Sender) -> Result<Two, Error> {
        rank.reserve(8 << 20)?;
        let family = family(sender);
        let name = family.candidates()[1].name();
        let builder = rank.family(&family).schedule(&name).first_options();
        Ok(Two {
            op: builder.up_to(SIDE, SIDE, SIDE).build()?,
            x: rank.allocate("x", [SIDE, SIDE])?,
            w: rank.zeros([SIDE, SIDE])?,
            y: rank.zeros([SIDE, SIDE])?,
        })
    }

    fn launch<'a>(&'a mut self, on: impl Into<Caller<'a>>) -> Result<(), Error> {
        let launch = self.op.on(on).tensor("x", &self.x).tensor("w", &self.w);
        launch.tensor("y", &mut self.y).launch().map(drop)
    }
}

#[test]
fn a_graph_has_no_stage_of_a_launch_that_may_not_be_recorded() {
    let done = Communicator::each(&ranks(2, LONG), |rank| {
        let mut two = Two::new(rank, Sender::CopyEngine)?;
        let mut told = None;
        let graph = rank.capture(|recording| {
            told = two.launch(recording).err();
            Ok(())
        })?;
        assert_eq!(told.map(|told| told.kind()), Some("not_yet"));
        assert!(graph.is_empty(), "{} launches", graph.len());
        two.launch(rank)?;
        rank.synchronize()?;
        rank.barrier()
    });
    done.map(drop).unwrap_or_else(|error| panic!("{error}"));
}

/// Limits apply to all that an op keeps.
#[test]
fn plans_count_the_arrivals_of_all_stages() {
    let done = Communicator::each(&ranks(2, LONG), |rank| {
        let two = Two::new(rank, Sender::Ctas(4))?;
        let planned = two.op.0.plan(SIDE)?;
        let all = planned.stages.iter().chain([&planned.plan]);
        let counts: Vec<usize> = all.map(|plan| plan.arrivals.len()).collect();
        assert!(counts[1] > 0, "the stage that gathers has some");
        assert_eq!(planned.arrivals(), counts.iter().sum::<usize>());
        let gathers = gather(Sender::Ctas(4));
        let alone = rank.op(&gathers).first_options();
        let planned = alone.up_to(SIDE, SIDE, SIDE).build()?.0.plan(SIDE)?;
        assert_eq!(planned.arrivals(), planned.plan.arrivals.len());
        rank.barrier()
    });
    done.map(drop).unwrap_or_else(|error| panic!("{error}"));
}

/// A rank that does not come to an exchange of low latency is named with the row, and the kernel of the rank that waits ends.
#[test]
fn an_exchange_of_low_latency_names_the_rank_that_never_launches() {
    let limit = Duration::from_millis(300);
    let told = Communicator::each(&ranks(2, limit), |rank| {
        rank.reserve(4 << 20)?;
        let few = Stage::low_latency(Collective::AllGather, gathered());
        let family = Family::new("gathered", gathered()).or_stages([few]);
        let name = family.candidates()[1].name();
        let op = rank.family(&family).schedule(&name).up_to(9, SIDE, SIDE);
        let op = op.build()?;
        let x = rank.allocate::<bf16>("x", [10, SIDE])?;
        rank.synchronize()?;
        rank.barrier()?;
        if rank.rank() == 1 {
            while rank.alive().is_ok() {
                std::thread::sleep(Duration::from_millis(5));
            }
            return Ok(rank.alive().expect_err("it ended"));
        }
        op.on(rank).tensor("x", &x).launch()?;
        op.on(rank).tensor("x", &x).rows(3).launch()?;
        Ok(rank.synchronize().expect_err("nobody comes"))
    });
    for error in told.unwrap_or_else(|error| panic!("{error}")) {
        assert_eq!(error.kind(), "stalled", "{error}");
        let text = error.to_string();
        let wanted = [
            "rank 0 waited too long",
            "rows of rank 1[5]",
            "low_latency_gathered",
        ];
        for part in wanted {
            assert!(text.contains(part), "{text}");
        }
    }
}

fn fails() -> Error {
    Error::Wrong {
        what: "the driver refuses the second stage".into(),
        help: "none".into(),
    }
}

/// A rank alone, and memory whose first word a stream waits for.
struct Gate<'a> {
    rank: &'a Arc<Communicator>,
    word: Tensor<u64>,
}

impl Gate<'_> {
    fn op(&self, stream: &Stream, op: MemoryOp) {
        let current = self.rank.gpu().current().expect("a GPU");
        current.memory_ops(stream, &[op]).expect("enqueued");
    }

    fn closes(&self, stream: &Stream) {
        let cell = self.word.address();
        self.op(stream, MemoryOp::AtLeast { cell, value: 1 });
    }

    /// True if what is enqueued in that stream now waits until the gate is open. It is open then.
    fn holds(&self, stream: &Stream) -> bool {
        let behind = Event::record(stream).expect("an event");
        std::thread::sleep(Duration::from_millis(50));
        let held = !behind.is_done().expect("an answer");
        let cell = self.word.address();
        let other = self.rank.gpu().stream().expect("a stream");
        self.op(&other, MemoryOp::Store { cell, value: 1 });
        stream.synchronize().expect("it is open");
        held
    }
}

#[test]
fn streams_come_after_what_was_enqueued_of_a_launch_that_failed() {
    for lent in [false, true] {
        let ranks = ranks(1, LONG);
        let rank = &Arc::new(ranks[0].handle());
        let word = rank.zeros::<u64>([1]).expect("a word");
        let gate = Gate { rank, word };
        let users = rank.gpu().stream().expect("a stream");
        let (outside, theirs) = match lent {
            false => (Some(&users), vec![]),
            true => (None, vec![users.clone()]),
        };
        let current = rank.gpu().current().expect("a GPU");
        let own = rank.own_stream();
        {
            let _turn = rank.turn(current).expect("the turn");
            let passage = rank.passes([own, &users].into_iter(), 0);
            let passage = (passage.expect("nobody is there"), vec![]);
            let told = in_order(rank, current, passage, outside, &theirs, || {
                gate.closes(own);
                Err(fails())
            });
            assert_eq!(told.expect_err("it fails").kind(), fails().kind());
        }
        assert!(gate.holds(&users), "lent: {lent}");
    }
}

#[test]
fn a_rank_comes_after_replays_of_what_was_captured_of_a_launch_that_failed() {
    let ranks = ranks(1, LONG);
    let rank = &Arc::new(ranks[0].handle());
    let word = rank.zeros::<u64>([1]).expect("a word");
    let gate = Gate { rank, word };
    let stream = rank.gpu().stream().expect("a stream");
    Graph::record(&stream).expect("recording");
    let current = rank.gpu().current().expect("a GPU");
    {
        let _turn = rank.turn(current).expect("the turn");
        let _mode = rank.gpu().relaxed();
        let told = captured(rank, current, &stream, None, |_, begins| {
            begins.begin()?;
            Err(fails())
        });
        assert_eq!(told.expect_err("it fails").kind(), fails().kind());
    }
    let graph = Graph::recorded(&stream).expect("a graph");
    gate.closes(&stream);
    graph.launch(&stream).expect("a replay");
    drop(rank.own_stream().enter().expect("nobody is in"));
    assert!(gate.holds(rank.own_stream()));
}
