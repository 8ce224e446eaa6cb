//! Checks at the end of a run: no agent may leave work or arrivals behind.

use super::super::simulator::Simulator;
use super::super::trace;
use crate::diag::Diagnostic;

impl Simulator<'_> {
    pub(super) fn may_end(&self, index: usize) -> Result<(), Box<Diagnostic>> {
        let agent = &self.agents[index];
        if self.is_host(index) {
            return Ok(());
        }
        let found = if agent.read < agent.groups.len() || !agent.open.is_empty() {
            trace::leaves_early(self, index)
        } else if agent.lanes.at_work() {
            trace::lanes_at_work(self, index)
        } else if agent.pending.is_some() {
            trace::held_back(self, index, &[])
        } else if !agent.awaited {
            trace::leaves_before_the_launches(self, index)
        } else {
            return self.may_leave(index);
        };
        Err(Box::new(found))
    }
}
