//! Reports from a run's state: a deadlock, or something missing.

use super::{Active, Emulator, Worker};
use crate::clocks::Epoch;
use crate::failure::{FailureKind, Stuck};
use crate::memory::Window;
use counterflow_codegen::region::Access;
use counterflow_codegen::unroll::StepKind;

impl Emulator<'_> {
    /// True if a step of that launch has been taken.
    fn taken(&self, agent: usize, launch: u32, item: u32, step: u32) -> bool {
        let rank = agent / self.setup.roles;
        match self.memory.windows[rank] {
            Window::Before(now) => launch < now,
            Window::In(now) if launch != now => launch < now,
            Window::In(_) if item >= self.agents[agent].next => false,
            Window::In(_) => {
                let active = |worker: &&Worker| {
                    worker.agent == agent && worker.active.is_some_and(|active| active.item == item)
                };
                let worker = self.workers.iter().find(active);
                worker
                    .and_then(|worker| worker.active)
                    .is_none_or(|active| step < active.step)
            }
        }
    }

    /// The first step of every agent in `launch` that is yet to be taken and for which `wanted` holds.
    fn pending(&self, launch: u32, wanted: impl Fn(&StepKind) -> bool) -> Vec<Epoch> {
        let mut found = Vec::new();
        for agent in 0..self.agents.len() {
            let (rank, role) = (agent / self.setup.roles, agent % self.setup.roles);
            let plan = self
                .setup
                .plan(launch, rank as u16)
                .agent(rank as u32, role);
            let steps = plan.items.iter().enumerate().flat_map(|(index, item)| {
                (item.start..item.end).map(move |step| (index as u32, item.phase, step))
            });
            let first = steps.into_iter().find(|(item, _, step)| {
                wanted(&plan.steps[*step as usize].kind) && !self.taken(agent, launch, *item, *step)
            });
            found.extend(first.map(|(item, phase, step)| Epoch {
                rank: rank as u16,
                role: role as u16,
                launch,
                phase,
                item,
                step,
            }));
        }
        found
    }

    /// An element that is missing at the end of a launch may still be in flight.
    pub(super) fn late(&self, rank: usize, kind: Box<FailureKind>) -> Box<FailureKind> {
        let FailureKind::NeverWritten { launch, what } = &*kind else {
            return kind;
        };
        let pending = self.pending(*launch as u32, |step| {
            let mut planes = step.planes(self.setup.kernel);
            planes.any(|(access, to)| {
                access != Access::Read
                    && self.setup.kernel.buffers[to.tensor.index()].name == what.buffer
                    && to
                        .owner
                        .ranks(self.setup.world as u32)
                        .contains(&(rank as u16))
                    && to.rows.overlaps(what.rows)
                    && to.columns.overlaps(what.columns)
            })
        });
        match pending.first() {
            Some(at) => Box::new(FailureKind::LateWrite {
                by: self.setup.site(at, "writes"),
                what: what.clone(),
            }),
            None => kind,
        }
    }

    /// Reason that no worker can continue.
    pub fn deadlock(&self) -> Box<FailureKind> {
        let mut waits = Vec::new();
        for worker in &self.workers {
            let (Some(at), Some(active)) = (worker.blocked, worker.active) else {
                continue;
            };
            let by = self.epoch(worker);
            let step = self.plan_of(worker.agent).steps[active.step as usize];
            let StepKind::Wait { at_least, .. } = step.kind else {
                continue;
            };
            let lag = self.setup.kernel.counters[at.counter.index()].purpose.lag();
            let Some(wanted) = self.counters.wanted(self.setup, by.launch, at, at_least) else {
                continue;
            };
            let missing = self.pending(by.launch - lag, |step| match step {
                StepKind::Signal {
                    counter,
                    home,
                    cell,
                    ..
                } => (*counter, *home, *cell) == (at.counter, at.home, at.cell),
                StepKind::Wait { .. }
                | StepKind::Copy { .. }
                | StepKind::Dot { .. }
                | StepKind::Reduce { .. }
                | StepKind::OwnTerm { .. }
                | StepKind::Load { .. }
                | StepKind::Store { .. } => false,
            });
            waits.push(Stuck {
                by: self.setup.site(&by, "waits"),
                on: self.setup.cell_name(at.home, at.counter, at.cell),
                seen: self.counters.value(self.setup, at),
                wanted: wanted.value,
                missing: missing
                    .iter()
                    .map(|at| self.setup.site(at, "signals"))
                    .collect(),
            });
        }
        // Ranks with different plans wait for signals that the others never planned.
        for stuck in &waits {
            let launch = stuck.by.launch;
            let mine = self.setup.plans[launch][usize::from(stuck.by.rank)].hash;
            let differs = |plan: &&counterflow_codegen::plan::Plan| plan.hash != mine;
            if let Some(peer) = self.setup.plans[launch].iter().position(differs) {
                return Box::new(FailureKind::Mismatch {
                    by: stuck.by.clone(),
                    peer: peer as u16,
                    hashes: (mine, self.setup.plans[launch][peer].hash),
                });
            }
        }
        Box::new(FailureKind::Deadlock { waits })
    }

    /// Adds to a digest everything that decides what can still happen.
    pub fn digest(&self, into: &mut impl std::hash::Hasher) {
        use std::hash::Hash;
        for (index, agent) in self.agents.iter().enumerate() {
            agent.next.hash(into);
            let mut active: Vec<Active> = self
                .workers
                .iter()
                .filter(|worker| worker.agent == index)
                .filter_map(|worker| worker.active)
                .collect();
            active.sort_unstable();
            active.hash(into);
        }
        self.memory.digest(into);
    }
}
