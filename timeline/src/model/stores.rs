//! Store lanes: a GEMM CTA passes its finished tile to its store lane, which stores the tile and then sends the signals
//! that follow, while the CTA starts its next item. The lane holds one tile at a time.

use super::event::EventKind;
use super::sim::{Action, Sim};
use super::state::{Did, Mode, Store};
use counterflow_codegen::unroll::StepKind;

impl Sim<'_> {
    /// Passes a store to its worker's lane, once that has stored the previous item.
    pub(super) fn open_lane(&mut self, w: usize) -> Did {
        let worker = &mut self.workers[w];
        if worker.store.of.is_some() {
            worker.store.awaited = true;
            return Did::Blocked(EventKind::Drain);
        }
        let item = worker.item.map_or(0, |(item, _)| item);
        worker.store = Store {
            of: Some((worker.agent, item)),
            cursor: worker.cursor,
            limit: worker.cursor + 1,
            ..Store::default()
        };
        self.run_lane(w);
        Did::Step
    }

    /// Passes a step to the lane if it has the item's earlier stores. False if it has none.
    pub(super) fn hand_over(&mut self, w: usize) -> bool {
        let worker = &mut self.workers[w];
        let mine = worker.item.map(|(item, _)| (worker.agent, item));
        if worker.store.of.is_none() || worker.store.of != mine {
            return false;
        }
        worker.store.limit = worker.cursor + 1;
        if !worker.store.busy {
            self.run_lane(w);
        }
        true
    }

    /// Marks an item as complete for the lane. False if the lane has nothing of it.
    pub(super) fn close_lane(&mut self, w: usize, item: (u32, u32)) -> bool {
        let store = &mut self.workers[w].store;
        if store.of != Some(item) {
            return false;
        }
        store.closed = true;
        if !store.busy {
            self.run_lane(w);
        }
        true
    }

    /// Makes a lane's stores and signals until one takes time, or none is left.
    pub(super) fn run_lane(&mut self, w: usize) {
        let plan = self.plan;
        while let Some((agent, _)) = self.workers[w].store.of {
            let store = &mut self.workers[w].store;
            if store.cursor == store.limit {
                if !store.closed {
                    return;
                }
                let awaited = store.awaited;
                *store = Store::default();
                self.complete(agent as usize);
                if awaited {
                    self.at(self.now, Action::Run(w as u32));
                }
                return;
            }
            let step = &plan.agents[agent as usize].steps[store.cursor as usize];
            store.cursor += 1;
            match &step.kind {
                StepKind::Store { dst, mode, .. } => {
                    self.workers[w].store.busy = true;
                    self.write(w, step.op, dst, *mode, true);
                    return;
                }
                StepKind::Signal {
                    counter,
                    home,
                    cell,
                    amount,
                } => {
                    if self.mode == Mode::Whole {
                        let index = plan.arrivals.index(*home, *counter, *cell);
                        self.signal(w, true, *home, index, *amount);
                    }
                }
                StepKind::Wait { .. }
                | StepKind::Copy { .. }
                | StepKind::Dot { .. }
                | StepKind::Reduce { .. }
                | StepKind::OwnTerm { .. }
                | StepKind::Load { .. } => {}
            }
        }
    }
}
