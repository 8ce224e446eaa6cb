//! What a checked plan amounts to: steps of each kind, and bytes over links.

use counterflow_codegen::kernel::Kernel;
use counterflow_codegen::plan::Plan;
use counterflow_codegen::unroll::{EVERYWHERE, Span, StepKind};

/// Counts over all ranks, and bytes of the busiest one.
pub(super) struct Facts {
    pub agents: u64,
    pub items: u64,
    pub waits: u64,
    pub signals: u64,
    pub accesses: u64,
    pub credits: Vec<String>,
    /// Most bytes any rank sends.
    pub sent: u64,
    /// Most bytes any rank receives.
    pub received: u64,
    /// Multiply-adds over all ranks.
    pub products: u64,
}

impl Facts {
    pub(super) fn of(kernel: &Kernel, plan: &Plan) -> Facts {
        let world = plan.geometry.world as usize;
        let mut traffic = Traffic {
            kernel,
            sent: vec![0; world],
            received: vec![0; world],
        };
        let credits = kernel
            .counters
            .iter()
            .filter(|counter| counter.purpose.is_credit())
            .map(|counter| counter.name.clone())
            .collect();
        let (mut waits, mut signals, mut accesses, mut products) = (0, 0, 0, 0);
        for agent in &plan.agents {
            let me = usize::from(agent.rank);
            for step in &agent.steps {
                match step.kind {
                    StepKind::Wait { .. } => waits += 1,
                    StepKind::Signal { .. } => signals += 1,
                    StepKind::Dot { a, b, .. } => {
                        accesses += 2;
                        products += a.elements() * u64::from(b.rows.len());
                        traffic.read(&a, me);
                        traffic.read(&b, me);
                    }
                    StepKind::Reduce { from, .. } | StepKind::Load { from, .. } => {
                        accesses += 1;
                        traffic.read(&from, me);
                    }
                    StepKind::Copy { src, dst } => {
                        accesses += 2;
                        traffic.read(&src, me);
                        traffic.written(&dst, me);
                    }
                    StepKind::Store { dst, .. } => {
                        accesses += 1;
                        traffic.written(&dst, me);
                    }
                }
            }
        }
        let busy = plan.agents.iter().filter(|agent| !agent.steps.is_empty());
        Facts {
            agents: busy.count() as u64,
            items: plan
                .agents
                .iter()
                .map(|agent| agent.items.len() as u64)
                .sum(),
            waits,
            signals,
            accesses,
            credits,
            sent: traffic.sent.into_iter().max().unwrap_or(0),
            received: traffic.received.into_iter().max().unwrap_or(0),
            products,
        }
    }
}

struct Traffic<'a> {
    kernel: &'a Kernel,
    sent: Vec<u64>,
    received: Vec<u64>,
}

impl Traffic<'_> {
    fn moved(&mut self, from: usize, to: usize, span: &Span) {
        if from != to {
            let dtype = self.kernel.buffers[span.buffer.index()].dtype;
            let bytes = span.elements() * u64::from(dtype.bytes());
            self.sent[from] += bytes;
            self.received[to] += bytes;
        }
    }

    fn homes(&self, span: &Span) -> std::ops::Range<usize> {
        match span.home {
            EVERYWHERE => 0..self.sent.len(),
            home => usize::from(home)..usize::from(home) + 1,
        }
    }

    fn read(&mut self, span: &Span, me: usize) {
        self.homes(span).for_each(|home| self.moved(home, me, span));
    }

    fn written(&mut self, span: &Span, me: usize) {
        self.homes(span).for_each(|home| self.moved(me, home, span));
    }
}
