//! The host's counts for a kernel's copies, from launch to launch.

use super::which::Known;
use counterflow_codegen::host::Submission;
use counterflow_codegen::kernel::Kernel;
use std::sync::Arc;

/// The host's counts for a kernel's copies.
#[derive(Debug, Default)]
pub(super) struct Copies {
    /// The count of every cell of every rank when all launches so far are done.
    pub(super) counts: Vec<u64>,
    /// The operations of one launch of the latest plan.
    pub(super) program: Option<(Known, Vec<Submission>)>,
    pub(super) names: Vec<Arc<str>>,
    /// True if a launch was enqueued only in part. Peers may then have signals that are not in the counts.
    pub(super) broken: bool,
}

impl Copies {
    /// The counts for that kernel, with this many cells over all ranks.
    pub fn new(kernel: &Kernel, cells: usize) -> Copies {
        let names = kernel.counters.iter();
        Copies {
            counts: vec![0; cells],
            program: None,
            names: names.map(|counter| counter.name.as_str().into()).collect(),
            broken: false,
        }
    }

    /// Adds a launch's arrivals at every cell of every rank.
    pub fn launched(&mut self, arrivals: &[u32]) {
        for (count, arrivals) in self.counts.iter_mut().zip(arrivals) {
            *count += u64::from(*arrivals);
        }
        self.broken = false;
    }
}
