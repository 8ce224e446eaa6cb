//! References to the things that a schedule names: tensors, partitions, counters, items and their indices.

use super::words::Tune;
use crate::order::{Cut, TileOrder};
use crate::program::{
    CellIndex, Cells, CounterDim, CounterId, HeldRows, Home, PartitionId, Pick, Place, Planes,
    Side, Slots, TensorId, Var,
};
use crate::rank::{RankExpr, RankOp};

/// A tensor of the schedule being built.
///
/// ```
/// use counterflow_codegen::{builder::*, dtype::Dtype::Bf16};
///
/// let mut s = ScheduleBuilder::new("places");
/// let y = s.all_reduced("y", Bf16);
/// let mine = s.symmetric("mine", Bf16, y.shard(), world()); // the rows that this rank owns
/// let all = s.symmetric("all", Bf16, y.whole(), 2u32);
/// let tiles = s.tiles("tiles", y, (128, 128));
/// s.gemm(GemmOptions::default(), |s| {
///     s.for_items("t", tiles.of(me()), |s, t| {
///         s.copy(mine.on((me() + 1) % world()).at(me()).at(t), y.at(t)); // in the next rank's memory
///         s.copy(all.everywhere().at(0).at(t), y.at(t)); // in every rank's
///     });
/// });
/// # s.finish();
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TensorRef {
    pub(super) id: TensorId,
    pub(super) extent: Option<HeldRows>,
}

/// A partition of the schedule being built.
///
/// ```
/// use counterflow_codegen::{builder::*, dtype::Dtype::Bf16};
///
/// let mut s = ScheduleBuilder::new("shards");
/// let y = s.out("y", Bf16);
/// let tiles: PartitionRef = s.tiles("tiles", y, (128, 128));
/// let (mine, every): (ItemsRef, ItemsRef) = (tiles.of(me()), tiles.all());
/// assert_eq!(tiles.grouped(8), every.grouped(8));
/// # drop(mine);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PartitionRef(pub(super) PartitionId);

/// A counter set of the schedule being built.
///
/// [`CellsRef`] has an example.
///
/// ```
/// # use counterflow_codegen::builder::*;
/// # let mut s = ScheduleBuilder::new("begun");
/// let begun = s.counters("begun", [world().into()]);
/// s.comm(2, |s| {
///     s.signal(begun.on(0).at(me()), 1); // on rank 0
///     s.signal(begun.everywhere().at(me()), 1); // on every rank
///     s.wait(begun.at(others())); // here
/// });
/// # s.finish();
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CountersRef(pub(super) CounterId);

/// The item that a loop visits.
///
/// ```
/// # use counterflow_codegen::{builder::*, dtype::Dtype::Bf16};
/// # let mut s = ScheduleBuilder::new("rows");
/// # let (x, y) = (s.gathered("x", Bf16), s.out("y", Bf16));
/// let (chunks, tiles) = (s.chunks("chunks", x, 64), s.tiles("tiles", y, (128, 128)));
/// let arrived = s.counters("arrived", [chunks.into()]);
/// s.gemm(GemmOptions::default(), |s| {
///     s.for_items("t", tiles.all(), |s, t: Item| {
///         let rows: ItemSide = t.rows();
///         s.wait(arrived.at(rows)); // both chunks that hold the tile's rows
///     });
/// });
/// # s.finish();
/// # let mut s = ScheduleBuilder::new("columns");
/// # let (x, w, y) = (s.local("x", Bf16), s.gathered("w", Bf16), s.out("y", Bf16));
/// # let (chunks, tiles) = (s.chunks("chunks", w, 64), s.tiles("tiles", y, (128, 128)));
/// # let arrived = s.counters("arrived", [chunks.into()]);
/// s.gemm(GemmOptions::default(), |s| {
///     s.for_items("t", tiles.all(), |s, t| {
///         s.wait(arrived.at(t.columns())); // the rows of `w` that are the tile's columns
///     });
/// });
/// # s.finish();
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Item(pub(super) Var);

/// An item's rows or columns as an index: the items of another partition that hold them.
///
/// [`Item`] has an example.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ItemSide(Var, Side);

impl Item {
    /// This item's rows, to index counters of another partition.
    pub fn rows(self) -> ItemSide {
        ItemSide(self.0, Side::Rows)
    }

    /// This item's columns, to index counters of another partition: of the second operand's rows, which they are.
    pub fn columns(self) -> ItemSide {
        ItemSide(self.0, Side::Columns)
    }
}

/// Index of a tensor.
///
/// ```
/// use counterflow_codegen::builder::{TensorIndex, me, others};
///
/// // An index is made of a rank, a number, several ranks, or an item.
/// let slots: [TensorIndex; 3] = [me().into(), 0.into(), others().into()];
/// assert!(slots.iter().all(|slot| matches!(slot, TensorIndex::Slot(_))));
/// ```
#[derive(Clone, Debug)]
pub enum TensorIndex {
    /// A slot of scratch.
    Slot(Pick),
    /// An item.
    Item(Item),
}

