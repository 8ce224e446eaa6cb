//! Graphs on emulated ranks.

use crate::schedules::{self, Sender};
use counterflow_codegen::program::Program;
use counterflow_runtime::driver::Event;
use counterflow_runtime::op::{Caller, Running};
use counterflow_runtime::{Communicator, Error, Graph, Op, Pending, Tensor, UserBuffer};
use half::bf16;

/// Rows, columns, which are the depth as well.
const SIZE: [usize; 2] = [300, 64];

/// A number that bf16 has exactly.
fn number(round: usize, row: usize, column: usize) -> bf16 {
    bf16::from_f32(((round * 17 + row * 31 + column * 7) % 251) as f32)
}

/// y = all_gather(x) · wᵀ on one rank, where w moves every column on by one.
struct Layer {
    op: Op,
    x: UserBuffer<bf16>,
    y: Tensor<bf16>,
}

fn moving(rank: &Communicator) -> Result<Tensor<bf16>, Error> {
    let side = SIZE[1];
    let w = rank.zeros([side, side])?;
    let mut moves = vec![bf16::ZERO; side * side];
    (0..side).for_each(|row| moves[row * side + (row + 1) % side] = bf16::ONE);
    w.write(&moves).map(|()| w)
}

impl Layer {
    fn new(rank: &Communicator, program: &Program) -> Result<Layer, Error> {
        let [m, side] = SIZE;
        rank.reserve(4 << 20)?;
        Ok(Layer {
            op: rank.op(program).up_to(m, side, side).build()?,
            x: rank.allocate("x", SIZE)?,
            y: rank.zeros(SIZE)?,
        })
    }

    fn launch<'a>(
        &mut self,
        on: impl Into<Caller<'a>>,
        w: &Tensor<bf16>,
    ) -> Result<Pending, Error> {
        let on: Caller<'_> = on.into();
        let launch = self.op.on(on).tensor("x", &self.x);
        launch.tensor("w", w).tensor("y", &mut self.y).launch()
    }

    /// A graph of one launch. Nobody else has its `w`.
    fn recorded(&mut self, rank: &Communicator) -> Result<Graph, Error> {
        let w = moving(rank)?;
        rank.capture(|s| {
            let recorded = self.launch(s, &w)?;
            assert_eq!(recorded.wait().expect_err("nothing runs").kind(), "usage");
            Ok(())
        })
    }

    /// This rank's rows of that round, and nothing elsewhere.
    fn prepare(&self, rank: &Communicator, round: usize) -> Result<(), Error> {
        let [m, side] = SIZE;
        let shard = m.div_ceil(rank.world() as usize);
        let value = |at: usize| match at / side / shard == rank.rank() as usize {
            true => number(round, at / side, at % side),
            false => bf16::NAN,
        };
        self.x
            .write(&(0..m * side).map(value).collect::<Vec<_>>())?;
        self.y.fill(0xff)?;
        rank.synchronize()?;
        rank.barrier()
    }

    fn right(&self, rank: &Communicator, round: usize) -> Result<(), Error> {
        let side = SIZE[1];
        for (at, value) in self.y.read()?.into_iter().enumerate() {
            let (row, column) = (at / side, at % side);
            let wanted = number(round, row, (column + 1) % side);
            assert_eq!(value, wanted, "round {round}, {row}, {column}");
        }
        rank.barrier()
    }
}

#[test]
fn replays_move_and_compute_what_launches_do_and_take_turns_with_them() -> Result<(), Error> {
    for world in 1..=3 {
        let ranks = Communicator::emulated(world)?;
        Communicator::each(&ranks, |rank| {
            let mut layer = Layer::new(rank, &schedules::gather(Sender::Ctas(4)))?;
            let graph = layer.recorded(rank)?;
            assert_eq!(graph.len(), 1);
            let (stream, w) = (rank.gpu().stream()?, moving(rank)?);
            for round in 0..9 {
                layer.prepare(rank, round)?;
                let done = match round % 3 {
                    0 => graph.launch(&stream)?,
                    1 => layer.launch(&stream, &w)?,
                    _ => graph.launch(rank)?,
                };
                done.wait()?;
                layer.right(rank, round)?;
            }
            // Its memory stays until the replay is done.
            layer.prepare(rank, 10)?;
            graph.launch(&stream)?;
            drop(graph);
            layer.right(rank, 10)
        })?;
    }
    Ok(())
}

#[test]
fn a_replay_that_differs_from_the_peers_launch_is_told_to_both() -> Result<(), Error> {
    let ranks = Communicator::emulated(2)?;
    let told = Communicator::each(&ranks, |rank| {
        let mut layer = Layer::new(rank, &schedules::gather(Sender::Ctas(4)))?;
        let graph = layer.recorded(rank)?;
        let w = moving(rank)?;
        layer.prepare(rank, 0)?;
        let launched = match rank.rank() {
            0 => graph.launch(rank),
            _ => {
                let launch = layer.op.on(rank).tensor("x", &layer.x).tensor("w", &w);
                launch.tensor("y", &mut layer.y).rows(7).launch()
            }
        };
        let told = launched.and_then(|done| done.wait());
        Ok(told.expect_err("different rows").kind())
    });
    assert_eq!(told?, ["mismatch", "mismatch"]);
    Ok(())
}

