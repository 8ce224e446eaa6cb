//! Graphs of launches, and memory that belongs to cudarc.

use crate::fine;
use crate::gpus::both_ways;
use crate::op::{Operands, SIZE, built, right};
use counterflow::prelude::bf16;
use counterflow::{Communicator, Error, Graph, Op, UserBuffer, schedules};
use cudarc::driver::sys;

/// A launch of so many rows, in a graph. The graph keeps what it uses: `w`, which nobody else has any more.
fn recorded(
    rank: &Communicator,
    op: &Op,
    x: &UserBuffer<bf16>,
    y: &mut counterflow::Tensor<bf16>,
    m: usize,
) -> Result<Graph, Error> {
    let w = Operands::moves(rank)?;
    rank.capture(|s| {
        let launch = op.on(s).tensor("x", x).tensor("w", &w).tensor("y", y);
        let recorded = launch.rows(m).launch()?;
        assert_eq!(recorded.wait().expect_err("nothing runs").kind(), "usage");
        Ok(())
    })
}

#[test]
fn replays_and_launches_take_turns() {
    const ROUNDS: usize = 2500;
    const ROWS: [usize; 2] = [SIZE[0], 640];
    for world in both_ways(2).chain(both_ways(4)) {
        fine(Communicator::each(&world.ranks, |rank| {
            let op = built(rank, &schedules::ag_gemm())?;
            let Operands { x, w, mut y } = Operands::new(rank)?;
            let graphs = [
                recorded(rank, &op, &x, &mut y, ROWS[0])?,
                recorded(rank, &op, &x, &mut y, ROWS[1])?,
            ];
            let stream = rank.gpu().stream()?;
            // Each graph moves the peers' rows by itself.
            for (graph, m) in graphs.iter().zip(ROWS) {
                x.write(&Operands::given(rank, m))?;
                y.fill(0xff)?;
                rank.synchronize()?;
                rank.barrier()?;
                graph.launch(&stream)?.wait()?;
                right(&y.read()?, m);
                rank.barrier()?;
            }
            // From here on rows that another M gives to another rank are there already, and peers push the same.
            x.write(Operands::all())?;
            rank.synchronize()?;
            rank.barrier()?;
            for round in 0..ROUNDS {
                let last = round % 500 == 499;
                if last {
                    y.fill(0xff)?;
                }
                graphs[0].launch(&stream)?;
                graphs[1].launch(rank)?;
                graphs[1].launch(&stream)?;
                let launch = op.on(&stream).tensor("x", &x).tensor("w", &w);
                launch.tensor("y", &mut y).rows(7 + round % 3).launch()?;
                let done = graphs[0].launch(&stream)?;
                if last {
                    done.wait()?;
                    right(&y.read()?, SIZE[0]);
                } else if round % 50 == 0 {
                    done.wait()?;
                }
            }
            drop(graphs);
            rank.synchronize()?;
            rank.barrier()
        }));
        let replays = ROUNDS * 4;
        println!("  {replays} replays between launches: {}", world.told());
    }
}

#[test]
fn a_replay_is_compared_with_what_the_peers_launch() {
    for world in both_ways(2) {
        let told = Communicator::each(&world.ranks, |rank| {
            let op = built(rank, &schedules::ag_gemm())?;
            let Operands { x, w, mut y } = Operands::new(rank)?;
            let graph = recorded(rank, &op, &x, &mut y, 640)?;
            rank.synchronize()?;
            rank.barrier()?;
            let launch = op
                .on(rank)
                .tensor("x", &x)
                .tensor("w", &w)
                .tensor("y", &mut y);
            let launched = match rank.rank() {
                0 => graph.launch(rank),
                _ => launch.rows(7).launch(),
            };
            let told = launched
                .and_then(|done| done.wait())
                .expect_err("different rows");
            Ok((told.kind(), told.to_string()))
        });
        for (kind, text) in fine(told) {
            assert_eq!(kind, "mismatch", "{text}");
            assert!(text.contains("640") && text.contains('7'), "{text}");
        }
        println!("  a replay is compared: {}", world.told());
    }
}

