//! Barriers of shared memory: who arrives, when a phase ends, and that nobody is late for one.
//!
//! A wait names a phase by its parity alone. So the next phase must not end before everyone who waits for this one has
//! looked: who comes later would wait for the phase after that, for ever or in vain. It holds if whatever ends the next
//! phase comes after those waits. Each warp of a group waits for itself, and what one of them does says nothing of the
//! others: an arrival of all four does, or what all four send.
//!
//! Which phase an arrival counts for is as in the one order that is run. That all lanes of a warp have looked when one of
//! them arrives is by the text: a `__syncwarp` or an instruction of the whole warp stands between.

use super::super::simulator::{Simulator, Verdict};
use super::super::trace;
use crate::warp::{RunBy, Scope};

impl Simulator<'_> {
    /// True if an agent is the four warps of a group.
    pub(super) fn is_group(&self, index: usize) -> bool {
        let role = &self.case.pipeline.warps[self.agents[index].who.warp];
        matches!(role.run_by, RunBy::Groups)
    }

    /// A barrier's number in its cluster.
    pub(super) fn number(&self, index: usize, barrier: usize) -> usize {
        let cta = self.agents[index].cta;
        (cta - self.leader(index)) * self.ctas[cta].barriers.len() + barrier
    }

    /// An agent may look for that phase of a barrier: it knows the one before to be over, whose parity is the other one.
    pub(super) fn follows(&self, index: usize, barrier: usize, phases: u32) -> Verdict {
        let number = self.number(index, barrier);
        if self.agents[index].knows.phases(number) + 1 < phases {
            return Err(Box::new(trace::a_phase_behind(self, index)));
        }
        Ok(())
    }

    /// Arrivals, of all warps of an agent or of one.
    pub(super) fn arrive(
        &mut self,
        cta: usize,
        barrier: usize,
        count: u32,
        index: usize,
    ) -> Verdict {
        self.reaches(index, cta, barrier);
        if count > 1 || !self.is_group(index) {
            self.tells_past(index, cta, barrier);
        }
        let agent = &self.agents[index];
        let at = &mut self.ctas[cta].barriers[barrier];
        match at.scope {
            Scope::Cta | Scope::Own if agent.cta == cta => {
                at.gathers.join_released(&agent.knows);
            }
            // What comes from another CTA is ordered by no scope of this one.
            Scope::Cta => at.gathers.past.join(&agent.knows.past),
            Scope::Cluster => at.gathers.join_released(&agent.knows),
            Scope::Own | Scope::Relaxed => at.gathers.join_over(&agent.knows, &agent.own),
        }
        at.arrived += count;
        self.complete(index, cta, barrier)
    }

    /// Bytes that are announced to a barrier, or less: that have landed.
    pub(super) fn bytes(&mut self, index: usize, cta: usize, barrier: usize, by: i64) -> Verdict {
        let at = &mut self.ctas[cta].barriers[barrier];
        if !at.tx {
            return Err(Box::new(trace::no_bytes(self, index)));
        }
        at.bytes += by;
        Ok(())
    }

    /// Orders what all warps of an agent do there behind the waits that they are past.
    pub(super) fn tells_past(&mut self, index: usize, cta: usize, barrier: usize) {
        let agent = &self.agents[index];
        let at = &mut self.ctas[cta].barriers[barrier];
        at.gathers.past.join(&agent.past);
        at.gathers.past.join(&agent.knows.past);
    }

    /// All warps of an agent have seen a phase of a barrier of their CTA.
    pub(super) fn passes(&mut self, index: usize, barrier: usize) {
        let leader = self.leader(index);
        let id = self.ctas[leader].waits;
        self.ctas[leader].waits += 1;
        let agent = &mut self.agents[index];
        agent.past.add(id);
        let wait = (id, index, agent.at);
        self.ctas[agent.cta].barriers[barrier].waits.push(wait);
    }

    /// Ends a phase whose arrivals and bytes are all in, the last of them by an agent.
    pub(super) fn complete(&mut self, index: usize, cta: usize, barrier: usize) -> Verdict {
        let at = &mut self.ctas[cta].barriers[barrier];
        if at.arrived < at.expected || at.bytes != 0 {
            return Ok(());
        }
        at.arrived -= at.expected;
        at.phase += 1;
        std::mem::swap(&mut at.gave, &mut at.gathers);
        at.gathers.clear();
        let past = &at.gave.past;
        let late = at.waits.iter().copied().find(|(id, ..)| !past.has(*id));
        at.waits.clear();
        match late {
            Some((_, late, step)) => Err(Box::new(trace::overtaken(self, late, step, index))),
            None => Ok(()),
        }
    }
}
