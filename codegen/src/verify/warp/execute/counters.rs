//! Counters between ranks: waits that join with the signals they cannot have missed.

use super::super::simulator::Simulator;

impl Simulator<'_> {
    /// Whether a wait is over.
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
        // It joins with the signals it cannot have missed: all up to this launch, if only all of them reach the target.
        let upto = who.launch - lag;
        if wanted >= self.case.arrived(upto, who.rank, cell) {
            let at = &self.cells[(who.rank * self.case.cells + cell) as usize];
            let knows = &mut self.agents[index].knows.global.plain;
            let up_to = at.signals.iter().filter(|(launch, ..)| *launch <= upto);
            up_to.for_each(|(.., saw)| knows.join(saw));
        }
        true
    }

    /// What a waiter sees and wants. The host knows what arrives in every launch; on the GPU the base of a cell is moved on.
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
        let (launch, saw) = (agent.who.launch, agent.knows.global.plain.clone());
        let at = &mut self.cells[(rank * self.case.cells + cell) as usize];
        at.count += amount;
        at.signals.push((launch, amount, saw));
    }
}
