//! A launch that was made before allocates nothing on its host, so that it costs the same whatever other threads allocate. One
//! test alone: its allocator counts.

#[path = "../../codegen/tests/fixtures/wide.rs"]
mod wide;

use counterflow::schedules::{AgGemmOp, GemmRsOp};
use counterflow::{UserBuffer, families::AllGatherGemm, prelude::bf16};
use counterflow_runtime::op::Part;
use counterflow_runtime::{Communicator, Error, Op, Tensor};
use std::alloc::{GlobalAlloc, Layout, System};
use std::backtrace::Backtrace;
use std::cell::Cell;
use std::sync::Arc;

/// The system's allocator, with the number of allocations of threads that are watched.
struct Counting;

/// In the name of every function that runs an emulated GPU. A host that asks its GPU something lets that go on.
const EMULATED_GPU: &str = "emulated::memory::Allocations";

thread_local! {
    static WATCHED: Cell<bool> = const { Cell::new(false) };
    static COUNT: Cell<usize> = const { Cell::new(0) };
}

/// Counts an allocation of this thread, if it is watched, and says where the first was made.
fn allocates(bytes: usize) {
    if !WATCHED.replace(false) {
        return;
    }
    let trace = Backtrace::force_capture().to_string();
    if !trace.contains(EMULATED_GPU) {
        if COUNT.get() == 0 {
            println!("{bytes} bytes are allocated:\n{trace}");
        }
        COUNT.set(COUNT.get() + 1);
    }
    WATCHED.set(true);
}

// SAFETY: it does what the system's does, and counts.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        allocates(layout.size());
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// Launches in a row. No list is longer than after the first rows. Where each allocation of an emulated GPU comes from takes
/// long to find out, so there are more rows in `.ci/run` alone, which sets `WIDE`.
fn row() -> usize {
    let wide = wide::wide();
    if wide { 8 } else { 2 }
}

/// Allocations of a row of launches of all ranks, but those of emulated GPUs.
fn allocations(
    ranks: &[Communicator],
    mut launch: impl FnMut(usize) -> Result<(), Error>,
) -> Result<usize, Error> {
    COUNT.set(0);
    for watched in [false, false, true] {
        for _ in 0..row() {
            WATCHED.set(watched);
            let launched = (0..ranks.len()).try_for_each(&mut launch);
            WATCHED.set(false);
            launched?;
        }
        ranks.iter().try_for_each(Communicator::synchronize)?;
    }
    Ok(COUNT.get())
}

/// An op of each rank with its tensors: what is gathered, and this rank's own.
struct Made<S> {
    op: Op<S>,
    x: UserBuffer<bf16>,
    w: Tensor<bf16>,
    y: Tensor<bf16>,
}

fn made<S>(
    ranks: &[Communicator],
    build: impl Fn(&Communicator) -> Result<Op<S>, Error> + Sync,
) -> Result<Vec<Made<S>>, Error> {
    Communicator::each(ranks, |rank| {
        let op = build(rank)?;
        let shape = |name| op.needs(name).map(|needs| needs.shape);
        Ok(Made {
            x: rank.allocate("x", shape("x")?)?,
            w: rank.zeros(shape("w")?)?,
            y: rank.zeros(shape("y")?)?,
            op,
        })
    })
}

#[test]
fn a_launch_that_was_made_before_allocates_nothing() -> Result<(), Error> {
    let ranks = Communicator::emulated(2)?;
    Communicator::each(&ranks, |rank| rank.reserve(8 << 20))?;

    let mut fused = made(&ranks, |rank| {
        let op = rank.op_of::<AgGemmOp>().first_options();
        op.up_to(64, 64, 64).build()
    })?;
    let launches = allocations(&ranks, |rank| {
        let Made { op, x, w, y } = &mut fused[rank];
        op.on(&ranks[rank]).x(&*x).w(&*w).y(y).launch().map(drop)
    })?;
    assert_eq!(launches, 0, "a fused schedule");

    // An event that others wait for, and the two that an emulated GPU makes.
    let outside = ranks.iter().map(|rank| rank.gpu().stream());
    let outside = outside.collect::<Result<Vec<_>, _>>()?;
    let launches = allocations(&ranks, |rank| {
        let Made { op, x, w, y } = &mut fused[rank];
        op.on(&outside[rank]).x(&*x).w(&*w).y(y).launch().map(drop)
    })?;
    assert_eq!(
        launches,
        3 * row() * ranks.len(),
        "in a stream of the caller's"
    );

    let graphs = ranks.iter().zip(&mut fused).map(|(rank, made)| {
        let Made { op, x, w, y } = made;
        rank.capture(|recording| {
            (0..3).try_for_each(|_| op.on(recording).x(&*x).w(&*w).y(&mut *y).launch().map(drop))
        })
    });
    let graphs = graphs.collect::<Result<Vec<_>, _>>()?;
    let replays = allocations(&ranks, |rank| graphs[rank].launch(&ranks[rank]).map(drop))?;
    assert_eq!(replays, 0, "a graph");

    for candidate in ["all_gather+gemm", "low_latency_all_gather+gemm"] {
        let mut stages = made(&ranks, |rank| {
            let op = rank.op_for::<AllGatherGemm>().schedule(candidate);
            op.up_to(64, 64, 64).build()
        })?;
        let launches = allocations(&ranks, |rank| {
            let Made { op, x, w, y } = &mut stages[rank];
            op.on(&ranks[rank]).x(&*x).w(&*w).y(y).launch().map(drop)
        })?;
        assert_eq!(launches, 0, "{candidate}");
    }

    let sums = Communicator::each(&ranks, |rank| {
        let op = rank.op_of::<GemmRsOp>().first_options();
        let op = op.up_to(64, 64, 64).build()?;
        let shape = |name| op.needs(name).map(|needs| needs.shape);
        Ok((
            rank.zeros::<bf16>(shape("x")?)?,
            rank.zeros::<bf16>(shape("w")?)?,
            rank.allocate::<bf16>("y", shape("y")?)?,
            op,
        ))
    });
    let mut sums = sums?;
    let launches = allocations(&ranks, |rank| {
        let (x, w, y, op) = &mut sums[rank];
        op.on(&ranks[rank]).x(&*x).w(&*w).y(y).launch().map(drop)
    })?;
    assert_eq!(launches, 0, "a sum");

    // What a program's own kernel is given.
    let mut own = Communicator::each(&ranks, |rank| {
        let (from, to) = (rank.zeros::<f32>([64])?, rank.zeros::<f32>([64])?);
        Ok((from, to, rank.allocate::<f32>("shared", [64])?))
    })?;
    let thing = Arc::new("for a graph");
    let steps = allocations(&ranks, |rank| {
        let (from, to, shared) = &mut own[rank];
        let step = ranks[rank].step(&ranks[rank]).keep(thing.clone());
        let step = step.part(Part::of::<f32>(64).read("from"), &*from);
        let step = step.part(Part::of::<f32>(64).read("shared"), &*shared);
        let step = step.part(Part::of::<f32>(64).written("to"), to);
        // SAFETY: no kernel is launched.
        unsafe { step.launch(|_| Ok(())) }.map(drop)
    })?;
    assert_eq!(steps, 0, "a step");
    Ok(())
}
