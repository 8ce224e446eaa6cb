//! The state of a run: each rank's launch, each worker's step, and the memory.

mod report;

use super::clocks::{Clock, Epoch, join};
use super::counters::{At, Counters};
use super::data::{Data, Tile};
use super::failure::{Check, Site};
use super::memory::{Memory, Window};
use super::outcome::{Input, Output};
use super::setup::Setup;
use super::tags::Tags;

use counterflow_codegen::unroll::StepKind;
use std::rc::Rc;

/// Fills a rank's input before a launch.
pub(super) type Fill<'f> = dyn FnMut(Input<'_>, &mut [f32]) + 'f;

/// Agent that steps: a worker, or the host of rank `turn - workers`, which starts its next launch.
pub(super) type Turn = usize;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(super) struct Active {
    pub item: u32,
    /// The next step.
    pub step: u32,
}

/// The terms of an accumulator's sum, beside its numbers.
#[derive(Clone, Debug, Default)]
pub(super) struct Acc {
    pub live: bool,
    pub tags: Tags,
    pub tile: Tile,
}

#[derive(Clone)]
pub(super) struct Worker {
    pub agent: usize,
    pub active: Option<Active>,
    /// Clock of the item, without its own steps.
    pub clock: Rc<Clock>,
    pub accs: Vec<Acc>,
    /// The cell it waits for.
    blocked: Option<At>,
}

#[derive(Clone)]
struct AgentState {
    /// The next item to claim.
    next: u32,
    phase: u32,
    running: u32,
    /// The clock with which items of this phase start.
    start: Rc<Clock>,
    /// The joined clocks of all finished items.
    end: Rc<Clock>,
    finished: bool,
}

#[derive(Clone)]
pub(super) struct Emulator<'a> {
    pub setup: &'a Setup<'a>,
    pub workers: Vec<Worker>,
    agents: Vec<AgentState>,
    /// Each rank's clock at the start of its launch.
    ranks: Vec<Rc<Clock>>,
    pub memory: Memory,
    pub counters: Counters,
    pub data: Data,
    pub outputs: Vec<Output>,
    /// Agents that can step, the most recent last.
    pub ready: Vec<Turn>,
}

