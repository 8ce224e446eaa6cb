//! Runs what ranks submitted as far as it gets.

use super::super::enqueue::{HostOp, HostOpKind};
use crate::plan::Plan;
use crate::program::{CounterId, Loc};
use crate::unroll::{self, StepKind};
use crate::warp::Pipeline;
use std::collections::BTreeMap;

/// One thing that the host of a rank submits in a launch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Submission {
    /// The copies' stream waits until the rank's stream reaches this.
    CopiesFollow,
    /// To the copies' stream.
    Copies(HostOp),
    /// The kernel, to the rank's stream.
    Kernel,
    /// The rank's stream waits until the copies' stream reaches this.
    RankFollows,
}

/// An entry of a queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum What {
    Kernel,
    Op(HostOp),
    /// A wait for another stream, with the entry of its mark.
    Mark,
    Await(usize),
}

pub(super) struct Entry {
    pub rank: u32,
    pub launch: u32,
    pub queue: usize,
    pub what: What,
    /// The entry before it in its stream.
    pub before: Option<usize>,
}

/// A role of a running kernel, and its progress.
pub(super) struct Agent {
    pub entry: usize,
    pub role: usize,
    pub at: usize,
}

/// A step of a kernel's role that others can observe, with its source location.
pub(super) type Step = (Loc, CounterOp);

#[derive(Clone, Copy)]
pub(super) enum CounterOp {
    /// A wait for this much more than the arrivals of all launches before.
    Wait {
        cell: usize,
        more: u64,
    },
    Signal {
        cell: usize,
        amount: u64,
    },
}

pub(super) struct Run<'a> {
    pub pipeline: &'a Pipeline,
    pub plan: &'a Plan,
    pub entries: Vec<Entry>,
    pub done: Vec<bool>,
    pub begun: Vec<bool>,
    pub queues: Vec<Vec<usize>>,
    pub heads: Vec<usize>,
    /// The queue of a GPU's streams, or of a rank's stream, by number.
    pub numbers: BTreeMap<(bool, u32, bool), usize>,
    pub last: BTreeMap<(u32, bool), usize>,
    pub running: Vec<Agent>,
    pub counts: Vec<u64>,
    /// One launch's arrivals at each cell, and the cell's rank.
    pub all: Vec<u64>,
    pub cells: Vec<(u32, CounterId, u32)>,
    /// For each rank and each role of the kernel.
    pub steps: Vec<Vec<Vec<Step>>>,
}

