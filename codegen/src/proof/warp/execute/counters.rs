//! Counters between ranks: waits that join with the signals they cannot have missed.

use super::super::simulator::{CALLER, Signal, Simulator};
use super::super::trace;
use crate::diag::Diagnostic;
use crate::proof::tile::{Accessor, Wait};
use crate::shape::{Extent, covers};
use crate::undo::{Fix, undone};

impl Simulator<'_> {
    /// True if a wait is over.
    pub(super) fn counter_wait(
        &mut self,
        index: usize,
        cell: u32,
        lag: u32,
        at_least: Option<u64>,
    ) -> bool {
        let who = self.agents[index].who;
        let (count, wanted) = self.counter(index, cell, lag, at_least);
        if count < wanted {
            return false;
        }
        let id = self.next_global();
        let at = &mut self.cells[(who.rank * self.case.cells + cell) as usize];
        let knows = &mut self.agents[index].knows.global.plain;
        knows.add(id);
        at.waits.push((who.launch, at_least, id));
        // It joins with the signals it cannot have missed: all up to this launch, if only all of them reach the target.
        let upto = who.launch - lag;
        if wanted >= self.case.arrived(upto, who.rank, cell) {
            let up_to = at.signals.iter().filter(|signal| signal.launch <= upto);
            up_to.for_each(|signal| knows.join(&signal.saw));
            if self.out_of_turn.is_none() {
                self.out_of_turn = self.announced_early(index, cell, upto);
            }
        } else if let Some(least) = at_least {
            let plan = self.case.plan_of(upto);
            for part in self.case.parts(plan, who.rank, (cell, least)) {
                let theirs = at.signals.iter().filter(|signal| {
                    (signal.launch, signal.rank, signal.role) == (upto, part.rank, part.role)
                });
                let first = theirs.take(part.signals);
                first.for_each(|signal| knows.join(&signal.saw));
            }
        }
        true
    }

    /// Finding in a signal: an access that the tile level puts before it in its item, and that who waited for all
    /// signals does not know of.
    fn announced_early(&self, index: usize, cell: u32, launch: u32) -> Option<Box<Diagnostic>> {
        let off = undone(Fix::WarpOrder) || undone(Fix::WarpPlaces);
        if launch == 0 || off {
            return None;
        }
        let agent = &self.agents[index];
        let (rank, knows) = (agent.who.rank, &agent.knows.global.plain);
        let announced = self.case.announced(self.case.plan_of(launch), rank, cell)?;
        let known = |id| knows.has(id);
        let mut waits = announced.waits.iter();
        let waited = waits.find(|(waiter, wait)| !self.has_waited(*waiter, launch, wait, known));
        let what = match waited {
            Some((_, wait)) => format!("a wait for {}", self.wait_name(wait)),
            None => {
                let mut accesses = announced.accesses.iter();
                let (accessor, [rows, _]) = accesses.find(|(accessor, rectangle)| {
                    self.watched[accessor.tensor.index()]
                        && !self.has_accessed(accessor, launch, rectangle, known)
                })?;
                let name = &self.case.pipeline.kernel.buffers[accessor.tensor.index()].name;
                format!("an access of rows {}..{} of {name}", rows.start, rows.end)
            }
        };
        Some(Box::new(trace::announced_early(self, index, &what)))
    }

    /// True if accesses that `known` says are complete have all of a rectangle.
    fn has_accessed(
        &self,
        accessor: &Accessor,
        launch: u32,
        [rows, columns]: &[Extent; 2],
        known: impl Fn(u32) -> bool,
    ) -> bool {
        let touches = self.touches(accessor.tensor.index(), accessor.home).iter();
        let theirs = touches.filter(|touch| {
            touch.step != CALLER
                && (touch.who.rank, touch.who.launch) == (accessor.rank, launch)
                && touch.write == accessor.write
                && self.step_of(touch.step).role == accessor.role
                && self.case.slot(&touch.whereabouts) == accessor.slot
                && known(touch.id)
        });
        let pieces = theirs.map(|touch| {
            let at = &touch.whereabouts;
            [at.all, at.columns].map(|(start, end)| Extent { start, end })
        });
        covers(pieces, [*rows, *columns])
    }

    /// True if a rank waited in a launch for at least that much, by a wait that `known` says is over.
    pub(in crate::proof::warp) fn has_waited(
        &self,
        rank: u32,
        launch: u32,
        wait: &Wait,
        known: impl Fn(u32) -> bool,
    ) -> bool {
        let plan = self.case.plan_of(launch);
        let wanted = wait
            .at_least
            .map(|least| u64::from(least) * self.case.scale(plan, wait.counter));
        let cell = self.case.first(wait.counter) + wait.cell;
        let waits = &self.cells[(rank * self.case.cells + cell) as usize].waits;
        waits.iter().any(|(of, got, id)| {
            let enough = match (wanted, got) {
                (_, None) => true,
                (None, Some(got)) => *got >= self.case.arrivals(launch, rank, cell),
                (Some(wanted), Some(got)) => *got >= wanted,
            };
            *of == launch && enough && known(*id)
        })
    }

    /// `landed[2][0]`.
    pub(in crate::proof::warp) fn wait_name(&self, wait: &Wait) -> String {
        let kernel = &self.case.pipeline.kernel;
        self.case
            .geometry(0)
            .cell_name(kernel, wait.counter, wait.cell)
    }

    /// Number that a waiter sees, and the one that it wants. The host knows what arrives in every launch; on the GPU
    /// the base of a cell is moved on.
    pub fn counter(&self, index: usize, cell: u32, lag: u32, at_least: Option<u64>) -> (u64, u64) {
        let who = self.agents[index].who;
        let at = &self.cells[(who.rank * self.case.cells + cell) as usize];
        let base = match self.is_host(index) {
            true => self.case.arrived(who.launch - 1, who.rank, cell),
            false => at.base,
        };
        let arrivals = match lag {
            0 => at_least.unwrap_or_else(|| self.case.arrivals(who.launch, who.rank, cell)),
            _ => 0,
        };
        (at.count, base + arrivals)
    }

    pub(super) fn signal(&mut self, index: usize, rank: u32, cell: u32, amount: u64) {
        let agent = &self.agents[index];
        let signal = Signal {
            launch: agent.who.launch,
            rank: agent.who.rank,
            role: agent.steps[agent.at].role,
            saw: agent.knows.global.plain.clone(),
        };
        let at = &mut self.cells[(rank * self.case.cells + cell) as usize];
        at.count += amount;
        at.signals.push(signal);
    }
}