#[test]
fn copies_by_copy_engine_are_not_recorded_and_the_reason_is_told() -> Result<(), Error> {
    let ranks = Communicator::emulated(2)?;
    Communicator::each(&ranks, |rank| {
        let mut layer = Layer::new(rank, &schedules::gather(Sender::CopyEngine))?;
        let error = layer.recorded(rank).expect_err("refused");
        assert_eq!(error.kind(), "not_yet", "{error}");
        assert!(
            error.to_string().contains("change with every launch"),
            "{error}"
        );
        // Nothing was recorded or enqueued, so launches go on.
        let w = moving(rank)?;
        layer.prepare(rank, 3)?;
        layer.launch(rank, &w)?.wait()?;
        layer.right(rank, 3)
    })?;
    Ok(())
}

#[test]
fn what_no_graph_can_hold_is_refused() -> Result<(), Error> {
    let ranks = Communicator::emulated(1)?;
    let rank = &ranks[0];
    let mut layer = Layer::new(rank, &schedules::gather(Sender::Ctas(4)))?;
    let graph = layer.recorded(rank)?;
    let told = |error: Error, words: &str| {
        assert_eq!(error.kind(), "usage", "{error}");
        assert!(error.to_string().contains(words), "{error}");
    };
    let empty = rank.capture(|s| {
        told(
            graph.launch(s).expect_err("nested"),
            "a graph launched in a graph",
        );
        // SAFETY: nothing is enqueued there.
        let records = unsafe { s.stream() };
        assert!(records.is_capturing());
        told(Event::record(records).expect_err("a point"), "an event");
        told(
            records.synchronize().expect_err("a wait"),
            "a wait of the host",
        );
        Ok(())
    })?;
    assert!(empty.is_empty());
    empty.launch(rank)?.wait()?;
    // An error of the closure ends the recording, too.
    let failed = rank.capture(|_| {
        Err(Error::Usage {
            what: "no more".into(),
            legal: "none".into(),
        })
    });
    told(failed.expect_err("failed"), "no more");
    layer.prepare(rank, 1)?;
    graph.launch(rank)?.wait()?;
    layer.right(rank, 1)
}

#[test]
fn replays_are_counted_and_timed_by_op() -> Result<(), Error> {
    let ranks = Communicator::emulated(2)?;
    Communicator::each(&ranks, |rank| {
        let mut layer = Layer::new(rank, &schedules::gather(Sender::Ctas(4)))?;
        let w = moving(rank)?;
        // Nothing is timed in the first graph.
        let untimed = layer.recorded(rank)?;
        rank.time_launches(true);
        let timed = layer.recorded(rank)?;
        rank.time_launches(false);
        layer.launch(rank, &w)?.wait()?;
        for graph in [&untimed, &timed, &timed] {
            graph.launch(rank)?.wait()?;
        }
        rank.barrier()?;
        let counts = rank.op_counts();
        let [of] = &counts[..] else {
            panic!("{counts:?}");
        };
        assert_eq!(
            (of.launches, of.recorded, of.replayed, of.timed),
            (1, 2, 3, 2)
        );
        // Of the launch and each replay.
        let rows = 4 * SIZE[0] as u64;
        // Half of the rows come from the peer.
        assert_eq!((of.rows, of.bytes), (rows, rows / 2 * SIZE[1] as u64 * 2));
        rank.barrier()
    })
    .map(drop)
}

