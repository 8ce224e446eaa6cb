//! Barriers, with their CTAs, that a step waits for or arrives at.

use super::super::step::Ctas;
use super::Flattener;
use crate::warp::{BarrierId, RingId, Slot, Values};

impl Flattener<'_> {
    /// The number of a slot's barrier in its CTA.
    pub(in crate::proof::warp) fn barrier(&self, id: BarrierId, slot: u32) -> usize {
        (self.case.pipeline.barrier_number(id) + slot) as usize
    }

    /// Barrier by which a ring's current slot is full, and the number of its phases that are over then.
    pub(super) fn full(&self, ring: RingId) -> (usize, u32) {
        let cursor = self.cursors[usize::from(ring.0)];
        (self.barrier(ring.full(), cursor.slot), cursor.phase + 1)
    }

    /// The number of a slot among those of all sets.
    pub(in crate::proof::warp) fn slot(&self, id: RingId, slot: Slot) -> u32 {
        let (cursor, ring) = (self.cursors[usize::from(id.0)], self.case.pipeline.ring(id));
        match slot {
            Slot::Current => cursor.slot,
            Slot::Previous => cursor.previous,
            Slot::NextSet => (cursor.slot + ring.slots) % ring.all(),
        }
    }

    /// A consumer's order barrier.
    pub(super) fn order_barrier(&self, consumer: u32) -> usize {
        (self.case.pipeline.ring_barriers() + consumer) as usize
    }

    /// This CTA's rank in its cluster.
    pub(super) fn rank(&self) -> u32 {
        self.env.block().0 % self.case.pipeline.cta.ctas()
    }

    /// The CTAs that this one tells of a slot: all that fill or empty it, or where each sends into the others' those.
    pub(super) fn arrival_ctas(&self, barrier: BarrierId) -> Ctas {
        let Some(multicast) = &self.case.pipeline.barrier(barrier).multicast else {
            return Ctas::one(self.rank());
        };
        let mine = multicast.others.then(|| self.env.var("split_rank"));
        Ctas::of(multicast.ctas, mine)
    }
}