impl<'a> Run<'a> {
    pub fn new(pipeline: &'a Pipeline, plan: &'a Plan, kernels: bool) -> Run<'a> {
        let world = plan.geometry.world;
        let (mut all, mut cells) = (Vec::new(), Vec::new());
        for rank in 0..world {
            all.extend(pipeline.arrivals(plan, rank).into_iter().map(u64::from));
            for index in 0..pipeline.kernel.counters.len() {
                let counter = CounterId(index as u16);
                let of = 0..plan.geometry.counter_cells(counter);
                cells.extend(of.map(|cell| (rank, counter, cell)));
            }
        }
        let steps = (0..if kernels { world } else { 0 }).map(|rank| {
            let roles = 0..pipeline.kernel.roles.len();
            let on_device = roles.filter(|role| !pipeline.kernel.roles[*role].kind.sequential());
            on_device
                .map(|role| counter_ops(pipeline, plan, rank, role))
                .collect()
        });
        Run {
            pipeline,
            plan,
            entries: Vec::new(),
            done: Vec::new(),
            begun: Vec::new(),
            queues: Vec::new(),
            heads: Vec::new(),
            numbers: BTreeMap::new(),
            last: BTreeMap::new(),
            running: Vec::new(),
            counts: vec![0; all.len()],
            all,
            cells,
            steps: steps.collect(),
        }
    }

    /// Submits a launch of a rank. Its streams share their GPU's queue, or have one each.
    pub fn submit(&mut self, rank: u32, launch: u32, program: &[Submission], gpu: Option<u32>) {
        let mut push = |copies: bool, what: What| {
            let key = match gpu {
                Some(gpu) => (true, gpu, false),
                None => (false, rank, copies),
            };
            let next = self.queues.len();
            let queue = *self.numbers.entry(key).or_insert(next);
            if queue == next {
                self.queues.push(Vec::new());
                self.heads.push(0);
            }
            let at = self.entries.len();
            self.queues[queue].push(at);
            let before = self.last.insert((rank, copies), at);
            self.entries.push(Entry {
                rank,
                launch,
                queue,
                what,
                before,
            });
            self.done.push(false);
            self.begun.push(false);
            at
        };
        for submission in program {
            match submission {
                Submission::CopiesFollow => {
                    let mark = push(false, What::Mark);
                    push(true, What::Await(mark));
                }
                Submission::Copies(op) => {
                    push(true, What::Op(*op));
                }
                Submission::Kernel => {
                    push(false, What::Kernel);
                }
                Submission::RankFollows => {
                    let mark = push(true, What::Mark);
                    push(false, What::Await(mark));
                }
            }
        }
    }

    pub fn index(&self, home: u32, counter: CounterId, cell: u32) -> usize {
        self.plan.arrivals.index(home as u16, counter, cell)
    }

    /// The count that an entry waits for in a cell.
    pub fn wanted(&self, entry: &Entry) -> Option<(usize, u64)> {
        match entry.what {
            What::Op(HostOp {
                kind:
                    HostOpKind::Wait {
                        counter,
                        cell,
                        arrivals,
                    },
                ..
            }) => {
                let at = self.index(entry.rank, counter, cell);
                Some((
                    at,
                    self.all[at] * u64::from(entry.launch) + u64::from(arrivals),
                ))
            }
            What::Kernel | What::Op(_) | What::Mark | What::Await(_) => None,
        }
    }

    fn can_begin(&self, at: usize) -> bool {
        let entry = &self.entries[at];
        let counted = self
            .wanted(entry)
            .is_none_or(|(cell, wanted)| self.counts[cell] >= wanted);
        let came = match entry.what {
            What::Await(mark) => self.done[mark],
            What::Kernel | What::Op(_) | What::Mark => true,
        };
        counted && came && entry.before.is_none_or(|before| self.done[before])
    }

    fn begin(&mut self, at: usize) {
        let entry = &self.entries[at];
        self.begun[at] = true;
        match entry.what {
            What::Kernel => {
                let roles = 0..self.steps[entry.rank as usize].len();
                let agents = roles.map(|role| Agent {
                    entry: at,
                    role,
                    at: 0,
                });
                self.running.extend(agents);
                return;
            }
            What::Op(HostOp {
                kind:
                    HostOpKind::Signal {
                        counter,
                        home,
                        cell,
                        arrivals,
                    },
                ..
            }) => {
                let cell = self.index(home, counter, cell);
                self.counts[cell] = self.all[cell] * u64::from(entry.launch) + u64::from(arrivals);
            }
            What::Op(_) | What::Mark | What::Await(_) => {}
        }
        self.done[at] = true;
    }

    /// Runs until nothing can continue.
    pub fn go(&mut self) {
        let mut moved = true;
        while moved {
            moved = false;
            for queue in 0..self.queues.len() {
                while let Some(at) = self.queues[queue].get(self.heads[queue]).copied() {
                    if !self.can_begin(at) {
                        break;
                    }
                    self.begin(at);
                    self.heads[queue] += 1;
                    moved = true;
                }
            }
            for agent in &mut self.running {
                let entry = &self.entries[agent.entry];
                let steps = &self.steps[entry.rank as usize][agent.role];
                while let Some((_, step)) = steps.get(agent.at) {
                    match *step {
                        CounterOp::Wait { cell, more } => {
                            if self.counts[cell] < self.all[cell] * u64::from(entry.launch) + more {
                                break;
                            }
                        }
                        CounterOp::Signal { cell, amount } => self.counts[cell] += amount,
                    }
                    agent.at += 1;
                    moved = true;
                }
            }
            for at in 0..self.entries.len() {
                if self.begun[at] && !self.done[at] {
                    let mut roles = self.running.iter().filter(|agent| agent.entry == at);
                    let steps = &self.steps[self.entries[at].rank as usize];
                    if roles.all(|agent| agent.at == steps[agent.role].len()) {
                        self.done[at] = true;
                        moved = true;
                    }
                }
            }
        }
    }
}

/// Waits and signals of a role of a kernel, in order.
fn counter_ops(pipeline: &Pipeline, plan: &Plan, rank: u32, role: usize) -> Vec<Step> {
    let kernel = &pipeline.kernel;
    let tell = |step: &unroll::Step| {
        let op = match step.kind {
            StepKind::Wait {
                counter,
                cell,
                at_least,
            } => {
                let all = plan.arrivals.target(rank as u16, counter, cell, at_least);
                let more = match kernel.counters[counter.index()].purpose.lag() {
                    0 => all * pipeline.scale(counter, plan),
                    _ => 0,
                };
                CounterOp::Wait {
                    cell: plan.arrivals.index(rank as u16, counter, cell),
                    more: more.into(),
                }
            }
            StepKind::Signal {
                counter,
                home,
                cell,
                amount,
            } => CounterOp::Signal {
                cell: plan.arrivals.index(home, counter, cell),
                amount: (amount * pipeline.scale(counter, plan)).into(),
            },
            StepKind::Copy { .. }
            | StepKind::Dot { .. }
            | StepKind::Reduce { .. }
            | StepKind::OwnTerm { .. }
            | StepKind::Load { .. }
            | StepKind::Store { .. } => return None,
        };
        Some((kernel.loc(step.op), op))
    };
    plan.agent(rank, role)
        .steps
        .iter()
        .filter_map(tell)
        .collect()
}
