//! Batches of a chunk: CTAs that move data take its boxes by some, so several of them move one chunk, and each signals its part.

use super::sim::Sim;
use super::state::Batch;
use counterflow_codegen::kernel::RoleKind;
use counterflow_codegen::unroll::StepKind;
use counterflow_codegen::warp::STAGING_COLUMNS;

impl Sim<'_> {
    /// Batch of that number of an agent's item. Only what copies boxes and nothing else is divided.
    pub(super) fn batch(&self, agent: u32, item: u32, index: u32) -> Batch {
        let agent = &self.plan.agents[agent as usize];
        let moves = match self.kernel.roles[usize::from(agent.role)].kind {
            RoleKind::Comm { .. } | RoleKind::SpareWarps => true,
            RoleKind::Gemm(_) | RoleKind::CopyEngine => false,
        };
        let item = &agent.items[item as usize];
        let mut boxes = 1;
        for step in &agent.steps[item.start as usize..item.end as usize] {
            match &step.kind {
                StepKind::Copy { src, .. } => {
                    let dtype = self.kernel.buffers[src.tensor.index()].dtype;
                    let bytes = src.columns.len() * dtype.bytes();
                    boxes = boxes.max(bytes.div_ceil(2 * STAGING_COLUMNS).into());
                }
                StepKind::Wait { .. } | StepKind::Signal { .. } => {}
                StepKind::Dot { .. }
                | StepKind::Reduce { .. }
                | StepKind::OwnTerm { .. }
                | StepKind::Load { .. }
                | StepKind::Store { .. } => return Batch::WHOLE,
            }
        }
        match moves {
            true => Batch::new(index, boxes),
            false => Batch::WHOLE,
        }
    }

    /// Counts who has come to a signal of an item, or to its end. True for the last of its batches: each signals its share, so a
    /// waiter has all that it wants with that one.
    pub(super) fn is_last(&mut self, w: usize, (item, step): (u32, Option<u32>)) -> bool {
        let worker = &self.workers[w];
        let of = worker.batch.of();
        if of == 1 {
            return true;
        }
        let key = (worker.agent, item, step);
        let done = self.batches.entry(key).or_default();
        *done += 1;
        let last = *done == of;
        if last {
            self.batches.remove(&key);
        }
        last
    }
}
