//! Launches in graphs that the program captures in a stream of its own, as inference engines do, and replays itself.

use crate::fine;
use crate::gpus::{both_ways, loopback};
use crate::op::{Operands, SIZE, built, right};
use counterflow::driver::Stream;
use counterflow::prelude::bf16;
use counterflow::{Communicator, Error, Op, Tensor, UserBuffer, schedules};
use cudarc::driver::{CudaGraph, CudaStream, sys};
use std::sync::{Arc, Barrier, Mutex, PoisonError};
use std::time::{Duration, Instant};

pub const MODES: [sys::CUstreamCaptureMode; 3] = [
    sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL,
    sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
    sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED,
];

/// A stream of the program's that has done something: where ranks share a GPU, the driver may put a stream's first work
/// behind a peer's wait.
pub fn stream(rank: &Communicator) -> Result<Arc<CudaStream>, Error> {
    let stream = rank.gpu().cuda()?.context().new_stream().expect("a stream");
    stream.alloc_zeros::<u8>(1).expect("memory");
    stream.synchronize().expect("done");
    Ok(stream)
}

/// What `record` enqueues, captured. One rank at a time: a strict capture forbids others what they need to make a graph ready.
pub fn captured(
    stream: &Arc<CudaStream>,
    mode: sys::CUstreamCaptureMode,
    record: impl FnOnce() -> Result<(), Error>,
) -> Result<CudaGraph, Error> {
    static ONE: Mutex<()> = Mutex::new(());
    let one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    stream.begin_capture(mode).expect("recording");
    let recorded = record();
    let flags = sys::CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
    let graph = stream.end_capture(flags);
    recorded?;
    let graph = graph.expect("nothing spoiled the capture");
    let graph = graph.expect("a graph");
    // Where ranks share a GPU, its memory may grow only when nothing runs there.
    graph.upload().expect("uploaded");
    stream.synchronize().expect("done");
    drop(one);
    Ok(graph)
}

pub fn replay(graph: &CudaGraph) {
    graph.launch().expect("a replay");
}

/// A launch of so many rows on that stream.
fn launch(
    op: &Op,
    on: &Arc<CudaStream>,
    (x, w, y): (&UserBuffer<bf16>, &Tensor<bf16>, &mut Tensor<bf16>),
    rows: usize,
) -> Result<(), Error> {
    let launch = op.on(on).tensor("x", x).tensor("w", w).tensor("y", y);
    let recorded = launch.rows(rows).launch()?;
    if Stream::from(on.clone()).is_capturing() {
        assert_eq!(recorded.wait().expect_err("nothing runs").kind(), "usage");
    }
    Ok(())
}

#[test]
fn ten_thousand_replays_of_a_graph_that_the_program_captured_between_launches() {
    const ROUNDS: usize = 3400;
    const ROWS: [usize; 3] = [SIZE[0], 640, 7];
    for world in both_ways(2).chain(both_ways(4)) {
        let start = Instant::now();
        fine(Communicator::each(&world.ranks, |rank| {
            let op = built(rank, &schedules::ag_gemm())?;
            let Operands { x, w, mut y } = Operands::new(rank)?;
            let stream = stream(rank)?;
            rank.synchronize()?;
            rank.barrier()?;
            // While others ask how far their GPUs are.
            let mut graphs = Vec::new();
            for (rows, mode) in ROWS.into_iter().zip(MODES) {
                let record = || launch(&op, &stream, (&x, &w, &mut y), rows);
                graphs.push(captured(&stream, mode, record)?);
                rank.synchronize()?;
            }
            // Two launches in one graph. The first one gathers all rows: what the second one pushes, peers have.
            let record = || {
                launch(&op, &stream, (&x, &w, &mut y), SIZE[0])?;
                launch(&op, &stream, (&x, &w, &mut y), 640)
            };
            graphs.push(captured(&stream, MODES[1], record)?);
            rank.barrier()?;
            // Each moves the peers' rows by itself.
            for (graph, rows) in graphs.iter().zip(ROWS.into_iter().chain([SIZE[0]])) {
                x.write(&Operands::given(rank, rows))?;
                y.fill(0xff)?;
                rank.synchronize()?;
                rank.barrier()?;
                replay(graph);
                rank.synchronize()?;
                right(&y.read()?, rows);
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
                replay(&graphs[round % 3]);
                launch(&op, &stream, (&x, &w, &mut y), 7 + round % 300)?;
                replay(&graphs[2]);
                // In the order of the rank alone.
                let own = op.on(rank).tensor("x", &x).tensor("w", &w);
                own.tensor("y", &mut y).rows(1 + round % 1000).launch()?;
                replay(&graphs[if last { 3 } else { 0 }]);
                if last {
                    right(&y.read()?, SIZE[0]);
                } else if round % 50 == 0 {
                    stream.synchronize().expect("done");
                }
            }
            rank.synchronize()?;
            rank.barrier()
        }));
        println!(
            "  {} replays of captured graphs between {} launches in {:.1} s: {}",
            ROUNDS * 3,
            ROUNDS * 2,
            start.elapsed().as_secs_f64(),
            world.told()
        );
    }
}

