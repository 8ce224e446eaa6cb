//! What stays of ops that were dropped, by every byte that this process allocates. One test alone: others would be counted, too.

use counterflow::schedules::GemmRsOp;
use counterflow_runtime::{Communicator, Error};
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicIsize, Ordering};

/// The system's allocator, with the bytes that are given out.
struct Counting;

static GIVEN_OUT: AtomicIsize = AtomicIsize::new(0);

// SAFETY: it does what the system's does, and counts.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        GIVEN_OUT.fetch_add(layout.size() as isize, Ordering::Relaxed);
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

/// Each op is another one: of other columns.
#[test]
fn a_dropped_op_leaves_nothing() -> Result<(), Error> {
    // More than the proofs that stay without an op.
    const OPS: usize = 80;
    /// A proof alone is some 100 KB.
    const LEFT: isize = 2048;
    let ranks = Communicator::emulated(2)?;
    Communicator::each(&ranks, |rank| rank.reserve(4 << 20))?;
    let build = |ops: std::ops::Range<usize>| {
        for n in ops {
            Communicator::each(&ranks, |rank| {
                let op = rank
                    .op_of::<GemmRsOp>()
                    .first_options()
                    .up_to(64, 8 * n, 64);
                op.workspace()?;
                op.build().map(drop)
            })?;
        }
        Ok::<_, Error>(GIVEN_OUT.load(Ordering::Relaxed))
    };
    // Those that ranks which come later would take stay.
    let before = build(1..OPS)?;
    let after = build(OPS..2 * OPS)?;
    let each = (after - before) / OPS as isize;
    assert!(each < LEFT, "{each} bytes of each op stay");
    Ok(())
}
