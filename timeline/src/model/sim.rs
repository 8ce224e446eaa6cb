//! The event loop of the simulation.

use super::cost::{Costs, Ps, ps, seconds};
use super::event::{Event, EventKind, Flow};
use super::links::{PACKET, Path, Servers, Transfer, receiver};
use super::start::launch;
use super::state::{AgentState, Mode, Worker, workers};
use super::switch;
use super::volume::EVERYWHERE;
use counterflow_codegen::diag::{Diagnostic, Rule};
use counterflow_codegen::kernel::{Kernel, OpId, RoleKind};
use counterflow_codegen::machine::Machine;
use counterflow_codegen::map::Map;
use counterflow_codegen::plan::Plan;
use counterflow_codegen::program::CounterId;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// An action at a time. Actions at the same time run in the order in which they were scheduled.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Action {
    /// A worker continues.
    Run(u32),
    /// A worker reads the next part of its operands.
    Fetch(u32),
    /// A worker's store lane continues.
    Lane(u32),
    /// A transfer sends its next packet.
    Depart(u32),
    /// A packet reaches its receiver's link.
    Arrive(u32, u32),
    /// A packet is in the receiver's memory.
    Land(u32, u32),
    /// A signal becomes visible: to which cell, how much, from which worker, and whether from its store lane.
    Signal(u64, u32, u32, bool),
}

/// A worker that waits for a cell.
#[derive(Clone, Copy)]
pub(super) struct Waiting {
    pub worker: u32,
    pub counter: CounterId,
    pub target: u32,
}

/// The result of a simulation.
pub(super) struct Outcome {
    pub total: f64,
    pub events: Vec<Event>,
    pub flows: Vec<Flow>,
}

pub(super) struct Sim<'a> {
    pub kernel: &'a Kernel,
    pub plan: &'a Plan,
    pub machine: &'a Machine,
    pub mode: Mode,
    pub costs: Costs<'a>,
    pub now: Ps,
    pub servers: Servers,
    /// Bytes a second of what goes through the switch.
    switch: f64,
    pub agents: Vec<AgentState>,
    pub workers: Vec<Worker>,
    /// Arrivals at each cell.
    pub cells: Vec<u32>,
    pub waiting: Map<usize, Vec<Waiting>>,
    /// Operand blocks that have been read from memory: rank, buffer, first row, first column.
    pub touched: Map<(u16, u16, u32, u32), ()>,
    /// Batches that have come to a step of an agent's item, or to its end, where others are still to come.
    pub batches: Map<(u32, u32, Option<u32>), u32>,
    pub finished: Ps,
    queue: BinaryHeap<Reverse<(Ps, u64, Action)>>,
    decided: u64,
    transfers: Vec<Transfer>,
    /// Free entries of `transfers`.
    over: Vec<u32>,
    /// True if events are kept. With millions of events, keeping them takes most of the time.
    keeps: bool,
    events: Vec<Event>,
    flows: Vec<Flow>,
}

impl<'a> Sim<'a> {
    pub(super) fn new(
        kernel: &'a Kernel,
        plan: &'a Plan,
        machine: &'a Machine,
        mode: Mode,
    ) -> Self {
        let cells = match mode {
            Mode::Whole => plan.arrivals.len(),
            Mode::GemmAlone => 0,
        };
        Sim {
            kernel,
            plan,
            machine,
            mode,
            costs: Costs::new(kernel, plan, machine),
            now: 0,
            servers: Servers::new(
                plan.geometry.world,
                machine.memory_of(plan.grid.gemm + plan.grid.comm),
            ),
            switch: switch::rate(kernel),
            agents: vec![AgentState::default(); plan.agents.len()],
            workers: workers(kernel, plan, mode),
            cells: vec![0; cells],
            waiting: Map::default(),
            touched: Map::default(),
            batches: Map::default(),
            finished: 0,
            queue: BinaryHeap::new(),
            decided: 0,
            transfers: Vec::new(),
            over: Vec::new(),
            keeps: mode == Mode::Whole,
            events: Vec::new(),
            flows: Vec::new(),
        }
    }

    /// Only the time is needed.
    pub(super) fn silent(mut self) -> Self {
        self.keeps = false;
        self
    }

