//! The checks: each is a name and a small function from facts to findings.

mod driver;
mod gpus;
mod links;
mod software;
#[cfg(test)]
mod tests;

pub(super) use links::matrix;

use super::facts::Facts;
use super::finding::Finding;

/// One check.
pub(super) struct Check {
    pub(super) name: &'static str,
    /// Findings. None where the facts that it needs are missing.
    pub(super) judge: fn(&Facts) -> Vec<Finding>,
}

const fn check(name: &'static str, judge: fn(&Facts) -> Vec<Finding>) -> Check {
    Check { name, judge }
}

/// All of them, in the order of the page.
pub(super) const ALL: [Check; 21] = [
    check("driver", driver::driver),
    check("NVML", driver::management),
    check("GPUs", gpus::gpus),
    check("MIG", gpus::mig),
    check("compute mode", gpus::compute_mode),
    check("persistence", gpus::persistence),
    check("clocks", gpus::clocks),
    check("power", gpus::power),
    check("ECC", gpus::ecc),
    check("processes", gpus::processes),
    check("NVLink", links::links),
    check("fabric", links::fabric),
    check("peer access", links::access),
    check("peer atomics", links::atomics),
    check("memory handles", links::memory),
    check("multicast", links::multicast),
    check("hardware queues", software::queues),
    check("NVRTC", software::compiler),
    check("kernel cache", software::cache),
    check("choices", software::choices),
    check("profile", software::profile),
];
