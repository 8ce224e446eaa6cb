//! Launches in graphs that the program captures in a stream of its own, on emulated ranks.

use crate::caller::captured;
use crate::communicator::Communicator;
use crate::driver::{Graph, Stream};
use crate::emulated::{self, Machine};
use crate::error::Error;
use crate::family::{Family, Reason};
use crate::group::Entry;
use crate::op::Op;
use crate::pending::Pending;
use crate::rendezvous::{Rendezvous, Threads};
use crate::retire;
use crate::schedules::{Sender, gather, gather_of_choices};
use crate::tensor::Tensor;
use crate::tuning::Tuning;
use crate::user_buffer::UserBuffer;
use half::bf16;
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

pub(super) const SIDE: usize = 8;
pub(super) const MOST: usize = 48;

/// A rank with an op that gathers, a stream of the program's, and tensors of as many rows as a launch has at most.
pub(super) struct Ready<'a> {
    rank: &'a Communicator,
    op: Op,
    x: UserBuffer<bf16>,
    pub(super) w: Tensor<bf16>,
    y: Tensor<bf16>,
    pub(super) stream: Stream,
}

fn numbers(from: usize, count: usize) -> Vec<bf16> {
    let number = |at: usize| ((at * 37 + from * 11) % 64) as f32 / 16.0 - 2.0;
    (0..count).map(|at| bf16::from_f32(number(at))).collect()
}

impl Ready<'_> {
    pub(super) fn new(rank: &Communicator) -> Result<Ready<'_>, Error> {
        rank.reserve(8 << 20)?;
        let program = gather(Sender::Ctas(4));
        let ready = Ready {
            rank,
            op: rank
                .op(&program)
                .up_to(MOST, SIDE, SIDE)
                .first_options()
                .build()?,
            x: rank.allocate("x", [MOST, SIDE])?,
            w: rank.zeros([SIDE, SIDE])?,
            y: rank.zeros([MOST, SIDE])?,
            stream: rank.gpu().stream()?,
        };
        ready.w.write(&numbers(1, SIDE * SIDE))?;
        // All rows everywhere: which of them a rank has depends on M.
        ready.x.write(&numbers(5, MOST * SIDE))?;
        rank.synchronize()?;
        rank.barrier()?;
        Ok(ready)
    }

    pub(super) fn launch(&mut self, on: &Stream, rows: usize) -> Result<Pending, Error> {
        let launch = self.op.on(on).tensor("x", &self.x).tensor("w", &self.w);
        launch.tensor("y", &mut self.y).rows(rows).launch()
    }

    /// A graph of launches of so many rows each, captured in the program's stream.
    fn captured(&mut self, rows: &[usize]) -> Result<Graph, Error> {
        let stream = self.stream.clone();
        Graph::record(&stream)?;
        let launched = rows.iter().try_for_each(|rows| {
            let recorded = self.launch(&stream, *rows)?;
            assert_eq!(recorded.wait().expect_err("nothing runs").kind(), "usage");
            Ok(())
        });
        let graph = Graph::recorded(&stream)?;
        launched.map(|()| graph)
    }

    /// Result in the first rows, which held something else before.
    fn given(
        &mut self,
        rows: usize,
        act: impl FnOnce(&mut Self) -> Result<(), Error>,
    ) -> Result<Vec<u32>, Error> {
        self.y.fill(0xff)?;
        act(self)?;
        let read = self.y.read()?;
        Ok(read[..rows * SIDE]
            .iter()
            .map(|y| u32::from(y.to_bits()))
            .collect())
    }
}

pub(super) fn ranks(world: u32, limit: Duration) -> Vec<Communicator> {
    let machine = Machine::new(world as usize, 0, u64::MAX);
    let gpus = (0..world).map(|gpu| emulated::Gpu::of(&machine, gpu).into());
    Communicator::of(gpus.collect(), Some(16 << 20), limit).expect("ranks")
}

pub(super) const LONG: Duration = Duration::from_secs(60);

