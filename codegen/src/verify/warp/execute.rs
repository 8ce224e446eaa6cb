//! The machine that runs the steps: barriers with phases, stores and multiplies in groups, counters with bases.

mod barriers;
mod cluster;
mod counters;
mod end;
mod pace;
mod sums;

pub(super) use pace::Pace;

use super::case::Case;
use super::content::{Content, Phase, Product, Verdict};
use super::programs::Programs;
use super::seen::{Bits, Knows, Seen};
use super::step::{Area, Box4, Kind, Step};
use super::story;
use crate::diag::Diagnostic;
use crate::kernel::Buffer;
use crate::pipeline::{Node, Scope};
use crate::undo::{Fix, undone};

/// Who runs: a role of a CTA of a rank in a launch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Who {
    pub rank: u32,
    pub launch: u32,
    pub block: u32,
    pub warp: usize,
}

pub(super) struct Agent<'a> {
    pub who: Who,
    pub steps: &'a [Step<'a>],
    pub at: usize,
    pub(super) knows: Knows,
    /// Stores not yet in a group; then groups in flight, oldest first.
    open: Vec<(u32, Option<u32>)>,
    groups: Vec<Vec<(u32, Option<u32>)>>,
    /// How many of the groups have been waited for as read.
    read: usize,
    open_mma: Vec<u32>,
    mma: Vec<Vec<u32>>,
    /// The signal it holds back.
    pub pending: Option<(u32, u32, u64)>,
    pub(super) cta: usize,
    /// Waits that its warps are past, each of them for itself.
    past: Bits,
    /// The tile product in its registers.
    pub(super) product: Product,
    synced: bool,
    /// Whether the launches before are complete as far as it knows.
    awaited: bool,
}

/// A barrier of shared memory.
#[derive(Default)]
struct Barrier {
    expected: u32,
    arrived: u32,
    bytes: i64,
    phase: u32,
    /// The waits for the last complete phase, and for the one before the first: number, agent and step.
    waits: Vec<(u32, usize, usize)>,
    /// Whether other CTAs' arrivals order their accesses, too.
    hands_over: bool,
    /// What the arrivals of the current phase saw, and of the last complete one.
    gathers: Knows,
    gave: Knows,
}

pub(super) struct Cta {
    barriers: Vec<Barrier>,
    pub(super) shared: Vec<Touch<Area>>,
    /// What lies where.
    pub(super) held: Vec<(Area, Content)>,
    ids: u32,
    /// By the first CTA of a cluster: how many waits its agents are past.
    waits: u32,
    /// By the first CTA of a cluster: the steps that reach from one of its CTAs into another.
    reaches: Vec<(usize, usize)>,
    synced: u32,
    gathers: Knows,
    gave: Knows,
    agents: u32,
}

/// An access that later ones may conflict with.
#[derive(Clone, Copy)]
pub(super) struct Touch<W> {
    pub id: u32,
    pub whereabouts: W,
    pub write: bool,
    pub who: Who,
    /// The step, in its agent's list.
    pub step: (usize, usize),
}

/// A counter cell.
#[derive(Default)]
struct Cell {
    count: u64,
    base: u64,
    /// The launch of each signal, how much it added, and what its sender saw.
    signals: Vec<(u32, u64, Bits)>,
}

pub(super) struct Machine<'a> {
    pub case: &'a Case<'a>,
    programs: &'a Programs<'a>,
    pub agents: Vec<Agent<'a>>,
    pub(super) ctas: Vec<Cta>,
    cells: Vec<Cell>,
    /// Accesses of global memory, by tensor and rank.
    pub(super) global: Vec<Vec<Touch<Box4>>>,
    pub(super) global_ids: u32,
    /// By rank: its launch, CTAs that came to the end, and what launches ended saw.
    launch: Vec<u32>,
    came: Vec<u32>,
    ended: Vec<Knows>,
    /// By launch and rank: what a launch had seen when it ended.
    pub(super) ends: Vec<Vec<Bits>>,
    finishing: Vec<Knows>,
    /// Tensors whose accesses are looked at.
    pub(super) watched: Vec<bool>,
}