/// All that a rank's own order takes becomes a graph, whoever enqueues it.
#[test]
fn work_in_a_ranks_own_order_is_recorded_and_replayed() -> Result<(), Error> {
    let ranks = Communicator::emulated(2)?;
    Communicator::each(&ranks, |rank| {
        let [m, side] = SIZE;
        let mut layer = Layer::new(rank, &schedules::gather(Sender::Ctas(4)))?;
        let (w, z) = (moving(rank)?, rank.zeros::<bf16>(SIZE)?);
        let (given, taken) = (rank.zeros::<bf16>(SIZE)?, rank.zeros::<bf16>(SIZE)?);
        layer.y.fill(0xff)?;
        let graph = rank.capture_own(|| {
            layer.x.fill(0)?;
            layer.x.copy_from(&given)?;
            layer.launch(rank, &w)?;
            z.copy_from(&layer.y)?;
            layer.x.copy_to(&taken)?;
            // What only the host does now is refused, and spoils nothing.
            for refused in [
                layer.y.read().map(drop),
                layer.x.read().map(drop),
                layer.y.write(&vec![bf16::ONE; m * side]),
                layer.x.write(&[bf16::ONE]),
                rank.synchronize(),
                rank.capture_own(|| Ok(())).map(drop),
            ] {
                let error = refused.expect_err("nothing runs");
                assert_eq!(error.kind(), "usage", "{error}");
            }
            Ok(())
        })?;
        assert_eq!(graph.len(), 1);
        assert!(layer.y.read()?.iter().all(|y| y.is_nan()), "nothing ran");
        let shard = rank.shard(rank.rank(), m);
        for round in 0..3 {
            let value = |at: usize| match shard.contains(&(at / side)) {
                true => number(round, at / side, at % side),
                false => bf16::ZERO,
            };
            given.write(&(0..m * side).map(value).collect::<Vec<_>>())?;
            rank.synchronize()?;
            rank.barrier()?;
            graph.launch(rank)?.wait()?;
            rank.barrier()?;
            let wanted = |at: usize| number(round, at / side, (at % side + 1) % side);
            for (at, z) in z.read()?.iter().enumerate() {
                assert_eq!(*z, wanted(at), "{at} in round {round}");
            }
            let all = |at: usize| number(round, at / side, at % side);
            assert!(
                taken
                    .read()?
                    .iter()
                    .enumerate()
                    .all(|(at, x)| *x == all(at))
            );
            rank.barrier()?;
        }
        // Other threads, and this one afterwards, do what they did before.
        layer.launch(rank, &w)?.wait()?;
        rank.barrier()
    })
    .map(drop)
}

/// A product of one rank, with a result that nothing has written.
fn product(rank: &Communicator) -> Result<(Op, Tensor<bf16>, Tensor<bf16>), Error> {
    let side = SIZE[1];
    let op = rank
        .op(&schedules::product((64, 64)))
        .up_to(side, side, side)
        .build()?;
    let y = rank.zeros([side, side])?;
    y.fill(0xff)?;
    Ok((op, moving(rank)?, y))
}

/// Rows of `w` times themselves.
fn is_made(y: &Tensor<bf16>) -> Result<bool, Error> {
    let side = SIZE[1];
    let wanted = |at: usize| f32::from(at / side == at % side);
    let y = y.read()?;
    Ok((0..side * side).all(|at| y[at].to_f32() == wanted(at)))
}

/// Launches and steps join the order that is recorded when they are made, wherever they were begun.
#[test]
fn a_launch_that_was_begun_before_a_recording_is_recorded_in_it() -> Result<(), Error> {
    let rank = &Communicator::emulated(1)?[0];
    let (op, w, mut y) = product(rank)?;
    let launch = op.on(rank).tensor("x", &w).tensor("w", &w);
    let launch = launch.tensor("y", &mut y);
    let (step, mut ran_in) = (rank.step(rank), None);
    let graph = rank.capture_own(|| {
        launch.launch()?;
        let work = |running: &Running<'_>| {
            ran_in = Some(running.stream().is_capturing());
            Ok(())
        };
        // SAFETY: nothing is enqueued.
        unsafe { step.launch(work) }.map(drop)
    })?;
    assert_eq!((graph.len(), ran_in), (1, Some(true)));
    assert!(y.read()?.iter().all(|y| y.is_nan()), "nothing ran");
    graph.launch(rank)?.wait()?;
    assert!(is_made(&y)?);
    Ok(())
}

#[test]
fn a_launch_on_the_ranks_own_stream_is_recorded_with_its_order() -> Result<(), Error> {
    let rank = &Communicator::emulated(1)?[0];
    let (op, w, mut y) = product(rank)?;
    let other = rank.capture(|_| Ok(()))?;
    let graph = rank.capture_own(|| {
        let launch = op.on(rank.stream()).tensor("x", &w).tensor("w", &w);
        launch.tensor("y", &mut y).launch()?;
        let error = other.launch(rank.stream()).expect_err("refused");
        assert_eq!(error.to_string(), "a graph launched in a graph");
        Ok(())
    })?;
    assert_eq!(graph.len(), 1);
    assert!(y.read()?.iter().all(|y| y.is_nan()), "nothing ran");
    graph.launch(rank)?.wait()?;
    assert!(is_made(&y)?);
    Ok(())
}

#[test]
fn a_launch_that_outlives_the_recording_it_was_begun_in_runs_in_the_ranks_order()
-> Result<(), Error> {
    let rank = &Communicator::emulated(1)?[0];
    let (op, w, mut y) = product(rank)?;
    let mut begun = None;
    let graph = rank.capture_own(|| {
        let launch = op.on(rank).tensor("x", &w).tensor("w", &w);
        begun = Some(launch.tensor("y", &mut y));
        Ok(())
    })?;
    assert!(graph.is_empty());
    begun.expect("a launch").launch()?.wait()?;
    assert!(is_made(&y)?);
    Ok(())
}