impl<'a> Emulator<'a> {
    /// The state before any launch. `workers` gives the number of workers of a rank's role (by index).
    pub fn new(
        setup: &'a Setup<'a>,
        mut workers: impl FnMut(usize) -> u32,
        data: bool,
    ) -> Emulator<'a> {
        let none = Rc::new(Clock::new(setup.world, setup.roles));
        let mut pool = Vec::new();
        for agent in 0..setup.world * setup.roles {
            let role = agent % setup.roles;
            let sequential = setup.kernel.roles[role].kind.sequential();
            let count = if sequential { 1 } else { workers(role).max(1) };
            for _ in 0..count {
                pool.push(Worker {
                    agent,
                    active: None,
                    clock: none.clone(),
                    accs: vec![Acc::default(); setup.kernel.accs.len()],
                    blocked: None,
                });
            }
        }
        let hosts = if setup.launches() > 0 { setup.world } else { 0 };
        let idle = AgentState {
            next: 0,
            phase: 0,
            running: 0,
            start: none.clone(),
            end: none.clone(),
            finished: true,
        };
        Emulator {
            setup,
            ready: (pool.len()..pool.len() + hosts).collect(),
            workers: pool,
            agents: vec![idle; setup.world * setup.roles],
            ranks: vec![none; setup.world],
            memory: Memory::new(setup),
            counters: Counters::new(setup),
            data: Data::new(setup, data),
            outputs: Vec::new(),
        }
    }

    /// Draws the orders in which the switch adds from a seed.
    pub fn switch_adds_by(&mut self, seed: u64) {
        self.data.draw_from(seed);
    }

    pub fn rank_of(&self, turn: Turn) -> usize {
        match self.workers.get(turn) {
            Some(worker) => worker.agent / self.setup.roles,
            None => turn - self.workers.len(),
        }
    }

    pub fn role_of(&self, turn: Turn) -> Option<usize> {
        let worker = self.workers.get(turn)?;
        Some(worker.agent % self.setup.roles)
    }

    pub fn launch_of(&self, rank: usize) -> u32 {
        match self.memory.windows[rank] {
            Window::Before(launch) | Window::In(launch) => launch,
        }
    }

    /// True if every rank is done with every launch.
    pub fn done(&self) -> bool {
        (0..self.setup.world).all(|rank| self.launch_of(rank) == self.setup.launches())
    }

    /// The step that this worker would take.
    pub fn site_of(&self, turn: Turn) -> Site {
        let rank = self.rank_of(turn);
        let at = match self.workers.get(turn) {
            Some(worker) => self.epoch(worker),
            None => Epoch::host(rank as u16, self.launch_of(rank)),
        };
        self.setup.site(&at, "runs")
    }

    /// Takes one step.
    pub fn take(&mut self, turn: Turn, inputs: &mut Fill<'_>) -> Check<()> {
        if turn >= self.workers.len() {
            self.unready(turn);
            return self.start(turn - self.workers.len(), inputs);
        }
        self.step(turn)?;
        let worker = &mut self.workers[turn];
        let (agent, Some(active)) = (worker.agent, worker.active.as_mut()) else {
            return Ok(());
        };
        active.step += 1;
        let item = active.item;
        let done = active.step == self.plan_of(agent).items[item as usize].end;
        if !done {
            self.settle(turn);
            return Ok(());
        }
        self.workers[turn].active = None;
        self.unready(turn);
        let state = &mut self.agents[agent];
        state.running -= 1;
        if !Rc::ptr_eq(&self.workers[turn].clock, &state.start) {
            join(&mut state.end, &self.workers[turn].clock);
        }
        self.dispatch(agent)
    }

    fn plan_of(&self, agent: usize) -> &'a counterflow_codegen::unroll::Agent {
        let rank = agent / self.setup.roles;
        let plan = self.setup.plan(self.launch_of(rank), rank as u16);
        plan.agent(rank as u32, agent % self.setup.roles)
    }

    pub fn epoch(&self, worker: &Worker) -> Epoch {
        let rank = worker.agent / self.setup.roles;
        let active = worker.active.unwrap_or(Active { item: 0, step: 0 });
        Epoch {
            rank: rank as u16,
            role: (worker.agent % self.setup.roles) as u16,
            launch: self.launch_of(rank),
            phase: self.agents[worker.agent].phase,
            item: active.item,
            step: active.step,
        }
    }

    fn unready(&mut self, turn: Turn) {
        if let Some(at) = self.ready.iter().position(|ready| *ready == turn) {
            self.ready.remove(at);
        }
    }

    /// Decides whether a worker's next step can be taken now.
    fn settle(&mut self, turn: Turn) {
        let worker = &self.workers[turn];
        let blocked = worker.active.and_then(|active| {
            let rank = worker.agent / self.setup.roles;
            let step = self.plan_of(worker.agent).steps[active.step as usize];
            match step.kind {
                StepKind::Wait {
                    counter,
                    cell,
                    at_least,
                } => {
                    let at = At {
                        counter,
                        home: rank as u16,
                        cell,
                    };
                    let wanted =
                        self.counters
                            .wanted(self.setup, self.launch_of(rank), at, at_least);
                    let seen = self.counters.value(self.setup, at);
                    wanted
                        .is_some_and(|wanted| seen < wanted.value)
                        .then_some(at)
                }
                StepKind::Signal { .. }
                | StepKind::Copy { .. }
                | StepKind::Dot { .. }
                | StepKind::Reduce { .. }
                | StepKind::OwnTerm { .. }
                | StepKind::Load { .. }
                | StepKind::Store { .. } => None,
            }
        });
        self.workers[turn].blocked = blocked;
        match (blocked, self.ready.contains(&turn)) {
            (None, false) => self.ready.push(turn),
            (Some(_), true) => self.unready(turn),
            (None, true) | (Some(_), false) => {}
        }
    }

    /// A cell grew: its waiters check again.
    pub fn wake(&mut self, at: At) {
        for turn in 0..self.workers.len() {
            if self.workers[turn].blocked == Some(at) {
                self.settle(turn);
            }
        }
    }

    /// Gives idle workers the items that may start, and ends the launch if none is left.
    fn dispatch(&mut self, agent: usize) -> Check<()> {
        let plan = self.plan_of(agent);
        let (rank, role) = (agent / self.setup.roles, agent % self.setup.roles);
        loop {
            let state = &mut self.agents[agent];
            let Some(item) = plan.items.get(state.next as usize) else {
                break;
            };
            if item.phase > state.phase {
                if state.running > 0 {
                    return Ok(());
                }
                state.phase = item.phase;
                Rc::make_mut(&mut state.end).start_phase(rank as u16, role as u16, item.phase);
                state.start = state.end.clone();
            }
            if item.start == item.end {
                state.next += 1;
                continue;
            }
            let idle = |worker: &Worker| worker.agent == agent && worker.active.is_none();
            let Some(turn) = self.workers.iter().position(idle) else {
                return Ok(());
            };
            let worker = &mut self.workers[turn];
            worker.active = Some(Active {
                item: state.next,
                step: item.start,
            });
            worker.clock = state.start.clone();
            for acc in worker.accs.iter_mut().filter(|acc| acc.live) {
                *acc = Acc::default();
            }
            state.next += 1;
            state.running += 1;
            self.settle(turn);
        }
        let state = &mut self.agents[agent];
        if state.running == 0 && !state.finished {
            state.finished = true;
            let agents = rank * self.setup.roles..(rank + 1) * self.setup.roles;
            if self.agents[agents].iter().all(|agent| agent.finished) {
                return self.end(rank);
            }
        }
        Ok(())
    }

    fn start(&mut self, rank: usize, inputs: &mut Fill<'_>) -> Check<()> {
        let launch = self.launch_of(rank);
        self.memory.start(self.setup, rank as u16, launch);
        if self.data.wanted() {
            self.data.start(self.setup, rank as u16, launch, inputs);
        }
        let agents = rank * self.setup.roles..(rank + 1) * self.setup.roles;
        for state in &mut self.agents[agents.clone()] {
            *state = AgentState {
                next: 0,
                phase: 0,
                running: 0,
                start: self.ranks[rank].clone(),
                end: self.ranks[rank].clone(),
                finished: false,
            };
        }
        for agent in agents {
            // The last role to finish ends the launch, which ends this loop.
            self.dispatch(agent)?;
        }
        Ok(())
    }

    fn end(&mut self, rank: usize) -> Check<()> {
        let launch = self.launch_of(rank);
        let mut clock = self.ranks[rank].clone();
        for role in 0..self.setup.roles {
            join(&mut clock, &self.agents[rank * self.setup.roles + role].end);
        }
        Rc::make_mut(&mut clock).start_launch(rank as u16, launch + 1);
        if let Err(kind) = self.memory.end(self.setup, rank as u16, launch, &clock) {
            return Err(self.late(rank, kind));
        }
        self.ranks[rank] = clock;
        self.counters.end(self.setup, rank as u16, launch);
        if self.data.wanted() {
            for (index, buffer) in self.setup.kernel.buffers.iter().enumerate() {
                let id = counterflow_codegen::program::TensorId(index as u16);
                match buffer.usage.is_left_behind() {
                    false => {}
                    true => {
                        let (rows, values) = self.data.take(self.setup, launch, rank as u16, id);
                        self.outputs.push(Output {
                            launch: launch as usize,
                            rank: rank as u32,
                            tensor: id,
                            rows,
                            values,
                        });
                    }
                }
            }
        }
        if launch + 1 < self.setup.launches() {
            self.ready.push(self.workers.len() + rank);
        }
        Ok(())
    }
}
