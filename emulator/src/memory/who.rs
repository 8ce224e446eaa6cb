//! The agent of a memory access, and the kind of the access.

use crate::clocks::{Clock, Epoch};

/// The launch number of unwritten memory.
pub(super) const NEVER: u32 = u32::MAX;

/// Agent that accesses memory, and its clock.
pub(crate) struct Who<'c> {
    pub at: Epoch,
    pub clock: &'c Clock,
}

impl Who<'_> {
    pub fn knows(&self, other: &Epoch) -> bool {
        other.same_item(&self.at) || self.clock.covers(other)
    }
}
