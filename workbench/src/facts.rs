//! Counts of a checked plan: steps of each kind, credits, multiply-adds.

use counterflow_codegen::kernel::Kernel;
use counterflow_codegen::plan::Plan;
use counterflow_codegen::unroll::StepKind;

/// Counts over all ranks.
#[derive(Default)]
pub(super) struct Facts {
    pub agents: u64,
    pub items: u64,
    pub waits: u64,
    pub signals: u64,
    pub accesses: u64,
    /// The inferred counters' names.
    pub credits: Vec<String>,
    /// Multiply-adds.
    pub products: u64,
}

impl Facts {
    pub(super) fn of(kernel: &Kernel, plan: &Plan) -> Facts {
        let credits = kernel.counters.iter().filter(|c| c.purpose.is_credit());
        let mut facts = Facts {
            credits: credits.map(|counter| counter.name.clone()).collect(),
            ..Facts::default()
        };
        for agent in &*plan.agents {
            facts.agents += u64::from(!agent.steps.is_empty());
            facts.items += agent.items.len() as u64;
            for step in &agent.steps {
                match step.kind {
                    StepKind::OwnTerm { .. } => {}
                    StepKind::Wait { .. } => facts.waits += 1,
                    StepKind::Signal { .. } => facts.signals += 1,
                    StepKind::Dot { a, b, .. } => {
                        facts.accesses += 2;
                        facts.products += a.elements() * u64::from(b.rows.len());
                    }
                    StepKind::Copy { .. } => facts.accesses += 2,
                    StepKind::Reduce { .. } | StepKind::Load { .. } | StepKind::Store { .. } => {
                        facts.accesses += 1;
                    }
                }
            }
        }
        facts
    }
}
