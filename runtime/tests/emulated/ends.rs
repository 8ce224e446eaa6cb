//! How ranks learn that another one ended early, while their kernel waits for it.

use crate::{made, schedules};
use counterflow_codegen::plan::Plan;
use counterflow_codegen::program::{Program, TensorId};
use counterflow_codegen::shape::Shape;
use counterflow_codegen::verify::{Checked, Series};
use counterflow_codegen::warp::Pipeline;
use counterflow_runtime::driver::Local;
use counterflow_runtime::gpus::Memory;
use counterflow_runtime::launch::{Loaded, Tensors};
use counterflow_runtime::{Communicator, Error, gpus};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// How long a rank may wait once another has ended. The time limit is far longer.
const TOLD: Duration = Duration::from_secs(1);

struct Case {
    pipeline: Checked<Pipeline>,
    series: Series,
    plan: Checked<Plan>,
}

fn case(m: u32) -> Case {
    case_of(&schedules::scatter("scatter"), m)
}

fn case_of(program: &Program, m: u32) -> Case {
    let shape = Shape::new(m, 136, 72);
    let (pipeline, series) = made(program, 2, &shape);
    let plan = series.plan(&shape).expect("a plan");
    Case {
        pipeline,
        series,
        plan,
    }
}

type Ready = (Loaded, Vec<Memory>, Tensors);

/// The kernel and its tensors. Collective.
fn ready(rank: &Communicator, case: &Case) -> Result<Ready, Error> {
    rank.reserve(8 << 20)?;
    let kernel = &case.pipeline.kernel;
    let loaded = Loaded::load(rank, None, &case.pipeline, &case.series)?;
    let (mut memory, mut tensors) = (Vec::new(), Tensors::new());
    for (index, buffer) in kernel.buffers.iter().enumerate() {
        let id = TensorId(index as u16);
        let (bytes, in_heap) = Loaded::needs(kernel, &case.plan, id);
        let place = Memory::new(rank, &buffer.name, bytes, in_heap)?;
        place.hold(id, bytes, &mut tensors);
        memory.push(place);
    }
    rank.synchronize()?;
    rank.barrier()?;
    Ok((loaded, memory, tensors))
}

/// How rank 1 ends.
#[derive(Clone, Copy, Debug)]
enum Ends {
    Fails,
    Panics,
    Refuses,
    Aborts,
}

#[test]
fn a_rank_that_ends_early_is_told_to_a_peer_whose_kernel_waits_for_it() -> Result<(), Error> {
    let all = [
        (Ends::Fails, "rank 1 ended early: no rows"),
        (Ends::Panics, "rank 1 ended early: it panicked: on purpose"),
        (
            Ends::Refuses,
            "rank 1 ended early: its part of `each` ended (it was refused scatter: ",
        ),
        (Ends::Aborts, "rank 1 ended the communicator: cancelled"),
    ];
    let (case, other) = (case(300), case(500));
    for (ends, wanted) in all {
        let ranks = Communicator::emulated(2)?;
        let (start, got) = (Mutex::new(None), Mutex::new(None));
        let each = |rank: &Communicator| {
            let (loaded, _memory, tensors) = ready(rank, &case)?;
            let words = rank.allocate::<u32>("words", [4])?;
            rank.barrier()?;
            if rank.rank() == 0 {
                loaded.launch(rank, &case.plan, &tensors)?;
                let error = rank.synchronize().expect_err("told");
                let read = words.read().expect_err("nothing is given out");
                assert_eq!(read.to_string(), error.to_string());
                *got.lock().expect("whole") = Some((error, Instant::now()));
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(50));
            *start.lock().expect("whole") = Some(Instant::now());
            match ends {
                Ends::Fails => Err(Error::Wrong {
                    what: "no rows".into(),
                    help: "give some".into(),
                }),
                // Without a backtrace, which takes its time.
                Ends::Panics => resume_unwind(Box::new("on purpose")),
                Ends::Refuses => {
                    let refused = loaded.launch(rank, &other.plan, &tensors);
                    assert_eq!(refused.expect_err("another series").kind(), "rejected");
                    Ok(())
                }
                Ends::Aborts => {
                    rank.abort("cancelled");
                    Ok(())
                }
            }
        };
        let ended = catch_unwind(AssertUnwindSafe(|| Communicator::each(&ranks, each)));
        assert_eq!(ended.is_err(), matches!(ends, Ends::Panics));
        if let (Ends::Fails, Ok(ended)) = (ends, ended) {
            // The cause, and not what rank 0 was told.
            assert_eq!(ended.expect_err("failed").kind(), "wrong");
        }
        let (error, at) = got.into_inner().expect("whole").expect("told");
        let start = start.into_inner().expect("whole").expect("ended");
        assert_eq!(error.kind(), "aborted", "{error}");
        assert!(error.to_string().starts_with(wanted), "{error}");
        let took = at.saturating_duration_since(start);
        assert!(took < TOLD, "{ends:?}: {took:?}");
        for rank in &ranks {
            let later = rank.barrier().expect_err("dead");
            assert_eq!(later.to_string(), error.to_string());
        }
    }
    Ok(())
}