impl From<Item> for TensorIndex {
    fn from(item: Item) -> Self {
        TensorIndex::Item(item)
    }
}
impl From<Pick> for TensorIndex {
    fn from(pick: Pick) -> Self {
        TensorIndex::Slot(pick)
    }
}
impl From<RankExpr> for TensorIndex {
    fn from(rank: RankExpr) -> Self {
        TensorIndex::Slot(Pick::One(rank))
    }
}
impl From<&RankExpr> for TensorIndex {
    fn from(rank: &RankExpr) -> Self {
        TensorIndex::Slot(Pick::One(rank.clone()))
    }
}
impl From<i32> for TensorIndex {
    fn from(slot: i32) -> Self {
        TensorIndex::Slot(Pick::One(slot.into()))
    }
}

impl From<Item> for CellIndex {
    fn from(item: Item) -> Self {
        CellIndex::Item(item.0)
    }
}
impl From<ItemSide> for CellIndex {
    fn from(ItemSide(item, side): ItemSide) -> Self {
        CellIndex::Along(item, side)
    }
}
impl From<Pick> for CellIndex {
    fn from(pick: Pick) -> Self {
        CellIndex::Rank(pick)
    }
}
impl From<RankExpr> for CellIndex {
    fn from(rank: RankExpr) -> Self {
        CellIndex::Rank(Pick::One(rank))
    }
}
impl From<&RankExpr> for CellIndex {
    fn from(rank: &RankExpr) -> Self {
        CellIndex::Rank(Pick::One(rank.clone()))
    }
}
impl From<i32> for CellIndex {
    fn from(index: i32) -> Self {
        CellIndex::Rank(Pick::One(index.into()))
    }
}

impl TensorRef {
    fn place(self, home: Home) -> PlaceRef {
        PlaceRef(Place {
            tensor: self.id,
            planes: Planes::All,
            home,
            slot: None,
            item: None,
        })
    }
    /// This tensor in that rank's memory.
    pub fn on(self, rank: impl Into<RankExpr>) -> PlaceRef {
        self.place(Home::On(rank.into()))
    }
    /// This tensor in every rank's memory at once (multicast).
    pub fn everywhere(self) -> PlaceRef {
        self.place(Home::Everywhere)
    }
    /// Elements without the scales that travel with them; only a copy takes them: `x.data()[c]` in a schedule.
    pub fn data(self) -> PlaceRef {
        PlaceRef::from(self).data()
    }
    /// The scales that travel with its elements, alone; only a copy takes them: `x.scales()[c]` in a schedule. A copy of them
    /// is nothing where the variant has no scales that travel.
    ///
    /// ```
    /// use counterflow_codegen::{builder::*, dtype::Dtype::Bf16};
    ///
    /// let mut s = ScheduleBuilder::new("scales_first");
    /// let x = s.gathered("x", Bf16);
    /// let chunks = s.chunks("chunks", x, 128);
    /// s.comm(2, |s| {
    ///     s.for_ranks("peer", ranks().before_me(), |s, peer| {
    ///         s.for_items("c", chunks.of(me()), |s, c| {
    ///             s.copy(x.on(&peer).scales().at(c), x.scales().at(c));
    ///             s.copy(x.on(&peer).data().at(c), x.data().at(c)); // both: `s.copy(x.on(&peer).at(c), x.at(c))`
    ///         });
    ///     });
    /// });
    /// # s.finish();
    /// ```
    pub fn scales(self) -> PlaceRef {
        PlaceRef::from(self).scales()
    }
    /// An item or slot of it, in my memory.
    pub fn at(self, index: impl Into<TensorIndex>) -> PlaceRef {
        self.place(Home::Me).at(index)
    }
    /// For [`symmetric`](super::ScheduleBuilder::symmetric): scratch that holds the shard each rank owns.
    #[must_use]
    pub fn shard(self) -> TensorRef {
        TensorRef {
            extent: Some(HeldRows::Shard),
            ..self
        }
    }
    /// For [`symmetric`](super::ScheduleBuilder::symmetric): scratch that holds all rows.
    #[must_use]
    pub fn whole(self) -> TensorRef {
        TensorRef {
            extent: Some(HeldRows::Whole),
            ..self
        }
    }
}