    /// Runs until there is no event left.
    pub(super) fn run_all(mut self) -> Result<Outcome, Diagnostic> {
        let start = ps(launch(self.machine, self.kernel, self.plan.grid));
        for worker in 0..self.workers.len() as u32 {
            self.at(start, Action::Run(worker));
        }
        self.finished = start;
        while let Some(Reverse((time, _, action))) = self.queue.pop() {
            self.now = time;
            match action {
                Action::Run(worker) => self.run(worker as usize),
                Action::Fetch(worker) => self.fetch(worker as usize),
                Action::Lane(worker) => {
                    self.workers[worker as usize].store.busy = false;
                    self.run_lane(worker as usize);
                }
                Action::Depart(transfer) => self.depart(transfer),
                Action::Arrive(transfer, bytes) => self.arrive(transfer, u64::from(bytes)),
                Action::Land(transfer, bytes) => self.land(transfer, u64::from(bytes)),
                Action::Signal(cell, amount, from, overlapped) => {
                    self.signalled(cell as usize, amount, from, overlapped);
                }
            }
        }
        if let Some(stuck) = self.workers.iter().find(|worker| !worker.done) {
            return Err(self.stalled(stuck));
        }
        Ok(Outcome {
            total: seconds(self.finished),
            events: self.events,
            flows: self.flows,
        })
    }

    pub(super) fn at(&mut self, time: Ps, action: Action) {
        self.decided += 1;
        self.queue.push(Reverse((time, self.decided, action)));
    }

    /// Reached only by an unverified plan.
    fn stalled(&self, worker: &Worker) -> Diagnostic {
        let agent = &self.plan.agents[worker.agent as usize];
        let step = agent.steps.get(worker.cursor as usize);
        let at = step.map(|step| self.kernel.loc(step.op));
        Diagnostic::new(
            Rule::Progress,
            at,
            format!(
                "rank {} of {} waits for ever in its {} role",
                worker.rank,
                self.plan.geometry.world,
                self.kernel.roles[usize::from(agent.role)].name
            ),
        )
        .hint(
            "verify the plan: the report says what the wait is for and what should have signalled",
        )
    }

    pub(super) fn record(
        &mut self,
        worker: usize,
        kind: EventKind,
        op: OpId,
        (start, end): (Ps, Ps),
        transfer: Option<&Transfer>,
    ) {
        if !self.keeps {
            return;
        }
        let worker = &self.workers[worker];
        let (peer, bytes) = transfer.map_or((worker.rank, 0), |transfer| {
            let pushed = kind == EventKind::Push;
            let peer = if pushed { transfer.dst } else { transfer.src };
            (peer, transfer.bytes)
        });
        self.events.push(Event {
            rank: worker.rank,
            role: self.plan.agents[worker.agent as usize].role,
            lane: worker.lane,
            overlapped: transfer.is_some_and(|transfer| transfer.lane),
            kind,
            op,
            peer,
            start: seconds(start),
            end: seconds(end),
            bytes,
        });
    }

    /// Starts a transfer. [`Sim::landed`] continues when it is over.
    pub(super) fn send(&mut self, transfer: Transfer) {
        let start = self.now + transfer.path.latency;
        let id = match self.over.pop() {
            Some(id) => {
                self.transfers[id as usize] = transfer;
                id
            }
            None => {
                self.transfers.push(transfer);
                (self.transfers.len() - 1) as u32
            }
        };
        if transfer.path.latency == 0 {
            self.depart(id);
        } else {
            self.at(start, Action::Depart(id));
        }
    }

    fn depart(&mut self, id: u32) {
        let transfer = self.transfers[id as usize];
        let bytes = transfer.left.min(PACKET);
        let departs = self.servers.depart(self.now, &transfer, bytes);
        if departs > self.now {
            self.at(departs, Action::Arrive(id, bytes as u32));
        } else {
            self.arrive(id, bytes);
        }
    }

    fn arrive(&mut self, id: u32, bytes: u64) {
        let landed = self
            .servers
            .arrive(self.now, &self.transfers[id as usize], bytes);
        self.at(landed, Action::Land(id, bytes as u32));
    }