/// What rank 0 does of which it waits for rank 1, whose part has ended.
#[derive(Clone, Copy, Debug)]
enum Waits {
    InAKernel,
    InACall,
    /// It launches once the other's part has ended.
    Later,
}

#[test]
fn a_rank_that_is_done_is_told_to_who_waits_for_it_and_to_nobody_else() -> Result<(), Error> {
    let case = case(300);
    let all = [
        (Waits::InAKernel, " after 0 launches, and rank 0 has made 1"),
        (Waits::InACall, " while rank 0 is at a barrier"),
        (Waits::Later, " after 0 launches, and rank 0 has made 1"),
    ];
    for (waits, wanted) in all {
        let ranks = Communicator::emulated(2)?;
        let start = Mutex::new(None);
        let told = Communicator::each(&ranks, |rank| {
            let (loaded, _memory, tensors) = ready(rank, &case)?;
            rank.barrier()?;
            if rank.rank() == 1 {
                std::thread::sleep(Duration::from_millis(50));
                *start.lock().expect("whole") = Some(Instant::now());
                return Ok(None);
            }
            let told = match waits {
                Waits::InAKernel => loaded.launch(rank, &case.plan, &tensors),
                Waits::InACall => rank.barrier(),
                Waits::Later => {
                    std::thread::sleep(Duration::from_millis(100));
                    loaded.launch(rank, &case.plan, &tensors)
                }
            };
            let told = told.and_then(|()| rank.synchronize()).expect_err("told");
            Ok(Some((told, Instant::now())))
        })?;
        let (error, at) = told.into_iter().flatten().next().expect("rank 0");
        let text = error.to_string();
        assert_eq!(error.kind(), "aborted", "{waits:?}: {text}");
        let ended = "rank 1 ended early: its part of `each` ended";
        assert!(text.starts_with(ended), "{waits:?}: {text}");
        assert!(text.ends_with(wanted), "{waits:?}: {text}");
        let start = start.into_inner().expect("whole").expect("ended");
        assert!(at.saturating_duration_since(start) < TOLD, "{waits:?}");
    }
    Ok(())
}

#[test]
fn parts_that_end_at_other_times_and_wait_for_nobody_end_nothing() -> Result<(), Error> {
    let ranks = Communicator::emulated(3)?;
    for round in 0..3 {
        let done = Communicator::each(&ranks, |rank| {
            let mine = rank.zeros::<u32>([4, 4])?;
            std::thread::sleep(Duration::from_millis(30) * ((rank.rank() + round) % 3));
            mine.fill(7)?;
            assert_eq!(mine.read()?, [0x0707_0707; 16]);
            rank.synchronize()?;
            Ok(rank.rank())
        })?;
        assert_eq!(done, [0, 1, 2]);
        // All are there again.
        Communicator::each(&ranks, Communicator::barrier)?;
    }
    Ok(())
}

#[test]
fn a_communicator_that_is_dropped_ends_the_wait_of_a_peers_kernel() -> Result<(), Error> {
    let case = case(300);
    let mut ranks = Communicator::emulated(2)?;
    let ready = Communicator::each(&ranks, |rank| ready(rank, &case))?;
    let gone = ranks.pop();
    let (loaded, _, tensors) = &ready[0];
    loaded.launch(&ranks[0], &case.plan, tensors)?;
    let start = Instant::now();
    drop(gone);
    let told = ranks[0].synchronize().expect_err("told").to_string();
    assert_eq!(
        told,
        "rank 1 ended early: its communicator was dropped after 0 launches, and rank 0 has made 1"
    );
    assert!(start.elapsed() < TOLD);
    // Another one works.
    let ranks = Communicator::emulated(2)?;
    let launches = vec![&case.plan];
    let run = gpus::run(&ranks, None, &case.pipeline, &case.series, launches, 3)?;
    let compared = run.run.compare(0)?.expect("a reference");
    assert!(compared.elements > 0);
    Ok(())
}

