//! Tables on the GPU of how much arrives at a rank's cells: one for each launched class of shapes, so that a launch of
//! a known class copies nothing.

use super::cells::Cells;
use super::how::How;
use super::which::{Known, Which};
use crate::communicator::Communicator;
use crate::driver::{Address, Local, write};
use crate::error::Error;
use counterflow_codegen::plan::{Arrivals, Plan};
use counterflow_codegen::program::CounterId;
use counterflow_codegen::warp::Pipeline;
use std::sync::Arc;

/// Most classes that are kept, unless graphs read more: a serving engine has a handful of batch sizes.
pub(super) const MOST: usize = 32;

/// The tables.
#[derive(Debug)]
pub(super) struct Tables {
    /// For so many tables each. One more whenever graphs read all there are.
    memory: Vec<Local<u32>>,
    cells: usize,
    known: Vec<Table>,
    /// The table that is replaced next, once all are used.
    oldest: usize,
    /// The plan that was asked for last, and its table.
    latest: Option<(Known, usize)>,
}

/// One of them.
#[derive(Debug)]
struct Table {
    arrivals: Arc<Arrivals>,
    /// For every counter. A plan's K decides it.
    scales: Vec<u32>,
    /// For every rank, if the host signals or waits; otherwise empty.
    everyone: Vec<u32>,
    /// Graphs hold it whose launches read the table: then it stays.
    read: Arc<()>,
    /// True if a stream that somebody else records reads it: then it stays for ever.
    captured: bool,
}

impl Table {
    fn is_read(&self) -> bool {
        self.captured || Arc::strong_count(&self.read) > 1
    }
}

impl Tables {
    /// Tables for ranks with this many cells.
    pub fn new(rank: &Communicator, cells: usize) -> Result<Tables, Error> {
        Ok(Tables {
            memory: vec![Local::zeros(rank.own_stream(), cells * MOST)?],
            cells,
            known: Vec::new(),
            oldest: 0,
            latest: None,
        })
    }

    /// The address of this rank's table for a plan, in stream order.
    ///
    /// # Errors
    /// [`Error::NotYet`] if a table would have to be copied while the rank's own stream is captured; what the driver
    /// refuses.
    pub fn of(
        &mut self,
        rank: &Communicator,
        pipeline: &Pipeline,
        plan: &Plan,
        (cells, how): (&Cells, &How<'_>),
        capturing: bool,
    ) -> Result<Address, Error> {
        let counters = || (0..pipeline.kernel.counters.len()).map(|index| CounterId(index as u16));
        let scales = || counters().map(|counter| pipeline.scale(counter, plan));
        let same = |table: &Table| {
            (Arc::ptr_eq(&table.arrivals, &plan.arrivals) || table.arrivals == plan.arrivals)
                && scales().eq(table.scales.iter().copied())
        };
        let latest = self.latest.as_ref();
        let latest = latest.filter(|(latest, _)| latest.is(Which::of(plan)));
        let known = latest.map(|(_, at)| *at);
        let at = match known.or_else(|| self.known.iter().position(same)) {
            Some(at) => at,
            None if capturing && how.keeps.is_none() => {
                return Err(Error::NotYet {
                    what: format!(
                        "capturing {} before it was launched: the first launch copies its arrival counts",
                        plan.shape
                    ),
                    help: "launch it once without capture".into(),
                });
            }
            None => {
                let at = self.free(rank)?;
                self.oldest = at + 1;
                let host = pipeline
                    .kernel
                    .roles
                    .iter()
                    .any(|role| role.kind.sequential());
                let ranks = 0..if host { rank.world() } else { 0 };
                let table = Table {
                    arrivals: plan.arrivals.clone(),
                    scales: scales().collect(),
                    everyone: ranks
                        .flat_map(|rank| pipeline.arrivals(plan, rank))
                        .collect(),
                    read: Arc::default(),
                    captured: false,
                };
                let mine = cells.spread(&pipeline.arrivals(plan, rank.rank()));
                write(rank.own_stream(), self.address(at), &mine)?;
                match self.known.get_mut(at) {
                    Some(known) => *known = table,
                    None => self.known.push(table),
                }
                at
            }
        };
        if known.is_none() {
            self.latest = Some((Which::of(plan).kept(), at));
        }
        let table = &mut self.known[at];
        match how.keeps {
            Some(graph) => graph.keep(table.read.clone()),
            None => table.captured |= capturing,
        }
        Ok(self.address(at))
    }

    /// The arrivals on every rank, by the plan that was asked for last.
    pub fn everyone(&self) -> &[u32] {
        let latest = self.latest.as_ref();
        latest.map_or(&[], |(_, at)| &self.known[*at].everyone)
    }

    /// The place for another table.
    fn free(&mut self, rank: &Communicator) -> Result<usize, Error> {
        let (known, room) = (self.known.len(), self.memory.len() * MOST);
        if known < room {
            return Ok(known);
        }
        let mut places = (0..known).map(|next| (self.oldest + next) % known);
        if let Some(free) = places.find(|at| !self.known[*at].is_read()) {
            return Ok(free);
        }
        let more = Local::zeros(rank.own_stream(), self.cells * MOST)?;
        self.memory.push(more);
        Ok(known)
    }

    fn address(&self, table: usize) -> Address {
        let memory = self.memory[table / MOST].address();
        memory.plus((table % MOST * self.cells * 4) as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedules::product;
    use counterflow_codegen::lower::lower;
    use counterflow_codegen::machine::Machine;
    use counterflow_codegen::shape::Shape;
    use counterflow_codegen::variant::Variant;
    use counterflow_codegen::verify;

    #[test]
    fn a_table_is_free_again_when_the_graphs_that_read_it_are_gone() {
        let ranks = Communicator::emulated(1).expect("ranks");
        let mut tables = Tables::new(&ranks[0], 4).expect("memory");
        let kernel = lower(&product((64, 64)), &Variant::new(1)).and_then(verify::kernel);
        let shape = Shape::new(64, 64, 64);
        let plan = verify::plan(&kernel.expect("a kernel"), &shape, &Machine::h200());
        let arrivals = plan.expect("a plan").arrivals.clone();
        for at in 0..MOST {
            assert_eq!(tables.free(&ranks[0]).ok(), Some(at));
            tables.known.push(Table {
                arrivals: arrivals.clone(),
                scales: Vec::new(),
                everyone: Vec::new(),
                read: Arc::default(),
                captured: at == 5,
            });
        }
        let graphs: Vec<_> = tables
            .known
            .iter()
            .map(|table| table.read.clone())
            .collect();
        for (at, graph) in graphs.into_iter().enumerate() {
            drop(graph);
            // Somebody else's recording keeps number 5 for ever.
            tables.oldest = at;
            let free = (at != 5).then_some(at);
            assert_eq!(tables.free(&ranks[0]).ok(), free.or(Some(0)));
        }
        // Graphs read all of them: there is more memory for the next.
        let known = tables.known.iter();
        let read: Vec<_> = known.map(|table| table.read.clone()).collect();
        assert_eq!(tables.free(&ranks[0]).ok(), Some(MOST));
        let distinct: std::collections::BTreeSet<_> =
            (0..2 * MOST).map(|at| tables.address(at)).collect();
        assert_eq!((distinct.len(), read.len()), (2 * MOST, MOST));
    }
}
