//! Coverage of a run at the warp level: every element of every output once.

use super::simulator::{CALLER, Simulator, Touch, Verdict};
use super::step::Box4;
use super::trace;
use crate::program::{AtEnd, StoreMode, TensorId, TensorRole};
use crate::warp::Node;

impl Simulator<'_> {
    /// Each launch wrote every element of every output once, added every other rank's part once (or to what it
    /// accumulates its own), and ended on each rank only when what was written there was complete.
    pub(super) fn covered(&self) -> Verdict {
        let pipeline = self.case.pipeline;
        for (tensor, buffer) in pipeline.kernel.buffers.iter().enumerate() {
            for (rank, launch) in (0..self.case.world)
                .flat_map(|rank| (1..=self.case.last()).map(move |launch| (rank, launch)))
            {
                let geometry = self.case.geometry(self.case.plan_of(launch));
                let (mut written, mut added) = (0, 0);
                let here = |touch: &&Touch<Box4>| {
                    touch.write && touch.step != CALLER && touch.who.launch == launch
                };
                for touch in self.touches(tensor, rank).iter().filter(here) {
                    if !buffer.is_scratch()
                        && !self.ends[launch as usize][rank as usize].has(touch.id)
                    {
                        return Err(Box::new(trace::unfinished(self, touch, rank)));
                    }
                    let area = self.area(&touch.whereabouts);
                    if self.adds(touch.step) {
                        added += area;
                    } else {
                        written += area;
                    }
                }
                let rows = u64::from(geometry.held(buffer, rank).len());
                let slots = u64::from(buffer.slots(self.case.world));
                let all = slots * rows * u64::from(geometry.size(buffer.columns));
                let adds = self.case.adds(TensorId(tensor as u16));
                let others = if adds {
                    all * u64::from(self.case.world - 1)
                } else {
                    0
                };
                if buffer.usage.role == TensorRole::Output
                    && let Some(plane) = buffer.usage.plane
                {
                    self.amax_of_all((TensorId(tensor as u16), plane.of), (rank, launch))?;
                    continue;
                }
                let wanted = match buffer.usage.at_end {
                    AtEnd::Own | AtEnd::Sum { .. } | AtEnd::Computed | AtEnd::Sent => (all, others),
                    AtEnd::Accumulated => (0, all),
                    AtEnd::Gathered | AtEnd::Nothing => continue,
                };
                if (written, added) != wanted {
                    let did = (written, added);
                    return Err(Box::new(trace::uncovered(self, tensor, rank, did, wanted)));
                }
            }
        }
        Ok(())
    }

    /// Elements of a box.
    fn area(&self, at: &Box4) -> u64 {
        u64::from(self.case.exists(at) - at.rows.0) * u64::from(at.columns.1 - at.columns.0)
    }

    /// True if a step is a store that adds.
    pub(super) fn adds(&self, step: (usize, usize)) -> bool {
        let adds = StoreMode::Add;
        step != CALLER
            && matches!(self.step_of(step).node, Node::Store { mode, .. } if *mode == adds)
    }
}
