//! Ordinary accesses of global memory by all lanes of a warp.

use super::super::seen::By;
use super::super::simulator::{Simulator, Verdict};
use super::super::step::{Area, Box4};
use super::super::trace;

impl Simulator<'_> {
    /// Stores the rows of a slot that a shard has, where the rank has them.
    pub(super) fn store_part(&mut self, index: usize, area: Area, to: &Box4) -> Verdict {
        self.are_together(index)?;
        let cta = self.agents[index].cta;
        let read = self.touch_shared(index, cta, area, false, false)?;
        self.agents[index].lanes.accessed_shared(read);
        if let Some(end) = to.spills {
            return Err(Box::new(trace::spills(self, index, to, end)));
        }
        self.begins_aligned(index, to)?;
        self.stored(index, area, to)?;
        if let Some(id) = self.touch_global(index, *to, (true, By::Threads))? {
            self.agents[index].lanes.stored_part(id);
        }
        Ok(())
    }

    /// Each lane has seen what the first one waited for.
    pub(super) fn are_together(&self, index: usize) -> Verdict {
        match self.agents[index].lanes.together() {
            true => Ok(()),
            false => Err(Box::new(trace::lanes_apart(self, index))),
        }
    }
}
