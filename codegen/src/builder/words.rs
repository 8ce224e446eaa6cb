//! The words of a schedule: ranks and orders over them, indices of several, choices left open.

use crate::order::{OrderFn, RankOrder};
use crate::program::{Pick, Setting};
use crate::rank::RankExpr;

/// The rank that runs the schedule.
pub fn me() -> RankExpr {
    RankExpr::Me
}

/// How many ranks there are.
pub fn world() -> RankExpr {
    RankExpr::World
}

/// All ranks but me, as an index of slots or cells.
pub fn others() -> Pick {
    Pick::Others
}

/// All ranks, as an index of slots or cells.
pub fn everyone() -> Pick {
    Pick::All
}

/// The ranks, to be visited in an order. By itself ascending, the same order on every rank.
pub fn ranks() -> Ranks {
    Ranks(RankOrder::Ascending)
}

/// The chunks in the order in which they come by when every rank passes what it has to rank `me + step`:
/// mine, then the one from `me - step`, and so on. Visits every rank if `step` and the world have no common factor.
pub fn ring(step: i32) -> Ranks {
    Ranks(RankOrder::FromMe {
        start: 0,
        stride: step.saturating_neg(),
        skipped: 0,
    })
}

/// An order over ranks, made by [`ranks`] or [`ring`].
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Ranks(pub RankOrder);

impl Ranks {
    /// Me, then me + 1, and so on around.
    #[must_use]
    pub fn from_me(self) -> Ranks {
        Ranks(RankOrder::FromMe {
            start: 0,
            stride: 1,
            skipped: 0,
        })
    }
    /// me + 1, me + 2, … around, without me.
    #[must_use]
    pub fn after_me(self) -> Ranks {
        Ranks(RankOrder::FromMe {
            start: 1,
            stride: 1,
            skipped: 1,
        })
    }
    /// me - 1, me - 2, … around, without me.
    #[must_use]
    pub fn before_me(self) -> Ranks {
        Ranks(RankOrder::FromMe {
            start: -1,
            stride: -1,
            skipped: 1,
        })
    }
    /// The order without its last `n` ranks.
    #[must_use]
    pub fn but_last(self, n: u32) -> Ranks {
        Ranks(self.0.but_last(n))
    }
    /// `order(me, step, world)` for each step below `world`. Becomes a table in the plan.
    #[must_use]
    pub fn by(self, order: OrderFn) -> Ranks {
        Ranks(RankOrder::Table(order))
    }
}

/// A number or pair that may be left open: a constant, or [`tune`] of several.
#[derive(Clone, PartialEq, Debug)]
pub struct Tune(pub(super) Vec<Setting>);

/// A choice left open: the first option is the default. All options must be of one kind.
pub fn tune<T: Into<Setting>>(options: impl IntoIterator<Item = T>) -> Tune {
    Tune(options.into_iter().map(Into::into).collect())
}

impl From<u32> for Setting {
    fn from(value: u32) -> Self {
        Setting::One(value)
    }
}
impl From<bool> for Setting {
    fn from(value: bool) -> Self {
        Setting::One(value.into())
    }
}
impl From<(u32, u32)> for Setting {
    fn from((rows, columns): (u32, u32)) -> Self {
        Setting::Pair(rows, columns)
    }
}
impl From<u32> for Tune {
    fn from(value: u32) -> Self {
        Tune(vec![value.into()])
    }
}
impl From<bool> for Tune {
    fn from(value: bool) -> Self {
        Tune(vec![value.into()])
    }
}
impl From<(u32, u32)> for Tune {
    fn from(value: (u32, u32)) -> Self {
        Tune(vec![value.into()])
    }
}

/// What a `#[gemm]` loop may leave to the tuner or set: absent entries have the kernel's defaults.
#[derive(Clone, Default, Debug)]
pub struct GemmOptions {
    /// Depth of one step of the K loop, in elements.
    pub k: Option<Tune>,
    /// CTAs of a cluster along rows and columns of tiles, which load together what their tiles have in common.
    pub cluster: Option<Tune>,
    /// CTAs of a cluster that share the K steps of each tile, and then add up what they have: for few tiles and a
    /// deep K. With a `cluster` of two, it has so many for each of them: at most 8 in all.
    pub split: Option<Tune>,
    /// Stages of the shared-memory ring.
    pub stages: Option<Tune>,
    /// Panels through which results leave shared memory.
    pub panels: Option<Tune>,
    /// Whether the warpgroups that multiply take tiles in turn, instead of sharing each. Those of 64 rows
    /// always are, and of 64 columns where rows are no multiple of 64.
    pub ping_pong: Option<Tune>,
}
