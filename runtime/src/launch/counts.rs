//! What the host knows of a kernel's copies from launch to launch.

use counterflow_codegen::host::Submission;
use counterflow_codegen::kernel::Kernel;
use std::sync::Arc;

/// What the host knows of a kernel's copies between launches.
#[derive(Debug, Default)]
pub(super) struct Copies {
    /// What every cell of every rank counts when all that was launched is done.
    pub(super) counts: Vec<u64>,
    /// What one launch of a plan submits: of the latest plan.
    pub(super) program: Option<(u64, Vec<Submission>)>,
    pub(super) names: Vec<Arc<str>>,
    /// Whether a launch was enqueued in part: peers may have had signals that the counts do not know.
    pub(super) broken: bool,
}

impl Copies {
    /// For that kernel, with so many cells on all ranks together.
    pub fn new(kernel: &Kernel, cells: usize) -> Copies {
        let names = kernel.counters.iter();
        Copies {
            counts: vec![0; cells],
            program: None,
            names: names.map(|counter| counter.name.as_str().into()).collect(),
            broken: false,
        }
    }

    /// Moves the counts on by a launch: what arrives at every cell of every rank.
    pub fn launched(&mut self, arrivals: &[u32]) {
        for (count, arrivals) in self.counts.iter_mut().zip(arrivals) {
            *count += u64::from(*arrivals);
        }
        self.broken = false;
    }
}