impl<'a> Agent<'a> {
    fn new(who: Who, steps: &'a [Step<'a>], knows: &Knows, cta: usize) -> Self {
        Agent {
            who,
            steps,
            at: 0,
            knows: knows.clone(),
            open: Vec::new(),
            groups: Vec::new(),
            read: 0,
            open_mma: Vec::new(),
            mma: Vec::new(),
            pending: None,
            cta,
            past: Bits::default(),
            product: Product::default(),
            synced: false,
            awaited: true,
        }
    }
}

impl Cta {
    fn new(barriers: Vec<Barrier>) -> Self {
        Cta {
            barriers,
            shared: Vec::new(),
            held: Vec::new(),
            ids: 0,
            waits: 0,
            reaches: Vec::new(),
            synced: 0,
            gathers: Knows::default(),
            gave: Knows::default(),
            agents: 0,
        }
    }
}

enum Did {
    Step,
    Blocked,
    BlockedOnCounter,
}

/// Runs all agents of the case.
///
/// # Errors
/// The first thing that goes wrong.
pub(super) fn run(case: &Case<'_>, programs: &Programs<'_>, pace: Pace) -> Verdict {
    let mut machine = Machine::new(case, programs);
    machine.begin()?;
    match pace {
        Pace::Late => machine.late()?,
        Pace::Ahead => machine.ahead()?,
    }
    machine.covered()
}

impl<'a> Machine<'a> {
    fn new(case: &'a Case<'a>, programs: &'a Programs<'a>) -> Self {
        // Scratch is always looked at: what no store writes must not be read. So is what other ranks reach.
        let reached = |buffer: &Buffer| buffer.kind.symmetric() && !undone(Fix::WarpOrder);
        let buffers = case.pipeline.kernel.buffers.iter();
        let mut watched: Vec<bool> = buffers
            .map(|buffer| buffer.is_scratch() || reached(buffer))
            .collect();
        case.pipeline.visit(|node| {
            if let Node::Store { map, .. } = node {
                watched[case.pipeline.map(*map).tensor.index()] = true;
            }
        });
        let world = case.world as usize;
        Machine {
            case,
            programs,
            agents: Vec::new(),
            ctas: Vec::new(),
            cells: (0..case.world * case.cells)
                .map(|_| Cell::default())
                .collect(),
            global: (0..watched.len() * world).map(|_| Vec::new()).collect(),
            global_ids: 0,
            launch: vec![0; world],
            came: vec![0; world],
            ended: vec![Knows::default(); world],
            ends: vec![vec![Bits::default(); world]; case.last() as usize + 1],
            finishing: vec![Knows::default(); world],
            watched,
        }
    }

    /// Starts the next launch of a rank.
    fn start(&mut self, rank: u32) {
        let launch = self.launch[rank as usize] + 1;
        self.launch[rank as usize] = launch;
        self.came[rank as usize] = 0;
        let mut knows = Knows::default();
        knows.global.plain = self.ended[rank as usize].global.plain.clone();
        knows.global.proxy = knows.global.plain.clone();
        self.finishing[rank as usize] = Knows::default();
        let pipeline = self.case.pipeline;
        for _ in 0..self.case.blocks {
            let barriers = pipeline.rings.iter().flat_map(|ring| {
                // A ring that CTAs fill together orders what tensor cores read; see `Ring::ctas`.
                let hands_over = ring.exchange != Some(Scope::Cta);
                let some = move |expected| Barrier {
                    expected,
                    hands_over,
                    ..Barrier::default()
                };
                let sides = (0..ring.barriers()).map(|index| index < ring.all());
                sides.map(move |full| some(if full { ring.full } else { ring.empty }))
            });
            // The turns: four warps of the other consumer arrive.
            let turns = (0..pipeline.turns()).map(|_| Barrier {
                expected: 4,
                ..Barrier::default()
            });
            let barriers = barriers.chain(turns);
            self.ctas.push(Cta::new(barriers.collect()));
        }
        let first = self.ctas.len() - self.case.blocks as usize;
        for program in self.programs.of(self.case.plan_of(launch), rank) {
            let who = Who {
                rank,
                launch,
                block: program.block,
                warp: program.warp,
            };
            let mut agent = Agent::new(who, &program.steps, &knows, first + program.block as usize);
            if program.warp < pipeline.warps.len() {
                agent.awaited = !pipeline.early;
                self.ctas[agent.cta].agents += 1;
            } else {
                // Its stream is no warp of any CTA.
                agent.cta = self.ctas.len();
                self.ctas.push(Cta::new(Vec::new()));
            }
            self.agents.push(agent);
        }
    }

