//! Accesses of every rank's memory at once, by all lanes of a warp.

use super::super::held::Content;
use super::super::seen::By;
use super::super::simulator::{Simulator, Verdict};
use super::super::step::{Area, Box4};
use super::super::trace;

impl Simulator<'_> {
    /// Stores a slot to a place on every rank.
    pub(super) fn store_everywhere(&mut self, index: usize, area: Area, to: &[Box4]) -> Verdict {
        self.are_together(index)?;
        let cta = self.agents[index].cta;
        let read = self.touch_shared(index, cta, area, false, false)?;
        self.agents[index].lanes.accessed_shared(read);
        for at in to {
            if let Some(end) = at.spills {
                return Err(Box::new(trace::spills(self, index, at, end)));
            }
            self.begins_aligned(index, at)?;
            self.stored(index, area, at)?;
            if self.is_where_it_came_from(index, area, at) {
                continue;
            }
            if let Some(id) = self.touch_global(index, *at, (true, By::Multicast))? {
                self.agents[index].lanes.accessed_global(id);
            }
        }
        Ok(())
    }

    /// The switch adds up a place on every rank, into a slot.
    pub(super) fn sum_everywhere(&mut self, index: usize, area: Area, from: &[Box4]) -> Verdict {
        self.are_together(index)?;
        let cta = self.agents[index].cta;
        for at in from {
            self.begins_aligned(index, at)?;
            if let Some(id) = self.touch_global(index, *at, (false, By::Multicast))? {
                self.agents[index].lanes.accessed_global(id);
            }
        }
        let written = self.touch_shared(index, cta, area, true, false)?;
        self.agents[index].lanes.accessed_shared(written);
        let me = self.agents[index].who.rank;
        if let Some(own) = from.iter().find(|at| at.rank == me) {
            self.put(cta, area, Content::Everywhere(*own));
        }
        Ok(())
    }

    /// True if a box is stored onto itself: a multicast of a rank's rows reaches that rank too, the same bytes to the same place.
    /// The tile level has no such write.
    fn is_where_it_came_from(&self, index: usize, area: Area, to: &Box4) -> bool {
        let mut held = self.held(self.agents[index].cta, area);
        let own = to.rank == self.agents[index].who.rank;
        own && held.any(|content| match content {
            Content::Box(from, _) => {
                let place = |at: &Box4| (at.tensor, at.rank, at.shard, at.origin);
                place(from) == place(to)
            }
            Content::Everywhere(_) | Content::Partial(..) | Content::Subtile(..) => false,
        })
    }
}
