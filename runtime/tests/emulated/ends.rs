//! How ranks learn that another one ended early, while their kernel waits for it.

use crate::{made, schedules};
use counterflow_codegen::plan::Plan;
use counterflow_codegen::program::TensorId;
use counterflow_codegen::shape::Shape;
use counterflow_codegen::verify::{Checked, Series};
use counterflow_codegen::warp::Pipeline;
use counterflow_runtime::gpus::Memory;
use counterflow_runtime::launch::{Loaded, Tensors};
use counterflow_runtime::{Communicator, Error, gpus};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// How long a rank may wait once another has ended. The time limit is far longer.
const TOLD: Duration = Duration::from_secs(1);

struct Case {
    pipeline: Checked<Pipeline>,
    series: Series,
    plan: Checked<Plan>,
}

fn case(m: u32) -> Case {
    let shape = Shape::new(m, 136, 72);
    let (pipeline, series) = made(&schedules::scatter(), 2, &shape);
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
            "rank 1 ended early: it does not launch scatter: ",
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
                Ends::Panics => panic!("on purpose"),
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
    let told = ranks[0].synchronize().expect_err("told").to_string();
    let wanted = "rank 1 ended early: it does not launch scatter: ";
    assert!(told.starts_with(wanted), "{told}");
    Ok(())
}