#[test]
fn replays_between_launches_of_other_rows_are_right() {
    for world in [1, 3] {
        let done = Communicator::each(&ranks(world, LONG), |rank| {
            let mut ready = Ready::new(rank)?;
            let stream = ready.stream.clone();
            let rows = [MOST, 31, 7];
            let mut wanted = Vec::new();
            for m in rows {
                wanted.push(ready.given(m, |ready| ready.launch(&stream, m).map(drop))?);
            }
            let graphs = [ready.captured(&[MOST])?, ready.captured(&[31, 7])?];
            for round in 0..40 {
                let m = rows[round % 3];
                let eager = ready.given(m, |ready| ready.launch(&stream, m).map(drop))?;
                assert_eq!(eager, wanted[round % 3], "round {round}");
                // On the rank's own stream, too.
                ready.launch(rank.own_stream(), 1 + round % MOST)?;
                let replayed = ready.given(MOST, |_| graphs[0].launch(&stream))?;
                assert_eq!(replayed, wanted[0], "round {round}");
                let both = ready.given(31, |_| graphs[1].launch(&stream))?;
                assert_eq!(both, wanted[1], "round {round}");
            }
            rank.synchronize()?;
            rank.barrier()
        });
        done.map(drop)
            .unwrap_or_else(|error| panic!("{world}: {error}"));
    }
}

/// A serving engine captures a graph for each of its batch sizes.
#[test]
fn graphs_of_any_number_of_shapes_are_captured() {
    let done = Communicator::each(&ranks(2, LONG), |rank| {
        let mut ready = Ready::new(rank)?;
        let stream = ready.stream.clone();
        let graphs: Vec<_> = (1..=MOST)
            .map(|m| ready.captured(&[m]))
            .collect::<Result<_, _>>()?;
        for (graph, m) in graphs.iter().zip(1..) {
            let replayed = ready.given(m, |_| graph.launch(&stream))?;
            let eager = ready.given(m, |ready| ready.launch(&stream, m).map(drop))?;
            assert_eq!(replayed, eager, "{m} rows");
        }
        rank.synchronize()?;
        rank.barrier()
    });
    done.map(drop).expect("fine");
}

/// Nobody sees replays, and one may wait for a peer that measures.
#[test]
fn nothing_is_measured_while_the_program_may_replay() {
    let family = Family::new("gathered", gather_of_choices(false)).or(gather_of_choices(true));
    let done = Communicator::each(&ranks(2, LONG), |rank| {
        let mut ready = Ready::new(rank)?;
        let measured = || {
            let builder = rank.family(&family).tuning(Tuning::Quick);
            let why = builder.up_to(64, 64, 64).build()?.why(64);
            Ok::<_, Error>(matches!(why, Reason::Measured { .. }))
        };
        let graph = ready.captured(&[MOST])?;
        assert!(!measured()?);
        drop(graph);
        let start = Instant::now();
        while rank.own().may_record_or_replay() && start.elapsed() < Duration::from_secs(5) {
            retire::sweep();
        }
        rank.barrier()?;
        assert!(measured()?);
        rank.synchronize()?;
        rank.barrier()
    });
    done.map(drop).expect("fine");
}

#[test]
fn what_a_captured_launch_uses_lives_as_long_as_the_graph_and_no_longer() {
    let machine = Machine::new(2, 0, u64::MAX);
    let left = Arc::downgrade(&machine);
    let gpus = (0..2).map(|gpu| emulated::Gpu::of(&machine, gpu).into());
    let ranks = Communicator::of(gpus.collect(), Some(16 << 20), LONG).expect("ranks");
    drop(machine);
    let graphs = Communicator::each(&ranks, |rank| {
        let mut ready = Ready::new(rank)?;
        let graph = ready.captured(&[MOST, 7])?;
        let stream = ready.stream.clone();
        graph.launch(&stream)?;
        drop(ready);
        // Memory that is freed is nobody's again on an emulated GPU, and an access to it ends the machine.
        graph.launch(&stream)?;
        stream.synchronize()?;
        rank.synchronize()?;
        rank.barrier()?;
        Ok((graph, stream))
    });
    let graphs = graphs.expect("replays");
    drop(ranks);
    for (graph, stream) in &graphs {
        graph.launch(stream).expect("a replay");
    }
    for (_, stream) in &graphs {
        stream.synchronize().expect("it ran");
    }
    drop(graphs);
    let start = Instant::now();
    while left.upgrade().is_some() && start.elapsed() < Duration::from_secs(5) {
        std::thread::sleep(Duration::from_millis(5));
        retire::sweep();
    }
    assert!(left.upgrade().is_none(), "somebody still has the machine");
}

