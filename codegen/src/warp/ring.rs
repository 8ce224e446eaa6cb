//! Rings: shared memory handed between warps by mbarriers.

use super::expr::Expr;
use super::node::Side;
use crate::sm90::cta::Lifetime;

/// What a ring's slot consists of, for the tensors it stages.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Part {
    /// Its name: `x`, `w`, `panel`.
    pub name: String,
    /// Bytes in a slot.
    pub bytes: u32,
}

/// Slots of shared memory with a full and an empty barrier each.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Ring {
    /// What a slot is called: `stage`, `panel`, `box`.
    pub name: &'static str,
    /// How many slots.
    pub slots: u32,
    /// How many sets of so many slots: one, or one a consumer.
    pub sets: u32,
    /// When its places are its own. Where consumers hand places over, whoever is done with a slot hands it on to the set after,
    /// and the last one's to the first. Full and empty barriers are each set's own, so a phase is a lap of one role.
    pub lifetime: Lifetime,
    /// What a slot holds: part after part, each as an array over slots.
    pub parts: Vec<Part>,
    /// Where in shared memory its first part starts.
    pub at: u32,
    /// Whether CTAs send into each other's slots.
    pub exchange: bool,
    /// Says that a slot has what it is to hold.
    pub full: Barrier,
    /// Says that a slot may be written; `None`: another ring says so.
    pub empty: Option<Barrier>,
}

/// What a wait and an arrival at a barrier order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Order {
    /// Nothing that is not complete by then, as what tensor cores and TMA have read: relaxed.
    Complete,
    /// Ordinary accesses of this CTA: release and acquire at its scope.
    Cta,
    /// Ordinary accesses of its cluster: release and acquire at its scope.
    Cluster,
}

/// A barrier of each slot of a ring.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Barrier {
    /// Arrivals that end a phase.
    pub arrivals: u32,
    /// At whose barriers an arrival is; `None`: at this CTA's alone.
    pub told: Option<Told>,
    /// What waits and arrivals order.
    pub order: Order,
}

/// The CTAs of a cluster that an arrival tells.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Told {
    /// How many there are.
    pub ctas: u32,
    /// The rank in the cluster of the `lane`-th of them.
    pub peer: Expr,
    /// Whether this CTA itself is not told.
    pub others: bool,
}

impl Ring {
    /// Slots of all sets.
    pub const fn all(&self) -> u32 {
        self.slots * self.sets
    }

    /// Places in shared memory that these have.
    pub const fn places(&self) -> u32 {
        match self.lifetime {
            Lifetime::HandedOver => self.slots,
            Lifetime::Launch | Lifetime::Epilogue | Lifetime::BeforeTiles => self.all(),
        }
    }

    /// Whether consumers hand its places on to each other.
    pub fn is_handed_over(&self) -> bool {
        self.lifetime == Lifetime::HandedOver
    }

    /// Whether its one slot is what other rings share: it has barriers alone.
    pub const fn is_shared(&self) -> bool {
        self.parts.is_empty()
    }

    /// Barriers of all slots.
    pub const fn barriers(&self) -> u32 {
        self.all() * if self.empty.is_some() { 2 } else { 1 }
    }

    /// Its barrier of that side.
    pub const fn barrier(&self, side: Side) -> Option<&Barrier> {
        match side {
            Side::Full => Some(&self.full),
            Side::Empty => self.empty.as_ref(),
        }
    }

    /// The CTAs that an arrival at that barrier tells; `None`: this one alone.
    pub fn told(&self, side: Side) -> Option<&Told> {
        self.barrier(side)?.told.as_ref()
    }

    /// Bytes of a slot.
    pub fn slot_bytes(&self) -> u32 {
        self.parts.iter().map(|part| part.bytes).sum()
    }

    /// Where in shared memory a part of a slot is.
    pub fn part_at(&self, part: usize, slot: u32) -> u32 {
        let before: u32 = self.parts[..part].iter().map(|part| part.bytes).sum();
        let places = self.places();
        self.at + places * before + slot % places * self.parts[part].bytes
    }
}
