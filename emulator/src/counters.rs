//! Counter cells: their values, and the signals that must precede the end of a wait.
//!
//! A wait for everything that arrives in its launch joins every signal of the cell up to that launch. A wait for less
//! joins the signals without which it cannot end. Both hold only if no signal of a later launch can be counted for an
//! earlier one, so that is checked too, if several ranks signal one cell.

use super::clocks::{Clock, Epoch, join};
use super::failure::Check;
use super::failure::FailureKind;
use super::memory::Who;
use super::setup::Setup;
use counterflow_codegen::program::CounterId;
use std::rc::Rc;

/// A cell by name and by index.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct At {
    pub counter: CounterId,
    pub home: u16,
    pub cell: u32,
}

#[derive(Clone, Debug)]
struct Signal {
    at: Epoch,
    clock: Rc<Clock>,
}

#[derive(Clone, Debug)]
struct Launch {
    launch: u32,
    sum: u64,
    signals: Vec<Signal>,
    /// The joined clock of all signals up to and including this launch's. Computed on first use.
    all: Option<Rc<Clock>>,
}

#[derive(Clone, Debug, Default)]
struct Cell {
    value: u64,
    /// In ascending order of launch.
    launches: Vec<Launch>,
    /// The last signaller, and whether it was a copy engine.
    last: Option<(Epoch, bool)>,
    /// Waits on a shared cell, with the launch whose signals they wait for.
    waits: Vec<(u32, Epoch)>,
    /// The latest signal that is not ordered after all signals of earlier launches.
    loose: Option<Epoch>,
}

#[derive(Clone)]
pub(super) struct Counters {
    cells: Vec<Cell>,
    per_rank: usize,
    /// Arrivals of all earlier launches of each rank, by plan.
    base: Vec<u64>,
}

/// A wait's target: how much, and the launch whose signals it counts.
#[derive(Clone, Copy)]
pub(super) struct Wanted {
    pub value: u64,
    amount: u64,
    arrivals: u64,
    launch: u32,
}

impl Counters {
    pub fn new(setup: &Setup<'_>) -> Counters {
        Counters {
            cells: vec![Cell::default(); setup.cells * setup.world],
            per_rank: setup.cells,
            base: vec![0; setup.cells * setup.world],
        }
    }

    fn index(&self, setup: &Setup<'_>, at: At) -> usize {
        usize::from(at.home) * self.per_rank + setup.flat(at.counter, at.cell)
    }

    pub fn value(&self, setup: &Setup<'_>, at: At) -> u64 {
        self.cells[self.index(setup, at)].value
    }

    /// The target of a wait in `launch`. `None` if it is satisfied at once.
    pub fn wanted(
        &self,
        setup: &Setup<'_>,
        launch: u32,
        at: At,
        at_least: Option<u32>,
    ) -> Option<Wanted> {
        let lag = setup.kernel.counters[at.counter.index()].purpose.lag();
        let counted = launch.checked_sub(lag)?;
        let arrivals = |launch: u32| {
            Setup::arrivals(setup.plan(launch, at.home), at.home, at.counter, at.cell)
        };
        let since: u64 = (counted..launch).map(arrivals).sum();
        let base = self.base[self.index(setup, at)].saturating_sub(since);
        let all = arrivals(counted);
        let amount = at_least.map_or(all, u64::from);
        Some(Wanted {
            value: base + amount,
            amount,
            arrivals: all,
            launch: counted,
        })
    }

    /// Adds to a cell; `stores` for a copy engine, which stores its own count.
    pub fn signal(
        &mut self,
        setup: &Setup<'_>,
        who: &Who<'_>,
        clock: &Rc<Clock>,
        at: At,
        amount: u32,
        stores: bool,
    ) -> Check<()> {
        let index = self.index(setup, at);
        let launch = who.at.launch;
        let shared = setup.is_shared(at.home, setup.flat(at.counter, at.cell));
        let cell = &mut self.cells[index];
        let (from, to) = (cell.value, cell.value + u64::from(amount));
        let mixed = cell.last.is_some_and(|(last, stored)| {
            (stored || stores) && (last.rank, last.role) != (who.at.rank, who.at.role)
        });
        if amount == 0 || mixed {
            return Err(Box::new(FailureKind::CounterDecrease {
                by: setup.site(&who.at, "signals"),
                on: setup.cell_name(at.home, at.counter, at.cell),
                from,
                to: if mixed { u64::from(amount) } else { to },
            }));
        }
        if shared {
            cell.check_signal(setup, who, at)?;
        }
        cell.last = Some((who.at, stores));
        cell.value = to;
        let position = cell.launches.partition_point(|known| known.launch < launch);
        if cell
            .launches
            .get(position)
            .is_none_or(|known| known.launch != launch)
        {
            let new = Launch {
                launch,
                sum: 0,
                signals: Vec::new(),
                all: None,
            };
            cell.launches.insert(position, new);
        }
        for later in &mut cell.launches[position..] {
            later.all = None;
        }
        let known = &mut cell.launches[position];
        known.sum += u64::from(amount);
        known.signals.push(Signal {
            at: who.at,
            clock: clock.clone(),
        });
        Ok(())
    }

