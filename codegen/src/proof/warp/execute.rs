//! Steps, and what each does: barriers with phases, stores and multiplies in groups, counters with bases.

mod barriers;
mod cluster;
mod counters;
mod end;
mod everywhere;
mod lanes;
mod partials;

use super::held::{Content, Phase, Short};
use super::seen::By;
use super::simulator::Simulator;
use super::step::Kind;
use super::trace;
use crate::diag::Diagnostic;
use crate::warp::Scope;

/// Outcome of a step.
pub(super) enum Did {
    Step,
    Blocked,
    BlockedOnCounter,
}

impl Simulator<'_> {
    /// True if a step loads what no launch writes: that needs no end of earlier ones.
    fn is_constant(&self, kind: &Kind) -> bool {
        let kernel = &self.case.pipeline.kernel;
        matches!(kind, Kind::Load { from, .. } if kernel.is_constant(from.tensor))
    }

    /// Takes an agent's next step, if it can be taken; waits on counters only if it may.
    pub(super) fn step(&mut self, index: usize, counters: bool) -> Result<Did, Box<Diagnostic>> {
        let at = self.agents[index].at;
        let steps = self.agents[index].steps;
        let kind = &steps[at].kind;
        let (cta, who) = (self.agents[index].cta, self.agents[index].who);
        if kind.is_global() && !self.agents[index].awaited && !self.is_constant(kind) {
            return Err(Box::new(trace::before_the_wait(self, index)));
        }
        let mut skipped = 0;
        match *kind {
            Kind::TestWait { barrier, phases } => self.follows(index, barrier, phases)?,
            Kind::Await { barrier, phases } => {
                self.follows(index, barrier, phases)?;
                let number = self.number(index, barrier);
                let at = &self.ctas[cta].barriers[barrier];
                if at.phase > phases {
                    return Err(Box::new(trace::too_late(self, index)));
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
                self.bytes(index, cta, barrier, i64::from(bytes))?;
                self.arrive(cta, barrier, 1, index)?;
            }
            Kind::Arrive {
                barrier,
                count,
                ctas,
            } => {
                for rank in ctas.ranks() {
                    let at = self.at_rank(index, rank)?;
                    self.arrive(at, barrier, count, index)?;
                }
            }
            Kind::Load {
                ctas,
                area,
                barrier,
                bytes,
                from,
            } => {
                if let Some(end) = from.spills {
                    return Err(Box::new(trace::spills(self, index, &from, end)));
                }
                self.tma_takes(index, area, &from, false)?;
                let read = self.touch_global(index, from, (false, By::Tma))?;
                for rank in ctas.ranks() {
                    let cta = self.at_rank(index, rank)?;
                    let id = self.touch_shared(index, cta, area, true, true)?;
                    let before = self.ctas[cta].barriers[barrier].phase;
                    self.put(cta, area, Content::Box(from, Phase { barrier, before }));
                    self.reaches(index, cta, barrier);
                    self.bytes(index, cta, barrier, -i64::from(bytes))?;
                    let at = &mut self.ctas[cta].barriers[barrier];
                    // Its bytes land with a release of what this load itself did. What its thread had seen before is not
                    // passed on by that (PTX ISA, Memory Consistency Model, Program Order, Asynchronous Operations: the
                    // implicit complete-tx is ordered with the same instruction's accesses alone). An arrival does that.
                    match at.scope {
                        Scope::Cta | Scope::Cluster => at.gathers.shared.both(id),
                        Scope::Own | Scope::Relaxed => at.gathers.shared.over.add(id),
                    }
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
                if let Some(end) = to.spills {
                    return Err(Box::new(trace::spills(self, index, &to, end)));
                }
                self.tma_takes(index, area, &to, true)?;
                self.stored(index, area, &to)?;
                let write = self.touch_global(index, to, (true, By::Tma))?;
                self.agents[index].open.push((read, write));
            }
            Kind::StorePart { area, ref to } => self.store_part(index, area, to)?,
            Kind::StoreEverywhere { area, ref to } => self.store_everywhere(index, area, to)?,
            Kind::SumEverywhere { area, ref from } => self.sum_everywhere(index, area, from)?,
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
                product,
                piece,
                areas,
                before,
                barrier,
                fresh,
            } => {
                for area in areas {
                    let id = self.touch_shared(index, cta, area, false, true)?;
                    self.agents[index].open_mma.push((id, product));
                }
                let over = self.ctas[cta].barriers[barrier].phase;
                let phase = Phase {
                    barrier,
                    before: over.wrapping_sub(1),
                };
                let of = (
                    self.agents[index].steps[self.agents[index].at].tiling,
                    product,
                );
                let began = self.multiplied(index, of, areas, (before, phase), fresh, piece)?;
                let promotion = self.case.pipeline.tiling_of(of.0).promotion();
                let short = began.zip(piece).map(|(of_piece, piece)| Short {
                    product,
                    piece,
                    of: of_piece,
                    left: (0..promotion.map_or(1, |it| it.shares)).collect(),
                });
                self.agents[index].fragment.short = short;
            }
            Kind::MmaCommit => {
                let agent = &mut self.agents[index];
                let group = std::mem::take(&mut agent.open_mma);
                agent.mma.push(group);
            }
            Kind::MmaWait { pending } => {
                let agent = &mut self.agents[index];
                let done = agent.mma.len().saturating_sub(pending);
                for (read, _) in agent.mma.drain(..done).flatten() {
                    agent.knows.shared.both(read);
                }
            }
            Kind::Fragment(step) => self.fragment(index, step)?,
            Kind::FenceShared => {
                let agent = &mut self.agents[index];
                agent.knows.shared.fence();
                agent.lanes.fence_shared();
            }
            Kind::FenceAlias => {
                let agent = &mut self.agents[index];
                agent.knows.global.fence_alias();
                agent.lanes.fence_alias();
            }
            Kind::SyncWarp => self.agents[index].meet_lanes(),
            Kind::FenceGlobal => self.agents[index].knows.global.fence(),
            Kind::CounterWait {
                cell,
                lag,
                at_least,
            } => {
                if !counters || !self.counter_wait(index, cell, lag, at_least) {
                    return Ok(Did::BlockedOnCounter);
                }
                self.agents[index].lanes.one_waited();
            }
            Kind::CopyScales { from, to } => {
                if (from.all, from.columns) != (to.all, to.columns) {
                    let what = "the numbers are of other rows";
                    return Err(Box::new(trace::wrong(self, index, what)));
                }
                for (at, write) in [(from, false), (to, true)] {
                    self.touch_ordinarily(index, at, write)?;
                }
            }
            Kind::HostCopy { from, to } => {
                for (at, write) in [(from, false), (to, true)] {
                    if let Some(id) = self.touch_global(index, at, (write, By::Tma))? {
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