/// What both ranks are told of that, within a second after both began.
fn told(
    act: impl Fn(
        &Communicator,
        [&CudaGraph; 2],
        &mut dyn FnMut() -> Result<(), Error>,
    ) -> Result<(), Error>
    + Sync,
) -> Vec<String> {
    let mut all = Vec::new();
    for world in both_ways(2) {
        let met = Barrier::new(2);
        let told = Communicator::each(&world.ranks, |rank| {
            let op = built(rank, &schedules::ag_gemm())?;
            let Operands { x, w, mut y } = Operands::new(rank)?;
            let stream = stream(rank)?;
            rank.synchronize()?;
            rank.barrier()?;
            let record = |rows, y: &mut Tensor<bf16>| {
                let record = || launch(&op, &stream, (&x, &w, y), rows);
                captured(&stream, MODES[2], record)
            };
            let graphs = [record(SIZE[0], &mut y)?, record(640, &mut y)?];
            rank.barrier()?;
            for graph in &graphs {
                replay(graph);
                launch(&op, &stream, (&x, &w, &mut y), 7)?;
            }
            rank.synchronize()?;
            met.wait();
            let start = Instant::now();
            let mut eager = || launch(&op, &stream, (&x, &w, &mut y), 7);
            let told = act(rank, [&graphs[0], &graphs[1]], &mut eager);
            let told = told
                .and_then(|()| rank.synchronize())
                .expect_err("they differ");
            let took = start.elapsed();
            println!("  {told}, after {took:?}");
            assert_eq!(told.kind(), "mismatch", "{told}");
            assert!(took < Duration::from_secs(1), "{told}: {took:?}");
            // Nobody leaves before all were told.
            met.wait();
            Ok(told.to_string())
        });
        all.extend(fine(told));
    }
    all
}

#[test]
fn replays_of_two_graphs_are_a_mismatch_and_no_hang() {
    let both = told(|rank, graphs, _| {
        replay(graphs[rank.rank() as usize]);
        Ok(())
    });
    for text in both {
        assert!(
            text.contains("of 1024 rows") && text.contains("of 640 rows"),
            "{text}"
        );
    }
}

#[test]
fn replays_and_launches_in_two_orders_are_a_mismatch_and_no_hang() {
    let both = told(|rank, [graph, _], eager| {
        if rank.rank() == 0 {
            replay(graph);
            return eager();
        }
        eager()?;
        replay(graph);
        Ok(())
    });
    for text in both {
        assert!(
            text.contains("of 1024 rows") && text.contains("of 7 rows"),
            "{text}"
        );
    }
}