#[test]
fn a_kernel_is_launched_only_on_the_rank_that_loaded_it() -> Result<(), Error> {
    let case = case(300);
    let ranks = Communicator::emulated(2)?;
    let ready = Communicator::each(&ranks, |rank| ready(rank, &case))?;
    let ((loaded, ..), (_, _, tensors)) = (&ready[0], &ready[1]);
    let refused = loaded.launch(&ranks[1], &case.plan, tensors);
    let error = refused.expect_err("rank 0 loaded it");
    assert_eq!(error.kind(), "usage", "{error}");
    // Nothing was enqueued, so nothing ends.
    let own = [loaded, &ready[1].0];
    for ((rank, loaded), (.., tensors)) in ranks.iter().zip(own).zip(&ready) {
        loaded.launch(rank, &case.plan, tensors)?;
    }
    ranks.iter().try_for_each(Communicator::synchronize)
}

/// A product computes on each rank by itself, so a rank may launch it more often than one that is gone.
#[test]
fn launches_for_which_no_peer_waits_end_nothing() -> Result<(), Error> {
    let (alone, together) = (case_of(&schedules::product((128, 128)), 300), case(300));
    let mut ranks = Communicator::emulated(2)?;
    let ready = Communicator::each(&ranks, |rank| {
        let made = (ready(rank, &alone)?, ready(rank, &together)?);
        let (loaded, _, tensors) = &made.1;
        loaded.launch(rank, &together.plan, tensors)?;
        rank.synchronize()?;
        rank.barrier()?;
        Ok(made)
    })?;
    let ((product, _, operands), (scatter, _, tensors)) = &ready[0];
    product.launch(&ranks[0], &alone.plan, operands)?;
    drop(ranks.pop());
    product.launch(&ranks[0], &alone.plan, operands)?;
    ranks[0].synchronize()?;
    // A launch that waits for the rank that is gone is refused.
    let refused = scatter.launch(&ranks[0], &together.plan, tensors);
    assert_eq!(
        refused.expect_err("rank 1 is gone").to_string(),
        "rank 1 ended early: its communicator was dropped after 1 launches, and rank 0 has made 2"
    );
    Ok(())
}

#[test]
fn what_a_launch_is_given_keeps_the_memory() -> Result<(), Error> {
    let case = case(300);
    let ranks = Communicator::emulated(2)?;
    Communicator::each(&ranks, |rank| {
        let (loaded, memory, tensors) = ready(rank, &case)?;
        drop(memory);
        loaded.launch(rank, &case.plan, &tensors)?;
        // Freed memory of an emulated GPU is nobody's again, and an access to it ends the machine.
        drop(tensors);
        rank.synchronize()?;
        rank.barrier()
    })?;
    Ok(())
}

/// Memory that is freed in the order of another stream may be gone when a launch begins.
#[test]
fn memory_of_another_stream_is_no_tensor_of_a_launch() -> Result<(), Error> {
    let case = case_of(&schedules::product((128, 128)), 300);
    let ranks = Communicator::emulated(2)?;
    Communicator::each(&ranks, |rank| {
        let (loaded, _memory, mut tensors) = ready(rank, &case)?;
        let stream = rank.gpu().stream()?;
        let (bytes, _) = Loaded::needs(&case.pipeline.kernel, &case.plan, TensorId(0));
        let aside = Arc::new(Local::<u8>::zeros(&stream, bytes as usize)?);
        tensors.own(TensorId(0), &aside, bytes);
        let refused = loaded.launch(rank, &case.plan, &tensors);
        let error = refused.expect_err("another stream's");
        assert_eq!(error.to_string(), "x is in memory of another stream");
        // No peer waits for it, so it ends nothing.
        rank.synchronize()?;
        rank.barrier()
    })?;
    Ok(())
}