    /// Whether an agent is what the host enqueued.
    pub(super) fn is_host(&self, index: usize) -> bool {
        self.agents[index].who.warp == self.case.pipeline.warps.len()
    }

    /// Ends launches whose agents are done and starts the next ones.
    fn next_launches(&mut self) -> Result<bool, Box<Diagnostic>> {
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
    fn begin(&mut self) -> Verdict {
        for rank in 0..self.case.world {
            let mut seen = Seen::default();
            self.caller(rank, 0, &mut seen)?;
            self.ended[rank as usize].global = seen;
            self.start(rank);
        }
        Ok(())
    }

    fn done(&self) -> bool {
        self.agents
            .iter()
            .all(|agent| agent.at >= agent.steps.len())
    }

    fn step(&mut self, index: usize, counters: bool) -> Result<Did, Box<Diagnostic>> {
        let at = self.agents[index].at;
        let steps = self.agents[index].steps;
        let kind = &steps[at].kind;
        let (cta, who) = (self.agents[index].cta, self.agents[index].who);
        if kind.is_global() && !self.agents[index].awaited {
            return Err(Box::new(story::before_the_wait(self, index)));
        }
        let mut skipped = 0;
        match *kind {
            Kind::Await { barrier, phases } => {
                let at = &self.ctas[cta].barriers;
                let (number, at) = (
                    (cta - self.leader(index)) * at.len() + barrier,
                    &at[barrier],
                );
                if self.agents[index].knows.phases(number) + 1 < phases {
                    return Err(Box::new(story::a_lap_behind(self, index)));
                }
                if at.phase > phases {
                    return Err(Box::new(story::too_late(self, index)));
                }
                if at.phase < phases {
                    return Ok(Did::Blocked);
                }
                let knows = &mut self.agents[index].knows;
                knows.join(&at.gave);
                knows.over(number, phases);
                self.passes(index, barrier);
            }
            Kind::Expect { barrier, bytes } => {
                self.ctas[cta].barriers[barrier].bytes += i64::from(bytes);
                self.arrive(cta, barrier, 1, index)?;
            }
            Kind::Arrive {
                barrier,
                count,
                ref ctas,
            } => {
                for rank in ctas.iter().copied() {
                    let at = self.at_rank(index, rank)?;
                    self.arrive(at, barrier, count, index)?;
                }
            }
            Kind::Load {
                ref ctas,
                area,
                barrier,
                bytes,
                from,
            } => {
                let read = self.touch_global(index, from, false)?;
                for rank in ctas.iter().copied() {
                    let cta = self.at_rank(index, rank)?;
                    let id = self.touch_shared(index, cta, area, true, true)?;
                    let before = self.ctas[cta].barriers[barrier].phase;
                    self.put(cta, area, Content::Box(from, Phase { barrier, before }));
                    self.reaches(index, cta, barrier);
                    let at = &mut self.ctas[cta].barriers[barrier];
                    at.bytes -= i64::from(bytes);
                    at.gathers.shared.both(id);
                    if let Some(read) = read {
                        at.gathers.global.both(read);
                    }
                    if !self.is_group(index) {
                        self.tells_past(index, cta, barrier);
                    }
                    self.complete(index, cta, barrier)?;
                }
            }
            Kind::Store { area, to } => {
                let read = self.touch_shared(index, cta, area, false, true)?;
                if to.rows.1 > to.allowed {
                    return Err(Box::new(story::spills(self, index, &to)));
                }
                self.stored(index, area, &to)?;
                let write = self.touch_global(index, to, true)?;
                self.agents[index].open.push((read, write));
            }
            Kind::Commit => {
                let agent = &mut self.agents[index];
                let group = std::mem::take(&mut agent.open);
                agent.groups.push(group);
            }
            Kind::AwaitRead { pending } => {
                let agent = &mut self.agents[index];
                let done = agent.groups.len().saturating_sub(pending).max(agent.read);
                for (read, _) in agent.groups[agent.read..done].iter().flatten() {
                    agent.knows.shared.both(*read);
                }
                agent.read = done;
            }
            Kind::AwaitStores { pending } => {
                let agent = &mut self.agents[index];
                let done = agent.groups.len().saturating_sub(pending);
                for (read, write) in agent.groups.drain(..done).flatten() {
                    agent.knows.shared.both(read);
                    if let Some(write) = write {
                        agent.knows.global.both(write);
                    }
                }
                agent.read = agent.read.saturating_sub(done);
            }
            Kind::Mma {
                areas,
                before,
                barrier,
                fresh,
            } => {
                for area in areas {
                    let id = self.touch_shared(index, cta, area, false, true)?;
                    self.agents[index].open_mma.push(id);
                }
                let over = self.ctas[cta].barriers[barrier].phase;
                let phase = Phase {
                    barrier,
                    before: over.wrapping_sub(1),
                };
                self.multiplied(index, areas, (before, phase), fresh)?;
            }
            Kind::MmaCommit => {
                let agent = &mut self.agents[index];
                let group = std::mem::take(&mut agent.open_mma);
                agent.mma.push(group);
            }
            Kind::MmaWait { pending } => {
                let agent = &mut self.agents[index];
                let done = agent.mma.len().saturating_sub(pending);
                for read in agent.mma.drain(..done).flatten() {
                    agent.knows.shared.both(read);
                }
            }
            Kind::WritePanel {
                area,
                part,
                epilogue,
            } => {
                let id = self.touch_shared(index, cta, area, true, false)?;
                self.agents[index].knows.shared.plain.add(id);
                self.written_panel(index, area, part, epilogue)?;
            }
            Kind::AddPanel { area, panel, part } => {
                let id = self.touch_shared(index, cta, area, false, false)?;
                self.agents[index].knows.shared.plain.add(id);
                self.added(index, panel, part)?;
            }
            Kind::ReadPanel { area, panel, acc } => {
                let id = self.touch_shared(index, cta, area, false, false)?;
                self.agents[index].knows.shared.plain.add(id);
                self.read_panel(index, panel, acc)?;
            }
            Kind::ReadVector {
                acc,
                tensor,
                column,
            } => self.read_vector(index, acc, tensor, column)?,
            Kind::Apply { epilogue, part } => self.applied(index, epilogue, part)?,
            Kind::SendSum {
                cta: to,
                area,
                barrier,
                part,
            } => self.send_sum(index, to, area, (barrier, part))?,
            Kind::AddSum { area, part } => {
                let id = self.touch_shared(index, cta, area, false, false)?;
                self.agents[index].knows.shared.plain.add(id);
                self.added_sum(index, area, part)?;
            }
            Kind::FenceShared => self.agents[index].knows.shared.fence(),
            Kind::FenceGlobal => self.agents[index].knows.global.fence(),
            Kind::CounterWait {
                cell,
                lag,
                at_least,
            } => {
                if !counters || !self.counter_wait(index, cell, lag, at_least) {
                    return Ok(Did::BlockedOnCounter);
                }
            }
            Kind::HostCopy { from, to } => {
                for (at, write) in [(from, false), (to, true)] {
                    if let Some(id) = self.touch_global(index, at, write)? {
                        self.agents[index].knows.global.both(id);
                    }
                }
            }
            Kind::CounterAdvance { cell } => {
                let arrivals = self.case.arrivals(who.launch, who.rank, cell);
                self.cells[(who.rank * self.case.cells + cell) as usize].base += arrivals;
            }
            Kind::CounterAdd { rank, cell, amount } => self.signal(index, rank, cell, amount),
            Kind::Defer { rank, cell, amount } => {
                self.agents[index].pending = Some((rank, cell, amount))
            }
            Kind::Flush => {
                if let Some((rank, cell, amount)) = self.agents[index].pending.take() {
                    self.signal(index, rank, cell, amount);
                }
            }
            Kind::AwaitLaunches => self.agents[index].awaited = true,
            Kind::Sync { everywhere } => {
                if !self.meet(index, everywhere) {
                    return Ok(Did::Blocked);
                }
            }
            Kind::Last { skip } => {
                let rank = who.rank as usize;
                self.came[rank] += 1;
                self.finishing[rank]
                    .global
                    .join(&self.agents[index].knows.global);
                if self.came[rank] == self.case.blocks {
                    let all = self.finishing[rank].global.clone();
                    self.agents[index].knows.global.join(&all);
                } else {
                    skipped = skip;
                }
            }
        }
        self.agents[index].at += 1 + skipped;
        if self.agents[index].at >= self.agents[index].steps.len() {
            self.may_end(index)?;
        }
        Ok(Did::Step)
    }
}
