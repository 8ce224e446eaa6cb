//! Begin and end of a rank's launches, and what its agents know then.

use super::seen::{Knows, Seen};
use super::simulator::{Agent, Barrier, Cta, Simulator, Verdict, Who};
use crate::diag::Diagnostic;
use crate::warp::Scope;

impl Simulator<'_> {
    /// Starts the next launch of a rank.
    fn start(&mut self, rank: u32) {
        let launch = self.launch[rank as usize] + 1;
        self.launch[rank as usize] = launch;
        self.came[rank as usize] = 0;
        let mut knows = Knows::default();
        knows.global.plain = self.ended[rank as usize].global.plain.clone();
        knows.global.proxy = knows.global.plain.clone();
        if self.case.pipeline.kernel.needs_multicast() {
            knows.global.fence_alias();
        }
        self.finishing[rank as usize] = Knows::default();
        let pipeline = self.case.pipeline;
        for _ in 0..self.case.blocks {
            let barriers = pipeline.barriers().flat_map(|(id, barrier)| {
                let new = || Barrier::new(barrier.arrivals, barrier.scope, barrier.tx);
                std::iter::repeat_with(new).take(pipeline.ring(id.ring).all() as usize)
            });
            // The order barriers: four warps of the other consumer arrive.
            let orders = 0..pipeline.order_barriers();
            let orders = orders.map(|_| Barrier::new(4, Scope::Cta, false));
            let barriers = barriers.chain(orders);
            self.ctas.push(Cta::new(barriers.collect()));
        }
        let first = self.ctas.len() - self.case.blocks as usize;
        let products = pipeline.cta.tilings().iter();
        let products = products.map(|tiling| tiling.products().len());
        let products = products.max().unwrap_or(0);
        for program in self.programs.of(self.case.plan_of(launch), rank) {
            let who = Who {
                rank,
                launch,
                block: program.block,
                warp: program.warp,
            };
            let mut agent = Agent::new(
                who,
                &program.steps,
                &knows,
                (first + program.block as usize, products),
            );
            agent.runner = program.runner;
            if program.warp < pipeline.warps.len() {
                agent.awaited = !pipeline.dependent_launch;
                self.ctas[agent.cta].agents += 1;
            } else {
                // Its stream is no warp of any CTA.
                agent.cta = self.ctas.len();
                self.ctas.push(Cta::new(Vec::new()));
            }
            self.agents.push(agent);
        }
    }

    /// Ends launches whose agents are done and starts the next ones.
    pub(super) fn next_launches(&mut self) -> Result<bool, Box<Diagnostic>> {
        let mut moved = false;
        for rank in 0..self.case.world {
            let launch = self.launch[rank as usize];
            if launch > self.case.last() {
                continue;
            }
            let mine = |agent: &&Agent<'_>| agent.who.rank == rank && agent.who.launch == launch;
            if self
                .agents
                .iter()
                .filter(mine)
                .all(|agent| agent.at >= agent.steps.len())
            {
                // The end of a launch completes what it started.
                let mut all = self.ended[rank as usize].clone();
                for agent in self.agents.iter().filter(mine) {
                    all.join(&agent.knows);
                    agent
                        .groups
                        .iter()
                        .chain([&agent.open])
                        .flatten()
                        .filter_map(|(_, to)| *to)
                        .for_each(|to| all.global.both(to));
                }
                self.ends[launch as usize][rank as usize] = all.global.plain.clone();
                self.caller(rank, launch, &mut all.global)?;
                self.ended[rank as usize] = all;
                if launch < self.case.last() {
                    self.start(rank);
                } else {
                    self.launch[rank as usize] += 1;
                }
                moved = true;
            }
        }
        Ok(moved)
    }

    /// Fills the tensors of all ranks and launches.
    pub(super) fn begin(&mut self) -> Verdict {
        for rank in 0..self.case.world {
            let mut seen = Seen::default();
            self.caller(rank, 0, &mut seen)?;
            self.ended[rank as usize].global = seen;
            self.start(rank);
        }
        Ok(())
    }

    /// True if all agents are at their end.
    pub(super) fn done(&self) -> bool {
        self.agents
            .iter()
            .all(|agent| agent.at >= agent.steps.len())
    }
}