    /// A satisfied wait: joins into `clock` the signals that must precede its end.
    pub fn acquire(
        &mut self,
        setup: &Setup<'_>,
        at: Epoch,
        clock: &mut Rc<Clock>,
        cell_at: At,
        wanted: Wanted,
    ) -> Check<()> {
        let index = self.index(setup, cell_at);
        let flat = setup.flat(cell_at.counter, cell_at.cell);
        let counted = wanted.launch;
        let cell = &mut self.cells[index];
        let fail = |other: Option<&Epoch>| {
            Err(Box::new(FailureKind::Attribution {
                by: setup.site(&at, "waits on"),
                on: setup.cell_name(cell_at.home, cell_at.counter, cell_at.cell),
                other: other.map(|other| setup.site(other, "signals")),
            }))
        };
        let mine = setup.plan(counted, cell_at.home).hash;
        let seen = || cell.launches.iter().filter(|known| known.launch <= counted);
        for known in seen().filter(|known| known.launch == counted) {
            for signal in &known.signals {
                let theirs = setup.plan(counted, signal.at.rank).hash;
                if theirs != mine {
                    return Err(Box::new(FailureKind::Mismatch {
                        by: setup.site(&at, "waits on"),
                        peer: signal.at.rank,
                        hashes: (mine, theirs),
                    }));
                }
            }
        }
        if let Some(loose) = cell.loose.filter(|loose| loose.launch > counted) {
            return fail(Some(&loose));
        }
        let arrived: u64 = seen().map(|known| known.sum).sum();
        if arrived < wanted.value {
            let later = cell.launches.iter().find(|known| known.launch > counted);
            return fail(
                later
                    .and_then(|known| known.signals.first())
                    .map(|signal| &signal.at),
            );
        }
        if wanted.amount >= wanted.arrivals {
            if let Some(all) = cell.all(counted) {
                join(clock, &all);
            }
        } else {
            if let Some(all) = counted.checked_sub(1).and_then(|before| cell.all(before)) {
                join(clock, &all);
            }
            let amount = u32::try_from(wanted.amount).unwrap_or(u32::MAX);
            for (rank, role, step) in &*setup.needed(counted, cell_at.home, flat, amount) {
                let signals = cell
                    .launches
                    .iter()
                    .filter(|known| known.launch == counted)
                    .flat_map(|known| &known.signals);
                for signal in signals {
                    if (signal.at.rank, signal.at.role, signal.at.step) == (*rank, *role, *step) {
                        join(clock, &signal.clock);
                        Rc::make_mut(clock).learn(&signal.at);
                    }
                }
            }
        }
        if setup.is_shared(cell_at.home, flat) {
            cell.waits.push((counted, at));
        }
        Ok(())
    }

    /// Advances a rank's bases at the end of a launch, as in its device memory.
    pub fn end(&mut self, setup: &Setup<'_>, rank: u16, launch: u32) {
        let plan = setup.plan(launch, rank);
        for index in 0..setup.kernel.counters.len() {
            let counter = CounterId(index as u16);
            for cell in 0..plan.geometry.counter_cells(counter) {
                let at = usize::from(rank) * self.per_rank + setup.flat(counter, cell);
                self.base[at] += Setup::arrivals(plan, rank, counter, cell);
            }
        }
    }
}

impl Cell {
    /// The joined clock of all signals up to and including those of `launch`.
    fn all(&mut self, launch: u32) -> Option<Rc<Clock>> {
        let upto = self
            .launches
            .partition_point(|known| known.launch <= launch);
        let known = &self.launches[..upto];
        let ready = known.iter().rposition(|known| known.all.is_some());
        let mut all = ready.and_then(|at| known[at].all.clone());
        for known in &mut self.launches[ready.map_or(0, |at| at + 1)..upto] {
            for signal in &known.signals {
                let all = all.get_or_insert_with(|| signal.clock.clone());
                join(all, &signal.clock);
                Rc::make_mut(all).learn(&signal.at);
            }
            known.all.clone_from(&all);
        }
        all
    }

    /// A signal must come after all signals of earlier launches, or after all waits for them: otherwise one of those
    /// waits could count it.
    fn check_signal(&mut self, setup: &Setup<'_>, who: &Who<'_>, at: At) -> Check<()> {
        let launch = who.at.launch;
        let expected: u64 = (0..launch)
            .map(|launch| {
                Setup::arrivals(setup.plan(launch, at.home), at.home, at.counter, at.cell)
            })
            .sum();
        let earlier = || self.launches.iter().filter(|known| known.launch < launch);
        let arrived: u64 = earlier().map(|known| known.sum).sum();
        let ordered = arrived >= expected
            && earlier()
                .flat_map(|known| &known.signals)
                .all(|signal| who.clock.covers(&signal.at));
        if ordered {
            return Ok(());
        }
        let missed = self
            .waits
            .iter()
            .find(|(counted, wait)| *counted < launch && !who.clock.covers(wait));
        if let Some((_, wait)) = missed {
            return Err(Box::new(FailureKind::Attribution {
                by: setup.site(&who.at, "signals"),
                on: setup.cell_name(at.home, at.counter, at.cell),
                other: Some(setup.site(wait, "waits on")),
            }));
        }
        if self.loose.is_none_or(|loose| loose.launch < launch) {
            self.loose = Some(who.at);
        }
        Ok(())
    }
}
