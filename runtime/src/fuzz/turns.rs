//! Two communicators on the same emulated GPUs, whose kernels do not fit there together.

use crate::communicator::Communicator;
use crate::emulated::{Gpu, Machine};
use crate::error::Error;
use crate::gpus::Memory;
use crate::launch::{Loaded, Tensors};
use crate::schedules::{Sender, gather};
use crate::undo::{self, Fix};
use counterflow_codegen::lower::lower;
use counterflow_codegen::plan::Plan;
use counterflow_codegen::program::TensorId;
use counterflow_codegen::shape::Shape;
use counterflow_codegen::variant::Variant;
use counterflow_codegen::verify::{self, Checked, Series};
use counterflow_codegen::warp::Pipeline;
use counterflow_timeline::model;
use std::time::Duration;

/// More than half of a GPU's SMs.
const CTAS: u32 = 70;

fn built() -> (Checked<Pipeline>, Series, Checked<Plan>) {
    let kernel = lower(&gather(Sender::Ctas(CTAS)), &Variant::new(2)).and_then(verify::kernel);
    let kernel = kernel.expect("a kernel");
    let shape = Shape::new(12, 8, 8);
    let series = verify::series(&kernel, &shape, &model::Machine::h200()).expect("a series");
    let plan = series.plan(&shape).expect("a plan");
    (verify::warps(&kernel).expect("warps"), series, plan)
}

/// Launches of two communicators, on each rank in the order that `which` says, and how that ends on each rank of both.
fn launched(
    (pipeline, series, plan): &(Checked<Pipeline>, Series, Checked<Plan>),
    (seed, limit): (u64, Duration),
    undone: Option<Fix>,
    which: impl Fn(u32, usize) -> usize + Sync,
) -> Vec<[Result<(), Error>; 2]> {
    let machine = Machine::new(2, seed, 6);
    let made = || {
        let gpus = (0..2).map(|gpu| Gpu::of(&machine, gpu).into());
        Communicator::of(gpus.collect(), Some(8 << 20), limit).expect("emulated ranks")
    };
    let both = [made(), made()];
    let one = |rank: u32| {
        undo::undo(undone);
        let comms = [&both[0], &both[1]].map(|ranks| &ranks[rank as usize]);
        let ready = comms.map(|comm| {
            comm.reserve(4 << 20)?;
            let loaded = Loaded::load(comm, None, pipeline, series)?;
            let (mut tensors, mut held) = (Tensors::new(), Vec::new());
            for index in 0..pipeline.kernel.buffers.len() {
                let id = TensorId(index as u16);
                let (bytes, in_heap) = Loaded::needs(&pipeline.kernel, plan, id);
                let memory = Memory::new(comm, "tensor", bytes, in_heap)?;
                memory.hold(id, bytes, &mut tensors);
                held.push(memory);
            }
            comm.barrier()?;
            Ok::<_, Error>((loaded, tensors, held))
        });
        let ready = ready.map(|ready| ready.expect("loaded"));
        let mut ended = [Ok(()), Ok(())];
        for turn in 0..6 {
            let which = which(rank, turn);
            if ended[which].is_ok() {
                ended[which] = ready[which].0.launch(comms[which], plan, &ready[which].1);
            }
        }
        for (comm, ended) in comms.iter().zip(&mut ended) {
            let done = comm.synchronize();
            *ended = std::mem::replace(ended, Ok(())).and(done);
        }
        ended
    };
    std::thread::scope(|scope| {
        let other = scope.spawn(|| one(1));
        let mine = one(0);
        vec![mine, other.join().expect("no panic")]
    })
}

#[test]
fn kernels_that_do_not_fit_together_take_turns() {
    let built = built();
    let plan = &built.2;
    assert!((plan.grid.gemm + plan.grid.comm) * 2 > 132, "two fit");
    for seed in 0..60 {
        let ended = launched(&built, (seed, Duration::from_secs(60)), None, |_, turn| {
            turn % 2
        });
        for ended in ended.into_iter().flatten() {
            ended.unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        }
    }
    // Without an order one of each may hold a GPU, and wait for its peer behind the other.
    let stuck = |seed| {
        let limit = Duration::from_millis(200);
        let ended = launched(&built, (seed, limit), Some(Fix::Turns), |_, turn| turn % 2);
        ended.into_iter().flatten().any(|ended| ended.is_err())
    };
    assert!((0..40).any(stuck), "no seed hangs without an order");
}

#[test]
fn two_orders_end_at_once_and_are_told_if_each_would_wait_for_the_other() {
    let built = built();
    let mut refused = 0;
    for seed in 0..60 {
        let order = |rank, turn| (turn + rank as usize) % 2;
        let ended = launched(&built, (seed, Duration::from_secs(60)), None, order);
        for error in ended.into_iter().flatten().filter_map(Result::err) {
            assert_eq!(error.kind(), "mismatch", "seed {seed}: {error}");
            assert!(error.to_string().contains("two orders"), "{error}");
            refused += 1;
        }
    }
    assert!(refused > 0, "no seed met in two orders");
}
