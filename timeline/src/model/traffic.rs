//! The bytes that a launch's products read: what the model's times are made of, to be held to a profiler's counters.

use super::cost::Costs;
use counterflow_codegen::kernel::Kernel;
use counterflow_codegen::machine::Machine;
use counterflow_codegen::plan::Plan;
use counterflow_codegen::unroll::StepKind;

/// Bytes of operands that one rank's products read in a launch, by the model.
///
/// ```
/// use counterflow_codegen::machine::Machine;
/// use counterflow_timeline::model::{Traffic, traffic};
/// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/../codegen/tests/fixtures/example.rs")); }
///
/// let (series, plan) = example::proven();
/// let Traffic { through_l2, from_memory } = traffic(series.kernel(), &plan, &Machine::h200());
/// assert!(from_memory <= through_l2);
/// println!("{through_l2} bytes through L2, {from_memory} of them from memory");
/// ```
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Traffic {
    /// Bytes that SMs read through L2. Those of a cluster read once what they share.
    pub through_l2: f64,
    /// Bytes of them that device memory delivers: what tiles have in common that are multiplied at the same time comes once.
    pub from_memory: f64,
}

/// What the products of rank 0 read in a launch of `plan`.
///
/// [`Traffic`] has an example.
pub fn traffic(kernel: &Kernel, plan: &Plan, machine: &Machine) -> Traffic {
    let costs = Costs::new(kernel, plan, machine);
    let agents = plan.agents.iter().filter(|agent| agent.rank == 0);
    let mut all = Traffic::default();
    for step in agents.flat_map(|agent| &agent.steps) {
        if let StepKind::Dot { a, b, .. } = &step.kind {
            let [through_l2, from_memory] = costs.bytes(step.op, a, b);
            all.through_l2 += through_l2;
            all.from_memory += from_memory;
        }
    }
    all
}
