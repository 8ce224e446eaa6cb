//! Rectangles of tensors, and the boxes that they are.

use crate::kernel::Kernel;
use crate::program::TensorId;
use crate::shape::{Extent, Geometry};

/// In whose memory a rectangle is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Owner {
    /// One rank's.
    Rank(u16),
    /// Every rank's at once: a multicast address.
    Everywhere,
}

impl Owner {
    /// The ranks, ascending.
    pub fn ranks(self, world: u32) -> std::ops::Range<u16> {
        match self {
            Owner::Rank(rank) => rank..rank + 1,
            // A world has at most `MAX_WORLD` ranks.
            Owner::Everywhere => 0..world as u16,
        }
    }
}

/// A rectangle of a tensor, in rows and columns of all of it: over one shard or several.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Rectangle {
    /// The tensor.
    pub tensor: TensorId,
    /// In whose memory.
    pub owner: Owner,
    /// Slot of the tensor.
    pub slot: u16,
    /// Rows of the rectangle.
    pub rows: Extent,
    /// Columns; of an operand, the range of K.
    pub columns: Extent,
}

/// A box: a rectangle of one plane, in one shard, in one rank's memory. Rows and columns are those of all of the plane.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Span {
    /// The plane.
    pub buffer: TensorId,
    /// The rank.
    pub home: u16,
    /// Slot of the tensor.
    pub slot: u16,
    /// Rows of the box.
    pub rows: Extent,
    /// Columns of the box.
    pub columns: Extent,
}

impl Rectangle {
    /// Elements in one rank's memory.
    pub fn elements(&self) -> u64 {
        u64::from(self.rows.len()) * u64::from(self.columns.len())
    }

    /// Bytes in one rank's memory.
    pub fn bytes(&self, kernel: &Kernel) -> u64 {
        self.elements() * u64::from(kernel.buffers[self.tensor.index()].dtype.bytes())
    }

    /// Boxes of the rectangle: rank by rank, shard by shard. What is empty is one empty box of each rank.
    ///
    /// ```
    /// use counterflow_codegen::region::{Owner, Rectangle};
    /// use counterflow_codegen::{program::TensorId, shape::Extent};
    /// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/example.rs")); }
    ///
    /// let (series, plan) = example::proven(); // 64 rows of `x`, of which each of two ranks owns 32
    /// let (x, rows, columns) = (TensorId(0), Extent { start: 24, end: 40 }, Extent { start: 0, end: 16 });
    /// let across = Rectangle { tensor: x, owner: Owner::Rank(1), slot: 0, rows, columns };
    /// let boxes = across.boxes(series.kernel(), &plan.geometry);
    /// let rows: Vec<_> = boxes.map(|one| (one.home, one.rows.start, one.rows.end)).collect();
    /// assert_eq!(rows, [(1, 24, 32), (1, 32, 40)]);
    /// ```
    pub fn boxes(
        self,
        kernel: &Kernel,
        geometry: &Geometry,
    ) -> impl Iterator<Item = Span> + Clone + use<> {
        let dim = kernel.buffers[self.tensor.index()].rows;
        let shards = geometry.by_shard(dim, self.rows);
        self.owner.ranks(geometry.world).flat_map(move |home| {
            let of = move |rows| Span {
                rows,
                ..self.on(home)
            };
            shards.clone().map(of)
        })
    }

    /// Part in one rank's memory, over all shards.
    pub const fn on(self, rank: u16) -> Span {
        Span {
            buffer: self.tensor,
            home: rank,
            slot: self.slot,
            rows: self.rows,
            columns: self.columns,
        }
    }

    /// Pairs of boxes that a copy moves: to where, and from where. Boxes that are empty, or already there, do not move.
    pub(crate) fn copied_from(
        self,
        src: &Rectangle,
        kernel: &Kernel,
        geometry: &Geometry,
    ) -> impl Iterator<Item = (Span, Span)> + use<> {
        let from = src.boxes(kernel, geometry);
        let first = [self.rows.start, src.rows.start];
        let each = self.boxes(kernel, geometry).flat_map(move |to| {
            let from = from.clone();
            from.map(move |from| common([to, from], first))
        });
        each.filter(|(to, from)| to != from && to.elements() > 0)
    }

    /// The rank whose boxes a multicast by rank `me` leaves as they are: its own, where it sends its own rows. They store the
    /// same bytes in the same place.
    pub fn kept_by(&self, src: &Rectangle, me: u16) -> Option<u16> {
        let owner = Owner::Rank(me);
        let own = Rectangle { owner, ..*self };
        (self.owner == Owner::Everywhere && own == *src).then_some(me)
    }
}

/// The rows that two boxes have in common, counted from the first row of their rectangles each.
fn common([to, from]: [Span; 2], [to_first, from_first]: [u32; 2]) -> (Span, Span) {
    let start = (to.rows.start - to_first).max(from.rows.start - from_first);
    let end = (to.rows.end - to_first).min(from.rows.end - from_first);
    let end = end.max(start);
    let of = |span: Span, first: u32| Span {
        rows: Extent {
            start: first + start,
            end: first + end,
        },
        ..span
    };
    (of(to, to_first), of(from, from_first))
}

impl Span {
    /// Number of elements.
    pub fn elements(&self) -> u64 {
        u64::from(self.rows.len()) * u64::from(self.columns.len())
    }
}
