//! Sum of the signals that arrive at each counter cell in one launch.

use crate::kernel::Kernel;
use crate::program::CounterId;
use crate::shape::Geometry;
use crate::unroll::{Agent, StepKind};

/// Arrivals at every counter cell in one launch. A wait without a number waits for all of them.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Arrivals {
    /// First cell of each counter within a rank's cells.
    base: Vec<u32>,
    cells: u32,
    amounts: Vec<u32>,
}

impl Arrivals {
    /// The sum of the agents' signals.
    pub(super) fn count(kernel: &Kernel, geometry: &Geometry, agents: &[Agent]) -> Arrivals {
        let mut base = Vec::with_capacity(kernel.counters.len());
        let mut cells = 0;
        for index in 0..kernel.counters.len() {
            base.push(cells);
            cells += geometry.counter_cells(CounterId(index as u16));
        }
        let mut arrivals = Arrivals {
            base,
            cells,
            amounts: vec![0; cells as usize * geometry.world as usize],
        };
        for step in agents.iter().flat_map(|agent| &agent.steps) {
            if let StepKind::Signal {
                counter,
                home,
                cell,
                amount,
            } = step.kind
            {
                let at = arrivals.index(home, counter, cell);
                arrivals.amounts[at] = arrivals.amounts[at].saturating_add(amount);
            }
        }
        arrivals
    }

    /// Expands the arrivals of a single column of tiles to all columns of `geometry`: `columned` counters have a cell
    /// for each.
    pub(crate) fn widened(
        &self,
        geometry: &Geometry,
        columned: impl Fn(CounterId) -> bool,
    ) -> Arrivals {
        let mut wide = Arrivals::default();
        let counters = || (0..self.base.len()).map(|index| CounterId(index as u16));
        for counter in counters() {
            wide.base.push(wide.cells);
            wide.cells += geometry.counter_cells(counter);
        }
        for home in 0..geometry.world as usize {
            let narrow = &self.amounts[home * self.cells as usize..][..self.cells as usize];
            for counter in counters() {
                let first = self.base[counter.index()];
                let end = self
                    .base
                    .get(counter.index() + 1)
                    .copied()
                    .unwrap_or(self.cells);
                let times = match end - first {
                    0 => 0,
                    cells if columned(counter) => geometry.counter_cells(counter) / cells,
                    _ => 1,
                };
                for amount in &narrow[first as usize..end as usize] {
                    wide.amounts
                        .extend(std::iter::repeat_n(*amount, times as usize));
                }
            }
        }
        wide
    }

    /// A cell's index among all cells of all ranks.
    pub fn index(&self, home: u16, counter: CounterId, cell: u32) -> usize {
        home as usize * self.cells as usize + (self.base[counter.index()] + cell) as usize
    }

    /// Number of cells over all ranks.
    pub fn len(&self) -> usize {
        self.amounts.len()
    }

    /// True if no counter has a cell.
    pub fn is_empty(&self) -> bool {
        self.amounts.is_empty()
    }

    /// Sum of what arrives at a cell of rank `home` in one launch.
    pub fn of(&self, home: u16, counter: CounterId, cell: u32) -> u32 {
        self.amounts[self.index(home, counter, cell)]
    }

    /// Number of arrivals that a wait waits for in one launch.
    pub fn target(&self, home: u16, counter: CounterId, cell: u32, at_least: Option<u32>) -> u32 {
        at_least.unwrap_or_else(|| self.of(home, counter, cell))
    }
}
