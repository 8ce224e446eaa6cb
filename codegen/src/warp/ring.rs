//! Rings: slots of shared memory that warps fill and empty, with their barriers.

use crate::sm90::cta::{Region, SlotKind};
use crate::tiling::Tiling;

/// An index into [`super::Pipeline::rings`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct RingId(pub u16);

/// A barrier of a ring.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct BarrierId {
    /// The ring.
    pub ring: RingId,
    /// The barrier of the slot.
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

/// Barriers of a slot.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Side {
    /// The slot's contents are there.
    Full,
    /// The slot's contents are no longer needed.
    Empty,
}

/// Slots that warps use cyclically: one fills a slot, another one empties it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Ring {
    /// Kind of its slots.
    pub of: SlotKind,
    /// Number of slots.
    pub slots: u32,
    /// Number of sets of so many slots: one, or one a consumer. Full and empty barriers are each set's own, so a phase is a
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
    /// Offset of its first part.
    pub at: u32,
    /// Places that the slots have. If there are fewer than slots in all sets, each place goes from one consumer to the next:
    /// whoever is done with a slot releases it to the set after, the last one to the first.
    pub places: u32,
    /// Bytes of a slot.
    pub slot_bytes: u32,
    /// Parts of a slot, for all loops over tiles. Parts of different loops lie in the same places, at different times.
    pub parts: Vec<Part>,
    /// Indices of the parts of each loop's operands, by tiling; empty where all loops have all parts.
    pub operands: Vec<Vec<usize>>,
}

/// Part of a slot: the box of one staged tensor.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Part {
    /// Name of the buffer: `x`, `w`, `subtile`.
    pub name: String,
    /// Bytes in a slot.
    pub bytes: u32,
    /// Offset in the first slot, counted from the buffer's start.
    pub at: u32,
    /// Bytes from one slot's to the next one's: its own, and those of the parts that are an array together with it.
    pub stride: u32,
    /// True if it lies directly behind the part before it in each place: the two are an array together.
    pub behind: bool,
}

/// An mbarrier of each slot of a ring.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Barrier {
    /// Name, also in stall records.
    pub name: &'static str,
    /// Arrivals that end a phase.
    pub arrivals: u32,
    /// CTAs of the cluster that one arrival reaches; `None`: this CTA alone.
    pub multicast: Option<MulticastArrivals>,
    /// At which scope its arrivals release and its waits acquire.
    pub scope: Scope,
    /// True if a phase ends with bytes, too: those that an arrival announced have landed.
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
    /// This CTA's where it arrives itself, and none where others of its cluster do: what those are about is complete by then.
    Own,
    /// A barrier of the cluster: it orders ordinary accesses of all its CTAs.
    Cluster,
}

/// Arrivals at the barriers of all CTAs of a cluster: the lane with the number of each arrives there.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MulticastArrivals {
    /// Number of CTAs.
    pub ctas: u32,
    /// True if it does not count at this CTA's own.
    pub others: bool,
}

impl Buffer {
    /// A region's places, with what its slots hold, each part as an array over places.
    pub fn of(region: &Region, parts: Vec<Part>, operands: Vec<Vec<usize>>) -> Self {
        Buffer {
            at: region.at,
            places: region.places(),
            slot_bytes: region.bytes,
            parts,
            operands,
        }
    }

    /// The parts that are an array together with that one.
    pub fn together(&self, part: usize) -> std::ops::Range<usize> {
        let first = self.parts[..=part].iter().rposition(|part| !part.behind);
        let more = self.parts[part + 1..].iter();
        first.unwrap_or(0)..part + 1 + more.take_while(|part| part.behind).count()
    }

    /// Offset in shared memory of a part of a slot.
    pub fn part_at(&self, part: usize, slot: u32) -> u32 {
        let Part { at, stride, .. } = self.parts[part];
        self.at + at + slot % self.places * stride
    }

    /// Index of the part that holds a loop's operand; `tiling` names the loop.
    pub fn part(&self, tiling: usize, operand: usize) -> usize {
        let of = self.operands.get(tiling);
        of.and_then(|parts| parts.get(operand).copied())
            .unwrap_or(operand)
    }

    /// The name of a constant of a loop's tiles, by the loop's tiling: that of all loops, or where they differ, one that names the
    /// operand that has these tiles' columns.
    pub(crate) fn constant(
        &self,
        tilings: &[Tiling],
        tiling: usize,
        name: &str,
        value: impl Fn(&Tiling) -> u32,
    ) -> String {
        let own = value(&tilings[tiling]);
        if tilings.iter().all(|other| value(other) == own) {
            return name.into();
        }
        let [_, columns] = tilings[tiling].first_of_sides();
        let part = &self.parts[self.part(tiling, columns)];
        format!("{}_{name}", part.name.to_uppercase())
    }

    /// Contents of a slot at a time, in words: the parts of each loop that has some of its own.
    pub fn held(&self, name: impl Fn(&Part) -> String) -> String {
        let all = || (0..self.parts.len()).collect();
        let mut loops: Vec<Vec<usize>> = Vec::new();
        for parts in self.operands.iter().cloned() {
            if !loops.contains(&parts) {
                loops.push(parts);
            }
        }
        if loops.is_empty() {
            loops.push(all());
        }
        let one = |parts: &Vec<usize>| {
            let names = parts.iter().map(|part| name(&self.parts[*part]));
            names.collect::<Vec<_>>().join(" and ")
        };
        loops.iter().map(one).collect::<Vec<_>>().join(", or ")
    }

    /// Offset of its end.
    pub const fn end(&self) -> u32 {
        self.at + self.places * self.slot_bytes
    }
}

impl Ring {
    /// Slots of all sets.
    pub const fn all(&self) -> u32 {
        self.slots * self.sets
    }

    /// Parts of a slot.
    pub fn parts(&self) -> &[Part] {
        self.buffer.as_ref().map_or(&[], |buffer| &buffer.parts)
    }

    /// The part that holds a loop's operand; `tiling` names the loop.
    ///
    /// # Panics
    /// If the ring has no buffer, or no such part: a node that names it is a mistake in whatever made the pipeline.
    pub fn part(&self, tiling: usize, operand: usize) -> &Part {
        let buffer = self.buffer.as_ref().expect("a ring whose slots hold parts");
        &buffer.parts[buffer.part(tiling, operand)]
    }

    /// True if its places go from one consumer to the next.
    pub fn is_staggered(&self) -> bool {
        let all = self.all();
        self.buffer.as_ref().is_some_and(|it| it.places < all)
    }

    /// Name of one of its slots in reports.
    pub fn slot_name(&self) -> &'static str {
        match self.of {
            SlotKind::SplitPartial => "split-K partial",
            SlotKind::Staging => "staging buffer",
            SlotKind::Stage | SlotKind::Subtile | SlotKind::SpareStaging | SlotKind::Tile => {
                self.of.name()
            }
        }
    }

    /// Barrier of that side.
    pub const fn barrier(&self, side: Side) -> Option<&Barrier> {
        match side {
            Side::Full => Some(&self.full),
            Side::Empty => self.empty.as_ref(),
        }
    }

    /// Barriers of the ring: they lie one after another, each for all slots.
    pub fn barriers(&self) -> impl Iterator<Item = (Side, &Barrier)> {
        let sides = [Side::Full, Side::Empty].into_iter();
        sides.filter_map(|side| Some((side, self.barrier(side)?)))
    }
}
