//! Counters between ranks: waits that join with the signals they cannot have missed.

use super::Machine;

impl Machine<'_> {
    pub(super) fn counter_wait(&mut self, index: usize, cell: u32, lag: u32) -> bool {
        let who = self.agents[index].who;
        if self.case.host_signals(cell) {
            return true;
        }
        let arrivals = if lag == 0 {
            self.case.arrivals(who.rank, cell)
        } else {
            0
        };
        let at = &self.cells[(who.rank * self.case.cells + cell) as usize];
        let wanted = at.base + arrivals;
        if at.count < wanted {
            return false;
        }
        // It joins with the signals it cannot have missed: all up to this launch, if only all of them reach the target.
        let upto = who.launch - lag;
        let each = self.case.arrivals(who.rank, cell);
        if wanted >= each * u64::from(upto) {
            for (launch, _, saw) in &at.signals {
                if *launch <= upto {
                    self.agents[index].knows.global.plain.join(saw);
                }
            }
        }
        true
    }

    /// What a waiter sees and wants.
    pub fn counter(&self, index: usize, cell: u32, lag: u32) -> (u64, u64) {
        let who = self.agents[index].who;
        let arrivals = if lag == 0 {
            self.case.arrivals(who.rank, cell)
        } else {
            0
        };
        let at = &self.cells[(who.rank * self.case.cells + cell) as usize];
        (at.count, at.base + arrivals)
    }

    pub(super) fn signal(&mut self, index: usize, rank: u32, cell: u32, amount: u64) {
        let agent = &self.agents[index];
        let (launch, saw) = (agent.who.launch, agent.knows.global.plain.clone());
        let at = &mut self.cells[(rank * self.case.cells + cell) as usize];
        at.count += amount;
        at.signals.push((launch, amount, saw));
    }
}
