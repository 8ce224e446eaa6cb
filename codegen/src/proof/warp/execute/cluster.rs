//! CTAs of a cluster: who they are, where they meet, and when one may leave.

use super::super::simulator::{Simulator, Verdict};
use super::super::trace;
use crate::diag::Diagnostic;
use std::ops::Range;

impl Simulator<'_> {
    /// The first CTA of an agent's cluster: it numbers the accesses of all of them.
    pub(super) fn leader(&self, index: usize) -> usize {
        let agent = &self.agents[index];
        agent.cta - (agent.who.block % self.case.pipeline.cta.ctas()) as usize
    }

    /// The CTA of that rank in an agent's cluster.
    pub(super) fn at_rank(&self, index: usize, rank: u32) -> Result<usize, Box<Diagnostic>> {
        if rank >= self.case.pipeline.cta.ctas() {
            let what = format!("its cluster has no CTA {rank}");
            return Err(Box::new(trace::wrong(self, index, &what)));
        }
        Ok(self.leader(index) + rank as usize)
    }

    /// An agent's CTA, or all of its cluster.
    fn ctas_of(&self, index: usize, everywhere: bool) -> Range<usize> {
        let (cta, leader) = (self.agents[index].cta, self.leader(index));
        if everywhere {
            leader..leader + self.case.pipeline.cta.ctas() as usize
        } else {
            cta..cta + 1
        }
    }

    /// The number of the next access of shared memory in an agent's cluster.
    pub(in super::super) fn next_id(&mut self, index: usize) -> u32 {
        let leader = self.leader(index);
        let ids = &mut self.ctas[leader].ids;
        *ids += 1;
        *ids - 1
    }

    /// An agent's step reaches into another CTA of its cluster, and lands there by the end of a barrier's phase.
    pub(super) fn reaches(&mut self, index: usize, cta: usize, barrier: usize) {
        let (agent, leader) = (&self.agents[index], self.leader(index));
        if agent.cta != cta {
            let reaches = &mut self.ctas[leader].reaches;
            reaches.push((index, agent.at));
            let id = reaches.len() as u32 - 1;
            self.ctas[cta].barriers[barrier].gathers.landed.add(id);
        }
    }

    /// True if all warps of the CTA, or of the cluster, are here. Those of a cluster order no accesses by it, and
    /// complete none: each learns what the others know to have landed.
    pub(super) fn meet(&mut self, index: usize, everywhere: bool) -> bool {
        let all = self.ctas_of(index, everywhere);
        let agents: u32 = all.clone().map(|cta| self.ctas[cta].agents).sum();
        let (agent, cta) = (&mut self.agents[index], &mut self.ctas[all.start]);
        if !agent.synced {
            agent.synced = true;
            cta.synced += 1;
            cta.gathers.past.join(&agent.past);
            cta.gathers.past.join(&agent.knows.past);
            if everywhere {
                cta.gathers.landed.join(&agent.knows.landed);
            } else {
                cta.gathers.join_released(&agent.knows);
            }
            if cta.synced == agents {
                cta.gave = std::mem::take(&mut cta.gathers);
            }
        }
        if cta.synced < agents {
            return false;
        }
        agent.knows.join(&cta.gave);
        true
    }

    /// A CTA of a cluster leaves when nothing that one of them did to another's shared memory is under way.
    pub(super) fn may_leave(&self, index: usize) -> Verdict {
        let agent = &self.agents[index];
        if self.case.pipeline.cta.ctas() > 1 && !agent.synced {
            return Err(Box::new(trace::leaves_its_cluster(self, index)));
        }
        let reaches = &self.ctas[self.leader(index)].reaches;
        let landed = &agent.knows.landed;
        match (0..reaches.len()).find(|id| !landed.has(*id as u32)) {
            Some(id) => Err(Box::new(trace::under_way(self, index, reaches[id]))),
            None => Ok(()),
        }
    }
}
