//! Ranges of rows or columns.

use std::ops::Range;

/// A half-open range of rows or columns, in elements.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Extent {
    /// First.
    pub start: u32,
    /// One past the last.
    pub end: u32,
}

impl Extent {
    /// Number of elements.
    pub const fn len(self) -> u32 {
        self.end - self.start
    }
    /// True without elements.
    pub const fn is_empty(self) -> bool {
        self.end <= self.start
    }
    /// The blocks of so many that have some of it.
    #[must_use]
    pub const fn in_blocks(self, of: u32) -> Extent {
        let start = self.start / of;
        let end = match self.is_empty() {
            true => start,
            false => self.end.div_ceil(of),
        };
        Extent { start, end }
    }
    /// Parts of the extent, divided at each multiple of `each` behind `first`. What is empty is one part.
    pub fn divided(self, first: u32, each: u32) -> impl Iterator<Item = Extent> + Clone + use<> {
        let each = each.max(1);
        let last = self.end.saturating_sub(1).max(self.start) - first;
        ((self.start - first) / each..=last / each).map(move |part| {
            let start = first + part * each;
            Extent {
                start: self.start.max(start),
                end: self.end.min(start.saturating_add(each)),
            }
        })
    }
    /// Common part of two extents: the empty extent at the other's beginning, if they share nothing.
    #[must_use]
    pub(crate) fn within(self, other: Extent) -> Extent {
        let start = self.start.clamp(other.start, other.end);
        let end = self.end.clamp(start, other.end);
        match start < end {
            true => Extent { start, end },
            false => Extent {
                start: other.start,
                end: other.start,
            },
        }
    }
    /// As a range of indices.
    pub const fn range(self) -> Range<usize> {
        self.start as usize..self.end as usize
    }
    /// True if it has all of another one.
    pub const fn contains(self, other: Extent) -> bool {
        self.start <= other.start && other.end <= self.end
    }
    /// True if both share an element.
    pub const fn overlaps(self, other: Extent) -> bool {
        self.start < other.end && other.start < self.end
    }
}
