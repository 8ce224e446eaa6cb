//! Communicators that come and go leave nothing: no memory, no threads, no files.

use crate::{made, schedules};
use counterflow_codegen::program::TensorId;
use counterflow_codegen::shape::Shape;
use counterflow_runtime::gpus::Memory;
use counterflow_runtime::launch::{Loaded, Tensors};
use counterflow_runtime::{Communicator, Error};
use std::time::{Duration, Instant};

/// Kilobytes that the process has in memory, its threads, and its open files.
fn held() -> [u64; 3] {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux");
    let number = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        let word = line.and_then(|line| line.split_whitespace().next());
        word.and_then(|word| word.parse().ok()).expect("a number")
    };
    let files = std::fs::read_dir("/proc/self/fd").expect("Linux").count();
    [number("VmRSS:"), number("Threads:"), files as u64]
}

#[test]
fn ten_thousand_communicators_leave_nothing() -> Result<(), Error> {
    const ROUNDS: usize = 10_000;
    /// Other tests of this process hold something, too, and the allocator keeps some of what is freed.
    const MEMORY: u64 = 64 << 10;
    const OTHERS: u64 = 64;
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
    for round in 0..ROUNDS {
        let ranks = Communicator::emulated(2)?;
        if round % 10 == 0 {
            Communicator::each(&ranks, launch)?;
        }
        drop(ranks);
        if round == ROUNDS / 10 {
            before = held();
        }
    }
    // What was dropped under a launch goes once somebody looks, and other tests' threads end.
    let start = Instant::now();
    loop {
        drop(Communicator::emulated(1)?);
        let now = held();
        let less = |at: usize, more| now[at] <= before[at] + more;
        if less(0, MEMORY) && less(1, OTHERS) && less(2, OTHERS) {
            return Ok(());
        }
        assert!(
            start.elapsed() < Duration::from_secs(10),
            "{before:?} after {} rounds, {now:?} after {ROUNDS}",
            ROUNDS / 10
        );
        std::thread::sleep(Duration::from_millis(50));
    }
}