/// A place of data that is being indexed.
///
/// ```
/// # use counterflow_codegen::{builder::*, dtype::Dtype::Bf16};
/// # let mut s = ScheduleBuilder::new("place");
/// # let y = s.reduce_scattered("y", Bf16);
/// let partial = s.symmetric("partial", Bf16, y, world());
/// let slot: PlaceRef = partial.on(0).at(me()); // my slot in rank 0's memory; `.at(t)` of it is a tile
/// let x = s.gathered("x", Bf16);
/// let [elements, scales]: [PlaceRef; 2] = [x.on(0).data(), x.on(0).scales()]; // in rank 0's memory
/// # drop((slot, elements, scales));
/// ```
#[derive(Clone, PartialEq, Debug)]
pub struct PlaceRef(pub(super) Place);

impl PlaceRef {
    /// Of its elements alone: as [`TensorRef::data`].
    #[must_use]
    pub fn data(mut self) -> PlaceRef {
        self.0.planes = Planes::Data;
        self
    }
    /// Of its scales alone: as [`TensorRef::scales`].
    #[must_use]
    pub fn scales(mut self) -> PlaceRef {
        self.0.planes = Planes::Scales;
        self
    }
    /// A slot or an item of it.
    #[must_use]
    pub fn at(mut self, index: impl Into<TensorIndex>) -> PlaceRef {
        match index.into() {
            TensorIndex::Slot(pick) => self.0.slot = Some(pick),
            TensorIndex::Item(item) => self.0.item = Some(item.0),
        }
        self
    }
}

impl From<TensorRef> for PlaceRef {
    fn from(tensor: TensorRef) -> Self {
        tensor.place(Home::Me)
    }
}

/// Counter cells that are being indexed.
///
/// ```
/// # use counterflow_codegen::{builder::*, dtype::Dtype::Bf16};
/// # let mut s = ScheduleBuilder::new("cells");
/// # let y = s.reduce_scattered("y", Bf16);
/// let tiles = s.tiles("tiles", y, (128, 128));
/// let landed = s.counters("landed", [world().into(), tiles.into()]); // a cell for each rank and tile
/// s.gemm(GemmOptions::default(), |s| {
///     s.for_items("t", tiles.of(me()), |s, t| {
///         let cell: CellsRef = landed.on(0).at(me()).at(t);
///         s.signal(cell, 1);
///     });
/// });
/// # s.finish();
/// ```
#[derive(Clone, PartialEq, Debug)]
pub struct CellsRef(pub(super) Cells);

impl CountersRef {
    fn cells(self, home: Home) -> CellsRef {
        CellsRef(Cells {
            counter: self.0,
            home,
            index: Vec::new(),
        })
    }
    /// The counter's cells on `rank`.
    pub fn on(self, rank: impl Into<RankExpr>) -> CellsRef {
        self.cells(Home::On(rank.into()))
    }
    /// Every rank's cells at once.
    pub fn everywhere(self) -> CellsRef {
        self.cells(Home::Everywhere)
    }
    /// A cell of mine.
    pub fn at(self, index: impl Into<CellIndex>) -> CellsRef {
        self.cells(Home::Me).at(index)
    }
}

impl CellsRef {
    /// The next entry of the index.
    #[must_use]
    pub fn at(mut self, index: impl Into<CellIndex>) -> CellsRef {
        self.0.index.push(index.into());
        self
    }
}

impl From<CountersRef> for CellsRef {
    fn from(counters: CountersRef) -> Self {
        counters.cells(Home::Me)
    }
}

/// The items that a loop visits, made by [`PartitionRef::of`] or [`PartitionRef::all`].
///
/// ```
/// use counterflow_codegen::{builder::*, dtype::Dtype::Bf16};
///
/// let mut s = ScheduleBuilder::new("orders");
/// let y = s.out("y", Bf16);
/// let tiles = s.tiles("tiles", y, (128, 128));
/// let orders: [ItemsRef; 4] = [
///     tiles.all().grouped(8), // the same as `tiles.grouped(8)`
///     tiles.of((me() + 1) % world()), // the next rank's shard
///     tiles.of(me()).row_major(),
///     tiles.of(me()).column_major(),
/// ];
/// assert_eq!(orders[0], tiles.grouped(8));
/// let some: [ItemsRef; 4] = [
///     tiles.of(me()).skip(1).step_by(2), // every second one, from the second on
///     tiles.of(me()).grouped(8).take(4), // the first four in that order
///     tiles.all().first_half(),
///     tiles.all().second_half(),
/// ];
/// # drop(some);
/// ```
#[derive(Clone, PartialEq, Debug)]
pub struct ItemsRef {
    pub(super) partition: PartitionId,
    pub(super) shard: Option<RankExpr>,
    pub(super) order: Order,
    pub(super) cuts: Vec<Cut>,
}

#[derive(Clone, PartialEq, Debug)]
pub(super) enum Order {
    Tile(TileOrder),
    Grouped(Tune),
}

