//! Which barriers of which CTAs a step is about.

use super::Flattener;
use crate::warp::{Ring, RingId, Side, Slot, Values};

impl Flattener<'_> {
    /// A barrier's number in its CTA.
    pub(super) fn barrier(&self, ring: RingId, side: Side, slot: u32) -> usize {
        let before: u32 = self.case.pipeline.rings[..usize::from(ring.0)]
            .iter()
            .map(Ring::barriers)
            .sum();
        let side = match side {
            Side::Full => 0,
            Side::Empty => self.case.pipeline.ring(ring).all(),
        };
        (before + side + slot) as usize
    }

    /// The number of a slot among those of all sets.
    pub(super) fn slot(&self, id: RingId, slot: Slot) -> u32 {
        let (cursor, ring) = (self.cursors[usize::from(id.0)], self.case.pipeline.ring(id));
        match slot {
            Slot::Current => cursor.slot,
            Slot::Previous => cursor.previous,
            Slot::NextSet => (cursor.slot + ring.slots) % ring.all(),
        }
    }

    /// The barrier of a consumer's turns.
    pub(super) fn turn_of(&self, consumer: u32) -> usize {
        let rings = self.case.pipeline.rings.iter();
        (rings.map(Ring::barriers).sum::<u32>() + consumer) as usize
    }

    /// This CTA's rank in its cluster.
    pub(super) fn rank(&self) -> u32 {
        self.env.block().0 % self.case.pipeline.cta.ctas()
    }

    /// The CTAs that this one tells of a slot: all that fill or empty it, or where each sends into the others' those.
    pub(super) fn told(&mut self, ring: RingId, side: Side) -> Vec<u32> {
        let ring = self.case.pipeline.ring(ring);
        let Some(told) = ring.told(side) else {
            return vec![self.rank()];
        };
        let mine = told.others.then(|| self.env.var("share"));
        let lanes = (0..told.ctas).filter(|lane| Some(*lane) != mine);
        lanes
            .map(|lane| {
                self.set("lane", lane);
                self.value(&told.peer)
            })
            .collect()
    }
}
