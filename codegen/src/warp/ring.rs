//! Rings: slots of shared memory that warps fill and empty, with their barriers.

use super::expr::Expr;
use crate::sm90::cta::Region;

/// An index into [`super::Pipeline::rings`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct RingId(pub u16);

/// A barrier of a ring.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct BarrierId {
    /// The ring.
    pub ring: RingId,
    /// Which of its barriers.
    pub side: Side,
}

impl RingId {
    /// The barrier that says that a slot has what it is to hold.
    pub const fn full(self) -> BarrierId {
        let (ring, side) = (self, Side::Full);
        BarrierId { ring, side }
    }

    /// The barrier that says that a slot may be written.
    pub const fn empty(self) -> BarrierId {
        let (ring, side) = (self, Side::Empty);
        BarrierId { ring, side }
    }
}

/// Which barrier of a slot.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Side {
    /// Its contents are there.
    Full,
    /// Its contents are no longer needed.
    Empty,
}

/// Slots that warps use cyclically: one fills a slot, another one empties it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Ring {
    /// What a slot is called: `stage`, `subtile`, `staging`.
    pub name: &'static str,
    /// The constant of the text that says how many slots there are.
    pub count: &'static str,
    /// How many slots.
    pub slots: u32,
    /// How many sets of so many slots: one, or one a consumer. Full and empty barriers are each set's own, so a phase is a
    /// time around of one role.
    pub sets: u32,
    /// The shared memory of its slots; `None`: what its barriers say is about memory that other rings have.
    pub buffer: Option<Buffer>,
    /// Says that a slot has what it is to hold.
    pub full: Barrier,
    /// Says that a slot may be written; `None`: another ring says so.
    pub empty: Option<Barrier>,
}

/// Shared memory in slots.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Buffer {
    /// Where its first part starts.
    pub at: u32,
    /// Places that the slots have. If there are fewer than slots in all sets, each place goes from one consumer to the next:
    /// whoever is done with a slot releases it to the set after, the last one to the first.
    pub places: u32,
    /// What a slot holds: part after part, each as an array over places, but for those that lie [behind another](Part::behind).
    pub parts: Vec<Part>,
}

/// What a slot consists of, for the tensors it stages.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Part {
    /// Its name: `x`, `w`, `subtile`.
    pub name: String,
    /// Bytes in a slot.
    pub bytes: u32,
    /// Whether it lies directly behind the part before it in each place: the two are an array together.
    pub behind: bool,
}

/// An mbarrier of each slot of a ring.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Barrier {
    /// Its name, also in stall records.
    pub name: &'static str,
    /// Arrivals that end a phase.
    pub arrivals: u32,
    /// At whose barriers an arrival is a multicast; `None`: at this CTA's alone.
    pub multicast: Option<MulticastArrivals>,
    /// At which scope its arrivals release and its waits acquire.
    pub scope: Scope,
    /// Whether a phase ends with bytes, too: those that an arrival announced have landed.
    pub tx: bool,
}

/// The scope at which arrivals at a barrier release and waits acquire.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Scope {
    /// None: they order nothing. Whatever they are about is complete by then, as what tensor cores and TMA have read is.
    /// The waiter may overwrite it, and reads nothing.
    Relaxed,
    /// This CTA's: they order its ordinary accesses.
    Cta,
    /// Its cluster's: they order ordinary accesses of all its CTAs.
    Cluster,
}

/// The CTAs of a cluster at whose barriers an arrival counts.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MulticastArrivals {
    /// How many there are.
    pub ctas: u32,
    /// The rank in the cluster of the `lane`-th of them.
    pub peer: Expr,
    /// Whether it does not count at this CTA's own.
    pub others: bool,
}

impl Buffer {
    /// A region's places, with what its slots hold.
    pub const fn of(region: &Region, parts: Vec<Part>) -> Self {
        Buffer {
            at: region.at,
            places: region.places(),
            parts,
        }
    }

    /// Bytes of a slot.
    pub fn slot_bytes(&self) -> u32 {
        self.parts.iter().map(|part| part.bytes).sum()
    }

    /// The parts that are an array together with that one.
    pub fn together(&self, part: usize) -> std::ops::Range<usize> {
        let first = self.parts[..=part].iter().rposition(|part| !part.behind);
        let more = self.parts[part + 1..].iter();
        first.unwrap_or(0)..part + 1 + more.take_while(|part| part.behind).count()
    }

    /// Where in shared memory a part of a slot is.
    pub fn part_at(&self, part: usize, slot: u32) -> u32 {
        let bytes = |parts: &[Part]| parts.iter().map(|part| part.bytes).sum::<u32>();
        let array = self.together(part);
        let (before, within) = (
            bytes(&self.parts[..array.start]),
            bytes(&self.parts[array.start..part]),
        );
        self.at + self.places * before + slot % self.places * bytes(&self.parts[array]) + within
    }

    /// Where it ends.
    pub fn end(&self) -> u32 {
        self.at + self.places * self.slot_bytes()
    }
}

impl Ring {
    /// Slots of all sets.
    pub const fn all(&self) -> u32 {
        self.slots * self.sets
    }

    /// What a slot holds.
    pub fn parts(&self) -> &[Part] {
        self.buffer.as_ref().map_or(&[], |buffer| &buffer.parts)
    }

    /// Whether its places go from one consumer to the next.
    pub fn is_staggered(&self) -> bool {
        let all = self.all();
        self.buffer.as_ref().is_some_and(|it| it.places < all)
    }

    /// What a report calls one of its slots.
    pub fn slot_name(&self) -> &'static str {
        match self.name {
            "split_partial" => "split-K partial",
            "staging" => "staging buffer",
            name => name,
        }
    }

    /// Its barrier of that side.
    pub const fn barrier(&self, side: Side) -> Option<&Barrier> {
        match side {
            Side::Full => Some(&self.full),
            Side::Empty => self.empty.as_ref(),
        }
    }

    /// Its barriers: they lie one after another, each for all slots.
    pub fn barriers(&self) -> impl Iterator<Item = (Side, &Barrier)> {
        let sides = [Side::Full, Side::Empty].into_iter();
        sides.filter_map(|side| Some((side, self.barrier(side)?)))
    }
}