#[test]
fn a_captured_graph_keeps_what_its_launches_use_and_gives_it_back() {
    for world in both_ways(2) {
        fine(Communicator::each(&world.ranks, |rank| {
            let before = rank.heap_use().used;
            let stream = stream(rank)?;
            let mut y = rank.zeros([SIZE[0], SIZE[1]])?;
            let graph = {
                let op = built(rank, &schedules::ag_gemm())?;
                let Operands { x, w, .. } = Operands::new(rank)?;
                x.write(Operands::all())?;
                rank.synchronize()?;
                rank.barrier()?;
                let record = || launch(&op, &stream, (&x, &w, &mut y), SIZE[0]);
                captured(&stream, MODES[0], record)?
            };
            rank.barrier()?;
            // Whoever gets memory that was dropped may write it.
            let spoiled = (0..8).map(|_| {
                let spoiled = rank.zeros::<bf16>([SIZE[1], SIZE[1]])?;
                spoiled.fill(0x7f).map(|()| spoiled)
            });
            let spoiled = spoiled.collect::<Result<Vec<_>, _>>()?;
            rank.synchronize()?;
            rank.barrier()?;
            for _ in 0..100 {
                replay(&graph);
            }
            y.fill(0xff)?;
            replay(&graph);
            // Replays still run, and the graph goes first.
            drop(graph);
            right(&y.read()?, SIZE[0]);
            drop(spoiled);
            rank.barrier()?;
            // What it kept is free again soon, for an allocation of all ranks at the latest.
            let start = Instant::now();
            while rank.heap_use().used > before && start.elapsed() < Duration::from_secs(5) {
                drop(rank.zeros::<u8>([1, 1])?);
                std::thread::sleep(Duration::from_millis(5));
            }
            assert_eq!(rank.heap_use().used, before);
            rank.barrier()
        }));
        println!("  a captured graph keeps and gives back: {}", world.told());
    }
}

/// Two streams of one capture: whatever the program's order of them is, a rank's launches come one after another.
#[test]
fn launches_in_two_streams_of_one_capture_come_one_after_another() {
    for world in both_ways(2) {
        fine(Communicator::each(&world.ranks, |rank| {
            let op = built(rank, &schedules::ag_gemm())?;
            let Operands { x, w, mut y } = Operands::new(rank)?;
            let mut other = rank.zeros([SIZE[0], SIZE[1]])?;
            x.write(Operands::all())?;
            let (stream, beside) = (stream(rank)?, stream(rank)?);
            rank.synchronize()?;
            rank.barrier()?;
            let record = || {
                let forked = stream.record_event(None).expect("an event");
                beside.wait(&forked).expect("forked");
                launch(&op, &stream, (&x, &w, &mut y), SIZE[0])?;
                launch(&op, &beside, (&x, &w, &mut other), 640)?;
                let joined = beside.record_event(None).expect("an event");
                stream.wait(&joined).expect("joined");
                Ok(())
            };
            let graph = captured(&stream, MODES[2], record)?;
            y.fill(0xff)?;
            other.fill(0xff)?;
            rank.synchronize()?;
            rank.barrier()?;
            for _ in 0..200 {
                replay(&graph);
            }
            right(&y.read()?, SIZE[0]);
            right(&other.read()?, 640);
            rank.barrier()
        }));
        println!("  two streams of one capture: {}", world.told());
    }
}

/// The host's time of a launch where nothing was captured, and where something was.
#[test]
fn what_a_launch_costs_the_host_is_told() {
    for world in both_ways(2) {
        fine(Communicator::each(&world.ranks, |rank| {
            let op = built(rank, &schedules::ag_gemm())?;
            let Operands { x, w, mut y } = Operands::new(rank)?;
            let stream = stream(rank)?;
            rank.synchronize()?;
            rank.barrier()?;
            let tell = |what: &str, y: &mut Tensor<bf16>| -> Result<(), Error> {
                let mut times = Vec::new();
                for _ in 0..400 {
                    let start = Instant::now();
                    launch(&op, &stream, (&x, &w, y), SIZE[0])?;
                    times.push(start.elapsed());
                    rank.synchronize()?;
                }
                times.sort();
                let at = |part: usize| times[times.len() * part / 10];
                if rank.rank() == 0 {
                    println!("  {what}: median {:?}, p90 {:?} of the host", at(5), at(9));
                }
                rank.barrier()
            };
            tell("a launch", &mut y)?;
            let record = || launch(&op, &stream, (&x, &w, &mut y), SIZE[0]);
            let graph = captured(&stream, MODES[2], record)?;
            rank.barrier()?;
            tell("a launch after a capture", &mut y)?;
            let start = Instant::now();
            for _ in 0..200 {
                replay(&graph);
            }
            rank.synchronize()?;
            if rank.rank() == 0 {
                println!("  a replay: {:?} in all", start.elapsed() / 200);
            }
            rank.barrier()
        }));
        println!("  costs: {}", world.told());
    }
}