    fn land(&mut self, id: u32, bytes: u64) {
        let transfer = &mut self.transfers[id as usize];
        transfer.left -= bytes;
        if transfer.left > 0 {
            self.depart(id);
        } else {
            let transfer = *transfer;
            self.over.push(id);
            self.landed(transfer);
        }
    }

    fn landed(&mut self, transfer: Transfer) {
        let worker = transfer.worker as usize;
        let me = self.workers[worker].rank;
        let kind = if transfer.src == me {
            EventKind::Push
        } else {
            EventKind::Pull
        };
        let time = (transfer.start, self.now);
        self.record(worker, kind, transfer.op, time, Some(&transfer));
        let world = self.plan.geometry.world;
        let next = transfer
            .turns
            .then(|| receiver(transfer.dst + 1, transfer.src, world));
        if let Some(dst) = next.flatten() {
            self.send(Transfer {
                dst,
                left: transfer.bytes,
                start: self.now,
                ..transfer
            });
            return;
        }
        if transfer.lane {
            self.workers[worker].store.busy = false;
            self.run_lane(worker);
        } else {
            self.run(worker);
        }
    }

    /// The path of bytes that `role` moves from `src` to `dst`, or adds there. What goes through the switch has the rate that
    /// others published ([`switch::rate`]). What one CTA issues there counts as to one rank, as we measured it: their 44 GiB/s of
    /// an SM are nearly that, and their 65 are of a kernel that sums and stores at once.
    pub(super) fn path(&self, role: RoleKind, push: bool, add: bool, ends: [u16; 2]) -> Path {
        let machine = self.machine;
        let (link, issuer, latency) = match role {
            RoleKind::CopyEngine => (
                machine.link_copy_engine,
                machine.link_copy_engine,
                machine.copy_engine_latency,
            ),
            RoleKind::Gemm(_) | RoleKind::Comm { .. } | RoleKind::SpareWarps => match (push, add) {
                (true, true) => (machine.link_reduce, machine.link_reduce_cta, 0.0),
                (true, false) => (machine.link_push, machine.link_push_cta, 0.0),
                (false, _) => (machine.link_pull, machine.link_pull_cta, 0.0),
            },
        };
        let by_switch = ends.contains(&EVERYWHERE);
        Path {
            link: if by_switch { self.switch } else { link },
            issuer,
            latency: ps(latency),
        }
    }

    /// Sends a signal from a worker to a cell of `home`.
    pub(super) fn signal(
        &mut self,
        worker: usize,
        overlapped: bool,
        home: u16,
        cell: usize,
        amount: u32,
    ) {
        let local = self.workers[worker].rank == home;
        let latency = self.signal_latency(local);
        let action = Action::Signal(cell as u64, amount, worker as u32, overlapped);
        self.at(self.now + latency, action);
    }

    fn signal_latency(&self, local: bool) -> Ps {
        ps(if local {
            self.machine.local_signal_latency
        } else {
            self.machine.signal_latency
        })
    }

    fn signalled(&mut self, cell: usize, amount: u32, from: u32, overlapped: bool) {
        self.cells[cell] = self.cells[cell].saturating_add(amount);
        let count = self.cells[cell];
        let Some(waiting) = self.waiting.get_mut(&cell) else {
            return;
        };
        let mut met = Vec::new();
        waiting.retain(|waiting| {
            if waiting.target <= count {
                met.push(*waiting);
            }
            waiting.target > count
        });
        if waiting.is_empty() {
            self.waiting.remove(&cell);
        }
        let (sender, lane) = (
            self.workers[from as usize].rank,
            self.workers[from as usize].lane,
        );
        for Waiting {
            worker, counter, ..
        } in met
        {
            let to = &self.workers[worker as usize];
            let sent = self
                .now
                .saturating_sub(self.signal_latency(to.rank == sender));
            self.flows.push(Flow {
                counter,
                credit: self.kernel.counters[counter.index()].purpose.is_credit(),
                from: (sender, lane),
                overlapped,
                sent: seconds(sent),
                to: (to.rank, to.lane),
                met: seconds(self.now),
            });
            self.run(worker as usize);
        }
    }
}