/// Errors of both ranks, each within a second after both began.
fn told(act: impl Fn(&mut Ready<'_>, [&Graph; 2]) -> Result<(), Error> + Sync) -> Vec<String> {
    let met = Barrier::new(2);
    let told = Communicator::each(&ranks(2, LONG), |rank| {
        let mut ready = Ready::new(rank)?;
        let stream = ready.stream.clone();
        let graphs = [ready.captured(&[MOST])?, ready.captured(&[31])?];
        for graph in &graphs {
            graph.launch(&stream)?;
            ready.launch(&stream, 9)?;
        }
        rank.synchronize()?;
        met.wait();
        let start = Instant::now();
        let told = act(&mut ready, [&graphs[0], &graphs[1]]).and_then(|()| rank.synchronize());
        let told = told.expect_err("they differ");
        assert!(start.elapsed() < Duration::from_secs(1), "{told}");
        // Nobody leaves before all were told.
        met.wait();
        assert_eq!(told.kind(), "mismatch", "{told}");
        Ok(told.to_string())
    });
    told.unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn replays_of_other_graphs_are_a_mismatch_with_both_sides() {
    for text in told(|ready, graphs| graphs[ready.rank.rank() as usize].launch(&ready.stream)) {
        assert!(
            text.contains("of 48 rows") && text.contains("of 31 rows"),
            "{text}"
        );
        assert!(text.contains("launch 4 on their GPUs"), "{text}");
    }
}

#[test]
fn a_replay_and_a_launch_in_two_orders_are_a_mismatch() {
    let both = told(|ready, [graph, _]| {
        let stream = ready.stream.clone();
        if ready.rank.rank() == 0 {
            graph.launch(&stream)?;
            return ready.launch(&stream, 9).map(drop);
        }
        ready.launch(&stream, 9)?;
        graph.launch(&stream)
    });
    for text in both {
        assert!(
            text.contains("of 48 rows") && text.contains("of 9 rows"),
            "{text}"
        );
    }
}

#[test]
fn a_replay_and_the_same_launch_by_a_host_are_a_mismatch() {
    let both = told(|ready, [graph, _]| {
        let stream = ready.stream.clone();
        match ready.rank.rank() {
            0 => graph.launch(&stream),
            _ => ready.launch(&stream, MOST).map(drop),
        }
    });
    for text in both {
        assert!(text.contains("one replays gather"), "{text}");
    }
}

#[test]
fn a_rank_that_replays_less_often_is_waited_for_until_the_time_limit() {
    let limit = Duration::from_millis(300);
    let told = Communicator::each(&ranks(2, limit), |rank| {
        let mut ready = Ready::new(rank)?;
        let graph = ready.captured(&[MOST])?;
        let stream = ready.stream.clone();
        graph.launch(&stream)?;
        rank.synchronize()?;
        rank.barrier()?;
        if rank.rank() == 0 {
            graph.launch(&stream)?;
        }
        // Rank 1 has nothing to wait for, and stays.
        let start = Instant::now();
        while rank.alive().is_ok() && start.elapsed() < LONG {
            if rank.rank() == 0 {
                let _ = stream.synchronize();
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(rank.alive().expect_err("it ended").to_string())
    });
    for text in told.expect("no rank fails") {
        assert!(text.starts_with("rank 0 waited too long: "), "{text}");
    }
}

#[test]
fn a_rank_that_is_done_and_replays_less_often_is_told_within_a_second() {
    let told = Communicator::each(&ranks(2, LONG), |rank| {
        let mut ready = Ready::new(rank)?;
        let graph = ready.captured(&[MOST])?;
        let stream = ready.stream.clone();
        graph.launch(&stream)?;
        ready.launch(&stream, 9)?;
        rank.synchronize()?;
        rank.barrier()?;
        if rank.rank() == 1 {
            return Ok(None);
        }
        let start = Instant::now();
        graph.launch(&stream)?;
        let told = rank.synchronize().expect_err("rank 1 is done");
        assert!(start.elapsed() < Duration::from_secs(1), "{told}");
        Ok(Some(told.to_string()))
    });
    let told = told.expect("no rank fails").remove(0).expect("rank 0");
    assert_eq!(
        told,
        "rank 1 ended early: its part of `each` ended after 2 launches, replays counted, and rank 0 has begun 3"
    );
}

/// Errors of ranks that are processes, each a thread here.
fn apart(act: fn(&mut Ready<'_>, &[Graph; 2]) -> Result<(), Error>) -> Vec<String> {
    let one = |seat: &dyn Rendezvous| {
        let rank = Communicator::join_emulated(seat)?;
        let mut ready = Ready::new(&rank)?;
        let graphs = [ready.captured(&[MOST])?, ready.captured(&[31])?];
        let stream = ready.stream.clone();
        for graph in &graphs {
            graph.launch(&stream)?;
            ready.launch(&stream, 9)?;
        }
        rank.synchronize()?;
        rank.barrier()?;
        let start = Instant::now();
        let told = act(&mut ready, &graphs).and_then(|()| rank.synchronize());
        let took = start.elapsed();
        assert!(took < Duration::from_secs(1), "{took:?}");
        Ok(told.err().map(|told| told.to_string()))
    };
    let told = std::thread::scope(|scope| {
        let seats = Threads::of(2);
        let ranks: Vec<_> = seats
            .into_iter()
            .map(|seat| scope.spawn(move || one(&seat)))
            .collect();
        let told = ranks.into_iter().map(|rank| rank.join().expect("no panic"));
        told.collect::<Result<Vec<_>, Error>>()
    });
    told.expect("ranks").into_iter().flatten().collect()
}

#[test]
fn replays_of_processes_are_compared_too() {
    let told = apart(|ready, graphs| {
        graphs[ready.rank.rank() as usize].launch(&ready.stream)?;
        // Until both were told.
        let start = Instant::now();
        while ready.rank.alive().is_ok() && start.elapsed() < Duration::from_secs(1) {
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    });
    assert_eq!(told.len(), 2);
    for text in told {
        assert!(
            text.contains("of 48 rows") && text.contains("of 31 rows"),
            "{text}"
        );
    }
}

#[test]
fn a_process_that_leaves_and_replays_less_often_is_told_within_a_second() {
    let told = apart(|ready, [graph, _]| match ready.rank.rank() {
        0 => graph.launch(&ready.stream),
        _ => Ok(()),
    });
    let wanted = "rank 1 ended early: its communicator was dropped after 4 launches, replays counted, and rank 0 has begun 5";
    assert_eq!(told, [wanted]);
}

#[test]
fn what_a_capture_may_not_have_is_refused_and_ends_nothing() {
    let done = Communicator::each(&ranks(2, LONG), |rank| {
        let mut ready = Ready::new(rank)?;
        let stream = ready.stream.clone();
        let program = gather(Sender::CopyEngine);
        let copies = rank
            .op(&program)
            .up_to(MOST, SIDE, SIDE)
            .first_options()
            .build()?;
        Graph::record(&stream)?;
        let launch = copies
            .on(&stream)
            .tensor("x", &ready.x)
            .tensor("w", &ready.w);
        let told = launch
            .tensor("y", &mut ready.y)
            .launch()
            .expect_err("by copy engine");
        assert_eq!(told.kind(), "not_yet", "{told}");
        let told = ready.launch(&stream, MOST + 1).expect_err("more rows");
        assert_eq!(told.kind(), "rejected", "{told}");
        ready.launch(&stream, 7)?;
        let graph = Graph::recorded(&stream)?;
        graph.launch(&stream)?;
        rank.synchronize()?;
        // The rank's own stream is what all its work is in the order of.
        let own = rank.stream().clone();
        Graph::record(&own)?;
        let told = ready.launch(&own, 7).expect_err("it records");
        assert_eq!(told.kind(), "usage", "{told}");
        drop(Graph::recorded(&own)?);
        graph.launch(&stream)?;
        rank.synchronize()?;
        rank.barrier()
    });
    done.map(drop).expect("fine");
}

/// As where no memory is left for a table, or where launches need more hardware queues than there are.
#[test]
fn a_captured_launch_that_is_refused_late_leaves_nothing_that_replays_compare() {
    let done = Communicator::each(&ranks(2, LONG), |rank| {
        let mut ready = Ready::new(rank)?;
        let stream = ready.stream.clone();
        Graph::record(&stream)?;
        if rank.rank() == 1 {
            let own = Arc::new(rank.handle());
            let entry = Entry::new("refused", 7, 1, MOST as u32);
            let refused = || Error::TooLarge {
                what: "a table".into(),
                help: "none".into(),
            };
            let current = rank.gpu().current()?;
            let told = captured(&own, current, &stream, Some(&entry), |_, _| Err(refused()));
            assert_eq!(told.expect_err("refused").kind(), "too_large");
        }
        let recorded = ready.launch(&stream, MOST).map(drop);
        let graph = Graph::recorded(&stream)?;
        recorded?;
        let wanted = ready.given(MOST, |ready| ready.launch(&stream, MOST).map(drop))?;
        for _ in 0..3 {
            assert_eq!(ready.given(MOST, |_| graph.launch(&stream))?, wanted);
        }
        rank.synchronize()?;
        rank.barrier()
    });
    done.map(drop).expect("fine");
}

#[test]
fn a_rank_that_captures_a_launch_goes_on_after_a_refusal() {
    let limit = Duration::from_millis(300);
    let told = Communicator::each(&ranks(2, limit), |rank| {
        let mut ready = Ready::new(rank)?;
        let stream = ready.stream.clone();
        if rank.rank() == 1 {
            let refused = ready.launch(&stream, MOST + 1);
            assert_eq!(refused.expect_err("more rows").kind(), "rejected");
        }
        let graph = ready.captured(&[MOST])?;
        rank.barrier()?;
        if rank.rank() == 0 {
            graph.launch(&stream)?;
        }
        let start = Instant::now();
        while rank.alive().is_ok() && start.elapsed() < LONG {
            let _ = rank.synchronize();
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(rank.alive().expect_err("it ended").to_string())
    });
    for text in told.expect("no rank fails") {
        assert!(text.starts_with("rank 0 waited too long: "), "{text}");
        assert!(!text.contains("refused"), "{text}");
    }
}

/// Launches of no rows wait for nobody, so a rank may be ahead of the others by any number of them.
#[test]
fn a_replay_that_differed_long_ago_is_a_mismatch() {
    const MANY: usize = 200;
    let told = Communicator::each(&ranks(2, LONG), |rank| {
        let ready = Ready::new(rank)?;
        let program = gather(Sender::Ctas(4));
        let other = rank.op(&program).up_to(MOST, SIDE, SIDE);
        let other = other.first_options().build()?;
        let stream = ready.stream.clone();
        let graph = |op: &Op| {
            Graph::record(&stream)?;
            let launched = op.on(&stream).rows(0).launch().map(drop);
            let graph = Graph::recorded(&stream)?;
            launched.map(|()| graph)
        };
        let graphs = [graph(&ready.op)?, graph(&other)?];
        rank.barrier()?;
        if rank.rank() == 1 {
            // Behind all of the other's.
            rank.barrier()?;
        }
        for at in 0..MANY {
            graphs[usize::from(rank.rank() == 1 && at == MANY / 4)].launch(&stream)?;
        }
        stream.synchronize()?;
        if rank.rank() == 0 {
            rank.barrier()?;
        }
        let start = Instant::now();
        while rank.alive().is_ok() && start.elapsed() < Duration::from_secs(1) {
            std::thread::sleep(Duration::from_millis(1));
        }
        let told = rank.alive().expect_err("they differ");
        assert_eq!(told.kind(), "mismatch", "{told}");
        Ok(told.to_string())
    });
    for text in told.unwrap_or_else(|error| panic!("{error}")) {
        let first = MANY - 64;
        assert_eq!(
            text,
            format!(
                "the ranks differ at or before launch {first} on their GPUs, replays counted: ranks 0 and 1 replay other launches there, or in another order"
            )
        );
    }
}
