//! Number of slots of a tensor.

use super::Buffer;
use crate::program::Slots;

impl Buffer {
    /// Number of slots that it has room for.
    pub fn slots(&self, world: u32) -> u32 {
        self.slots_by().room(world)
    }

    /// Number of slots of `everyone()`: none where scratch has one for each peer and there are no peers.
    pub(crate) fn slots_of_all(&self, world: u32) -> u32 {
        self.slots_by().count(world)
    }

    /// True if its slots are one for each rank.
    pub(crate) fn has_slot_for_each_rank(&self) -> bool {
        self.slots_by() == Slots::World
    }

    /// Rule by which its slots are counted.
    pub(crate) fn slots_by(&self) -> Slots {
        self.usage.placement.slots
    }
}