/// Each slice is another stream's, nothing waits on the host, and `w` is dropped at once.
#[test]
fn slices_of_cudarc_are_used_in_order_and_may_be_dropped_at_once() {
    for world in both_ways(2) {
        fine(Communicator::each(&world.ranks, |rank| {
            let op = built(rank, &schedules::ag_gemm())?;
            let Operands { x, .. } = Operands::new(rank)?;
            x.write(Operands::all())?;
            let [m, side] = SIZE;
            let context = rank.gpu().cuda()?.context().clone();
            // Where ranks share a GPU, the driver may put a stream's first work behind a peer's wait.
            let stream = || {
                let stream = context.new_stream().expect("a stream");
                stream.alloc_zeros::<u8>(1).expect("memory");
                stream.synchronize().expect("done");
                stream
            };
            let (makes, takes, launches) = (stream(), stream(), stream());
            let mut y = takes.alloc_zeros::<bf16>(m * side).expect("memory");
            // A GPU's pool may grow only when nothing runs there: a peer that waits would run for ever.
            let pool = (0..4).map(|_| makes.alloc_zeros::<bf16>(side * side).expect("memory"));
            let pool: Vec<_> = pool.collect();
            rank.barrier()?;
            drop(pool);
            rank.synchronize()?;
            makes.synchronize().expect("done");
            rank.barrier()?;
            for _ in 0..100 {
                takes.memset_zeros(&mut y).expect("zeroed");
                let w = makes.clone_htod(&Operands::moving()).expect("memory");
                let launch = op.on(&launches).tensor("x", &x).tensor("w", &w);
                launch.tensor("y", &mut y).launch()?;
                drop(w);
                // Whoever gets its memory may write it.
                let spoiled = makes.alloc_zeros::<bf16>(side * side).expect("memory");
                // While a copy to pageable memory waits, a peer that shares the GPU can make no event.
                takes.synchronize().expect("done");
                right(&takes.clone_dtoh(&y).expect("read"), m);
                drop(spoiled);
            }
            // A graph could not keep it.
            let w = makes.clone_htod(&Operands::moving()).expect("memory");
            let refused = rank.capture(|s| {
                let launch = op.on(s).tensor("x", &x).tensor("w", &w);
                launch.tensor("y", &mut y).launch().map(drop)
            });
            assert_eq!(refused.expect_err("borrowed").kind(), "usage");
            rank.synchronize()?;
            rank.barrier()
        }));
        println!("  slices of cudarc: {}", world.told());
    }
}

/// The launch would become part of a graph that does not keep it.
#[test]
fn a_slice_whose_stream_records_is_refused() {
    for world in both_ways(1) {
        let rank = &world.ranks[0];
        let op = fine(built(rank, &schedules::ag_gemm()));
        let Operands { x, mut y, .. } = fine(Operands::new(rank));
        fine(x.write(Operands::all()));
        let context = fine(rank.gpu().cuda()).context().clone();
        let (owns, launches) = [(); 2]
            .map(|()| context.new_stream().expect("a stream"))
            .into();
        let w = owns.clone_htod(&Operands::moving()).expect("memory");
        let launch = |y: &mut counterflow::Tensor<bf16>| {
            let launch = op.on(&launches).tensor("x", &x).tensor("w", &w);
            launch.tensor("y", y).launch()
        };
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
        owns.begin_capture(mode).expect("recording");
        let told = launch(&mut y).expect_err("it records");
        assert_eq!(told.kind(), "usage");
        assert_eq!(told.to_string(), "the stream of w records a graph");
        let flags = sys::CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
        let recorded = owns
            .end_capture(flags)
            .expect("nothing spoiled the recording");
        drop(recorded);
        fine(launch(&mut y).and_then(|done| done.wait()));
        right(&fine(y.read()), SIZE[0]);
        println!("  a slice whose stream records: {}", world.told());
    }
}

/// Each replay is timed by events in the graph, of launches that were recorded while that was on.
#[test]
fn replays_are_counted_and_timed_by_op() {
    const REPLAYS: u64 = 20;
    for world in both_ways(2) {
        fine(Communicator::each(&world.ranks, |rank| {
            let op = built(rank, &schedules::ag_gemm())?;
            let Operands { x, mut y, .. } = Operands::new(rank)?;
            let untimed = recorded(rank, &op, &x, &mut y, SIZE[0])?;
            rank.time_launches(true);
            let timed = recorded(rank, &op, &x, &mut y, SIZE[0])?;
            rank.synchronize()?;
            rank.barrier()?;
            for _ in 0..REPLAYS {
                untimed.launch(rank)?;
                timed.launch(rank)?.wait()?;
            }
            let counts = rank.op_counts();
            assert_eq!(counts.len(), 1, "{counts:?}");
            let of = &counts[0];
            assert_eq!(
                (of.launches, of.recorded, of.replayed, of.timed),
                (0, 2, 2 * REPLAYS, REPLAYS)
            );
            let each = of.gpu_time / u32::try_from(REPLAYS).expect("few");
            // A kernel that nothing holds up takes microseconds.
            assert!(!of.gpu_time.is_zero(), "{of:?}");
            if rank.rank() == 0 {
                println!("  a replayed launch takes {each:?} on the GPU");
            }
            rank.barrier()
        }));
        println!("  replays are counted: {}", world.told());
    }
}
