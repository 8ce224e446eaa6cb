//! Slots of scratch.

/// Number of slots of a scratch tensor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Slots {
    /// This many.
    Count(u32),
    /// One for each rank.
    World,
    /// One for each rank but one: `slots = world() - 1`.
    Peers,
}

impl Slots {
    /// Number of slots in a world of `world` ranks.
    pub const fn count(self, world: u32) -> u32 {
        match self {
            Slots::Count(count) => count,
            Slots::World => world,
            Slots::Peers => world.saturating_sub(1),
        }
    }

    /// Slots that memory has room for: one at least, which nobody names where there are no peers.
    pub const fn room(self, world: u32) -> u32 {
        match self.count(world) {
            0 => 1,
            count => count,
        }
    }
}