/// A world of one needs no peers, and a capture no more than events.
#[test]
fn a_rank_alone_is_captured() {
    let Some(world) = loopback(1) else { return };
    let rank = &world.ranks[0];
    let op = fine(built(rank, &schedules::ag_gemm()));
    let Operands { x, w, mut y } = fine(Operands::new(rank));
    fine(x.write(Operands::all()));
    let stream = fine(stream(rank));
    let graph = fine(captured(&stream, MODES[0], || {
        launch(&op, &stream, (&x, &w, &mut y), SIZE[0])
    }));
    fine(y.fill(0xff));
    replay(&graph);
    right(&fine(y.read()), SIZE[0]);
}

/// Launches of no rows wait for nobody, so a rank may be ahead of the others by any number of them.
#[test]
fn a_replay_that_differed_long_ago_is_a_mismatch_and_no_hang() {
    const MANY: usize = 500;
    for world in both_ways(2) {
        let met = Barrier::new(2);
        let told = Communicator::each(&world.ranks, |rank| {
            let ops = [(); 2].map(|()| built(rank, &schedules::ag_gemm()));
            let stream = stream(rank)?;
            rank.synchronize()?;
            rank.barrier()?;
            let mut graphs = Vec::new();
            for op in ops {
                let op = op?;
                let record = || op.on(&stream).rows(0).launch().map(drop);
                graphs.push(captured(&stream, MODES[2], record)?);
            }
            rank.barrier()?;
            if rank.rank() == 1 {
                met.wait();
            }
            for at in 0..MANY {
                replay(&graphs[usize::from(rank.rank() == 1 && at == MANY / 4)]);
            }
            stream.synchronize().expect("nothing waits");
            if rank.rank() == 0 {
                met.wait();
            }
            let start = Instant::now();
            let told = loop {
                if let Err(told) = rank.synchronize() {
                    break told;
                }
                assert!(start.elapsed() < Duration::from_secs(2), "they differ");
            };
            met.wait();
            Ok(told)
        });
        for told in fine(told) {
            assert_eq!(told.kind(), "mismatch", "{told}");
            let before = format!("the ranks differ at or before launch {}", MANY - 64);
            assert!(told.to_string().starts_with(&before), "{told}");
        }
        println!("  a replay that differed long ago: {}", world.told());
    }
}

/// Another library's thread captures in the mode that forbids most to all threads. It forbids a rank nothing, and the capture goes on.
#[test]
fn a_rank_waits_and_moves_bytes_while_another_thread_captures_in_the_strictest_mode() {
    const LEN: usize = 1 << 20;
    for world in [1, 2].into_iter().filter_map(loopback) {
        let rank = &world.ranks[0];
        let stream = fine(stream(rank));
        let [begun, done] = [Barrier::new(2), Barrier::new(2)];
        let (graph, moved) = std::thread::scope(|scope| {
            let captures = scope.spawn(|| {
                rank.gpu().cuda().and_then(|gpu| gpu.bind()).expect("a GPU");
                stream.begin_capture(MODES[0]).expect("recording");
                begun.wait();
                done.wait();
                let flags =
                    sys::CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
                stream.end_capture(flags).map(drop)
            });
            begun.wait();
            let moves = || -> Result<Vec<f32>, Error> {
                let tensor = rank.zeros::<f32>([LEN])?;
                tensor.write(&vec![1.5; LEN])?;
                rank.synchronize()?;
                tensor.read()
            };
            let moved = moves();
            done.wait();
            (captures.join().expect("no panic"), moved)
        });
        assert!(fine(moved) == vec![1.5; LEN]);
        graph.expect("nothing spoiled the capture");
    }
}
