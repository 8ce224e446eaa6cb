//! What plans take of the host's memory, by every byte that this process allocates: no more than in proportion to what is told of
//! them, which is their steps while they are checked, and their counters afterwards. One test alone: others would be counted, too.

#[path = "../../codegen/tests/fixtures/wide.rs"]
mod wide;

use counterflow::families::AllGatherGemm;
use counterflow::schedules;
use counterflow_codegen::lower::lower;
use counterflow_codegen::machine::Machine;
use counterflow_codegen::shape::Shape;
use counterflow_codegen::unroll::most_steps;
use counterflow_codegen::variant::Variant;
use counterflow_codegen::verify;
use counterflow_runtime::{Communicator, Error};
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicIsize, Ordering};

/// The system's allocator, with the bytes that are given out, and the most that were at once.
struct Counting;

static GIVEN_OUT: AtomicIsize = AtomicIsize::new(0);
static MOST: AtomicIsize = AtomicIsize::new(0);

// SAFETY: it does what the system's does, and counts.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let bytes = layout.size() as isize;
        let now = GIVEN_OUT.fetch_add(bytes, Ordering::Relaxed) + bytes;
        MOST.fetch_max(now, Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        GIVEN_OUT.fetch_sub(layout.size() as isize, Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// Bytes that stay of what that makes, and the most that it had at once.
fn taken<T>(make: impl FnOnce() -> T) -> (T, [isize; 2]) {
    let before = GIVEN_OUT.load(Ordering::Relaxed);
    MOST.store(before, Ordering::Relaxed);
    let made = make();
    let after = [&GIVEN_OUT, &MOST].map(|bytes| bytes.load(Ordering::Relaxed) - before);
    (made, after)
}

/// Of a step that is told, while the plan is checked: one column of tiles is checked for all.
const OF_A_STEP: isize = 64;
/// Of a counter's cell on a rank afterwards: what arrives there, in 4 bytes, for the plan and for its class.
const OF_A_CELL: isize = 16;
/// Of a series and a plan, however small: a kernel with its text, and a few tables.
const OF_A_PLAN: isize = 128 << 10;
/// Plans that the model compares before an op of a family is chosen, at most.
const CANDIDATES: isize = 16;

#[test]
fn a_plan_costs_memory_in_proportion_to_what_is_told() -> Result<(), Error> {
    let wide = wide::wide();
    for program in [schedules::ag_gemm(), schedules::gemm_rs()] {
        for (at, world) in [1, 2, 4, 8].into_iter().enumerate() {
            let rows = [1 << 9, 1 << 11, 1 << 13, 1 << 14];
            let rows = rows.into_iter().enumerate();
            // Without `WIDE`, another number of rows in each world.
            for (_, m) in rows.filter(|(nth, _)| wide || *nth == at) {
                let kernel = lower(&program, &Variant::new(world)).and_then(verify::kernel)?;
                let shape = Shape::new(m, 2048, 512);
                let ((series, plan), [left, most]) = taken(|| {
                    let series = verify::series(&kernel, &shape, &Machine::h200());
                    let series = series.expect("a series");
                    let plan = series.plan(series.most()).expect("a plan");
                    (series, plan)
                });
                let steps = most_steps(series.kernel(), &plan.geometry) as isize;
                let cells = plan.arrivals.len() as isize;
                let what = format!("{} of {m} rows in a world of {world}", program.name);
                assert!(
                    most <= OF_A_PLAN + OF_A_STEP * steps,
                    "{what}: {most} bytes at once for {steps} steps"
                );
                assert!(
                    left <= OF_A_PLAN + OF_A_CELL * cells,
                    "{what}: {left} bytes stay for {cells} cells"
                );
            }
        }
    }
    built()
}

/// An op keeps what its workspace tells, on emulated ranks in the host's memory, and no step of its plans.
fn built() -> Result<(), Error> {
    let ranks = Communicator::emulated(2)?;
    Communicator::each(&ranks, |rank| rank.reserve(64 << 20))?;
    let mut before = None;
    for m in [1 << 9, 1 << 11, 1 << 13, 1 << 14] {
        let build = |rank: &Communicator| {
            let op = rank.op_for::<AllGatherGemm>();
            let op = op.up_to(m, 2048, 512);
            let told = op.workspace()?;
            Ok((op.build()?, told))
        };
        let (ops, [left, _]) = taken(|| Communicator::each(&ranks, build));
        let told: u64 = ops?.iter().map(|(_, told)| told.own + told.heap).sum();
        let (left, told) = (left, told as isize);
        if let Some((less, less_told)) = before.replace((left, told)) {
            // More rows may tell less: few of them are exchanged by a kernel that has buffers of its own.
            let more = 2 * (told - less_told).max(0) + CANDIDATES * OF_A_PLAN;
            assert!(
                left <= less + more,
                "{left} bytes stay of an op of {m} rows that tells {told}"
            );
        }
    }
    Ok(())
}
