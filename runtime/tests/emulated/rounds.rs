//! Communicators that come and go leave nothing: no memory, no threads, no files. Each run has a process of its own, where
//! nothing else allocates.

use crate::wide::wide;
use crate::{made, schedules};
use counterflow_codegen::program::TensorId;
use counterflow_codegen::shape::Shape;
use counterflow_runtime::gpus::Memory;
use counterflow_runtime::launch::{Loaded, Tensors};
use counterflow_runtime::{Communicator, Error};
use std::alloc::{GlobalAlloc, Layout, System};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Bytes that are allocated and not freed.
static LIVE: AtomicUsize = AtomicUsize::new(0);

struct Counted;

#[global_allocator]
static ALLOCATOR: Counted = Counted;

// SAFETY: the system's allocator does it all, with what it is asked for.
unsafe impl GlobalAlloc for Counted {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LIVE.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        LIVE.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(memory, layout) }
    }
}

/// Bytes that are allocated, the process's threads, and its open files.
fn held() -> [usize; 3] {
    let count = |folder: &str| std::fs::read_dir(folder).expect("Linux").count();
    let live = LIVE.load(Ordering::Relaxed);
    [live, count("/proc/self/task"), count("/proc/self/fd")]
}

/// More than this is a leak: less than a thread that ends late, or a table that grows, has by itself.
const MORE: [usize; 3] = [32 << 10, 0, 0];

/// Makes and drops so many communicators, and leaks so many bytes with each; what is held after a tenth of them, and at
/// last.
fn rounds(rounds: usize, leak: usize) -> Result<[[usize; 3]; 2], Error> {
    let shape = Shape::new(8, 8, 8);
    let (pipeline, series) = made(&schedules::scatter("scatter"), 2, &shape);
    let plan = series.plan(&shape).expect("a plan");
    let launch = |rank: &Communicator| {
        rank.reserve(2 << 20)?;
        let loaded = Loaded::load(rank, None, &pipeline, &series)?;
        let mut tensors = Tensors::new();
        for (index, buffer) in pipeline.kernel.buffers.iter().enumerate() {
            let id = TensorId(index as u16);
            let (bytes, in_heap) = Loaded::needs(&pipeline.kernel, &plan, id);
            Memory::new(rank, &buffer.name, bytes, in_heap)?.hold(id, bytes, &mut tensors);
        }
        // All of it is dropped under the launch.
        loaded.launch(rank, &plan, &tensors)
    };
    let mut before = [0; 3];
    for round in 0..rounds {
        let ranks = Communicator::emulated(2)?;
        if round % 10 == 0 {
            Communicator::each(&ranks, launch)?;
        }
        drop(ranks);
        std::mem::forget(vec![0u8; leak]);
        if round == rounds / 10 {
            before = settled();
        }
    }
    Ok([before, settled()])
}

/// What was dropped under a launch goes once somebody looks, and threads end: what is held when that has been the same for a
/// while.
fn settled() -> [usize; 3] {
    const LOOKS: usize = 10;
    let start = Instant::now();
    let (mut last, mut same) = ([0; 3], 0);
    while same < LOOKS && start.elapsed() < Duration::from_secs(2) {
        drop(Communicator::emulated(1).expect("a rank"));
        let now = held();
        same = if now == last { same + 1 } else { 0 };
        last = now;
        std::thread::sleep(Duration::from_millis(20));
    }
    last
}

/// What a run of `alone` in a process of its own says.
fn run(count: usize, leak: usize) -> (bool, String) {
    let mut run = Command::new(std::env::current_exe().expect("this program"));
    let run = run.args(["rounds::alone", "--exact", "--ignored", "--nocapture"]);
    let run = run
        .env("ROUNDS", count.to_string())
        .env("LEAK", leak.to_string());
    let run = run.output().expect("it starts");
    let said = [run.stdout, run.stderr].concat();
    (
        run.status.success(),
        String::from_utf8_lossy(&said).into_owned(),
    )
}

#[test]
#[ignore = "no test: the others of this file start it as a child process, and say how many rounds"]
fn alone() -> Result<(), Error> {
    let number = |name| std::env::var(name).ok().and_then(|text| text.parse().ok());
    let [before, after] = rounds(
        number("ROUNDS").unwrap_or(10_000),
        number("LEAK").unwrap_or(0),
    )?;
    for (at, what) in ["bytes", "threads", "files"].into_iter().enumerate() {
        let most = before[at] + MORE[at];
        assert!(after[at] <= most, "{what} leak: {before:?}, then {after:?}");
    }
    println!("nothing leaks: {before:?}, then {after:?}");
    Ok(())
}

#[test]
fn many_communicators_leave_nothing() {
    let many = if wide() { 10_000 } else { 1_000 };
    let (well, said) = run(many, 0);
    assert!(well && said.contains("nothing leaks: "), "{said}");
}

#[test]
fn sixty_four_bytes_of_each_communicator_are_found() {
    let (well, said) = run(1_000, 64);
    assert!(!well && said.contains("bytes leak: "), "{said}");
}