impl PartitionRef {
    /// The items of that rank's shard.
    pub fn of(self, shard: impl Into<RankExpr>) -> ItemsRef {
        ItemsRef {
            partition: self.0,
            shard: Some(shard.into()),
            order: Order::Tile(TileOrder::RowMajor),
            cuts: Vec::new(),
        }
    }
    /// All items.
    pub fn all(self) -> ItemsRef {
        ItemsRef {
            partition: self.0,
            shard: None,
            order: Order::Tile(TileOrder::RowMajor),
            cuts: Vec::new(),
        }
    }
    /// All items, grouped: as [`ItemsRef::grouped`].
    pub fn grouped(self, group: impl Into<Tune>) -> ItemsRef {
        self.all().grouped(group)
    }
}

impl ItemsRef {
    /// In groups of `group` rows of items, column by column within a group.
    #[must_use]
    pub fn grouped(self, group: impl Into<Tune>) -> ItemsRef {
        ItemsRef {
            order: Order::Grouped(group.into()),
            ..self
        }
    }
    /// Row by row (the default).
    #[must_use]
    pub fn row_major(self) -> ItemsRef {
        ItemsRef {
            order: Order::Tile(TileOrder::RowMajor),
            ..self
        }
    }
    /// Column by column.
    #[must_use]
    pub fn column_major(self) -> ItemsRef {
        ItemsRef {
            order: Order::Tile(TileOrder::ColumnMajor),
            ..self
        }
    }
    /// Without the first `n` of each shard, in the loop's order.
    #[must_use]
    pub fn skip(self, n: impl Into<RankExpr>) -> ItemsRef {
        self.cut(Cut::Skip(n.into()))
    }
    /// Only the first `n` of each shard.
    #[must_use]
    pub fn take(self, n: impl Into<RankExpr>) -> ItemsRef {
        self.cut(Cut::Take(n.into()))
    }
    /// Only the first of every `n` of a shard: 1 to 65536. `.skip(1).step_by(2)` has what `.step_by(2)` leaves.
    #[must_use]
    pub fn step_by(self, n: impl Into<RankExpr>) -> ItemsRef {
        self.cut(Cut::StepBy(n.into()))
    }
    /// Only the first half of each shard: of an odd number, the larger.
    #[must_use]
    pub fn first_half(self) -> ItemsRef {
        self.cut(Cut::FirstHalf)
    }
    /// Only what [`first_half`](Self::first_half) leaves.
    #[must_use]
    pub fn second_half(self) -> ItemsRef {
        self.cut(Cut::SecondHalf)
    }

    fn cut(mut self, cut: Cut) -> ItemsRef {
        self.cuts.push(cut);
        self
    }
}

impl From<PartitionRef> for ItemsRef {
    fn from(partition: PartitionRef) -> Self {
        partition.all()
    }
}

/// One axis of a counter set: a partition, [`world`](super::world), or a number of cells.
///
/// ```
/// use counterflow_codegen::builder::{Axis, ScheduleBuilder, world};
///
/// let mut s = ScheduleBuilder::new("axes");
/// let axes: [Axis; 2] = [world().into(), 4.into()];
/// let turns = s.counters("turns", axes); // 4 cells for each rank
/// let flag = s.counters("flag", []); // one cell
/// # drop((turns, flag));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Axis(pub(super) CounterDim);

impl From<PartitionRef> for Axis {
    fn from(partition: PartitionRef) -> Self {
        Axis(CounterDim::Items(partition.0))
    }
}
impl From<RankExpr> for Axis {
    /// [`world`](super::world). Any other rank expression is no axis: it counts as one cell, and lowering reports its use.
    fn from(expr: RankExpr) -> Self {
        match expr {
            RankExpr::World => Axis(CounterDim::World),
            RankExpr::Const(count) => Axis(CounterDim::Count(u32::try_from(count).unwrap_or(0))),
            RankExpr::Me | RankExpr::Var(_) | RankExpr::Binary(..) => Axis(CounterDim::Count(0)),
        }
    }
}
impl From<u32> for Axis {
    fn from(count: u32) -> Self {
        Axis(CounterDim::Count(count))
    }
}

impl From<RankExpr> for Slots {
    /// [`world`](super::world), one less, or a constant. Anything else counts as no slots, which lowering reports.
    fn from(expr: RankExpr) -> Self {
        match expr {
            RankExpr::World => Slots::World,
            RankExpr::Const(count) => Slots::Count(u32::try_from(count).unwrap_or(0)),
            RankExpr::Binary(RankOp::Sub, of, less)
                if (&*of, &*less) == (&RankExpr::World, &RankExpr::Const(1)) =>
            {
                Slots::Peers
            }
            RankExpr::Me | RankExpr::Var(_) | RankExpr::Binary(..) => Slots::Count(0),
        }
    }
}
impl From<u32> for Slots {
    fn from(count: u32) -> Self {
        Slots::Count(count)
    }
}
