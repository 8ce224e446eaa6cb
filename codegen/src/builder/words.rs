//! The words of a schedule: ranks and orders of them, indices of several ranks, open choices.

use crate::order::{ByClosure, OrderFn, RankOrder};
use crate::program::{Pick, Setting};
use crate::rank::RankExpr;

/// The rank that runs the schedule.
///
/// ```
/// use counterflow_codegen::builder::{me, world};
///
/// let next = (me() + 1) % world();
/// assert_eq!(next.eval(3, 4, &|_| None), Ok(0)); // of rank 3 of 4
/// ```
pub fn me() -> RankExpr {
    RankExpr::Me
}

/// Number of ranks.
///
/// [`me`] has an example.
pub fn world() -> RankExpr {
    RankExpr::World
}

/// All ranks but me, as an index of slots or cells.
///
/// In a schedule: `partial[others()][t].sum()`, once the cells `landed[others()][t]` have been waited for. With the builder:
///
/// ```
/// # use counterflow_codegen::{builder::*, dtype::Dtype::Bf16};
/// # let mut s = ScheduleBuilder::new("sums");
/// # let y = s.reduce_scattered("y", Bf16);
/// # let tiles = s.tiles("tiles", y, (128, 128));
/// # let partial = s.symmetric("partial", Bf16, y, world());
/// # let landed = s.counters("landed", [world().into(), tiles.into()]);
/// # s.gemm(GemmOptions::default(), |s| s.for_items("t", tiles.of(me()), |s, t| {
/// s.wait(landed.at(others()).at(t));
/// let sum = s.sum(partial.at(others()).at(t)); // or `everyone()`, with this rank's slot
/// # s.store(y.at(t), sum);
/// # }));
/// ```
pub fn others() -> Pick {
    Pick::Others
}

/// All ranks, as an index of slots or cells.
///
/// [`others`] has an example with both.
pub fn everyone() -> Pick {
    Pick::All
}

/// The ranks in ascending order, the same on every rank. Methods make other orders.
///
/// [`Ranks`] has an example.
pub fn ranks() -> Ranks {
    Ranks(RankOrder::Ascending)
}

/// The shards in ring order: every rank forwards what it has to rank `me + step`, so mine comes first, then that of
/// `me - step`, and so on. Visits every rank if `step` and the world have no common factor.
///
/// ```
/// use counterflow_codegen::builder::ring;
///
/// let shards = |me| (0..4).map(|step| ring(1).0.at(me, step, 4)).collect::<Vec<_>>();
/// assert_eq!(shards(2), [2, 1, 0, 3]); // mine, then that of the rank before me, which it sent me, ...
/// ```
pub fn ring(step: i32) -> Ranks {
    Ranks(RankOrder::FromMe {
        start: 0,
        stride: step.saturating_neg(),
        skipped: 0,
        but_last: Vec::new(),
    })
}

/// An order over ranks, made by [`ranks`] or [`ring`].
///
/// ```
/// use counterflow_codegen::builder::{Ranks, ranks, ring, world};
///
/// /// The ranks that rank 1 of 4 visits.
/// fn visits(order: Ranks) -> Vec<u32> {
///     let steps = order.0.steps(1, 4, &|_| None).expect("steps");
///     (0..steps).map(|step| order.0.at(1, step, 4)).collect()
/// }
/// assert_eq!(visits(ranks()), [0, 1, 2, 3]);
/// assert_eq!(visits(ranks().from_me()), [1, 2, 3, 0]);
/// assert_eq!(visits(ranks().after_me()), [2, 3, 0]);
/// assert_eq!(visits(ranks().before_me()), [0, 3, 2]);
/// assert_eq!(visits(ring(1).but_last(1)), [1, 0, 3]); // all but the last one are sent on
/// assert_eq!(visits(ranks().after_me().but_last(world() - 2)), [2]);
/// assert_eq!(visits(ranks().by(|me, step, _| me ^ step)), [1, 0, 3, 2]); // a table of one's own
/// ```
#[derive(Clone, PartialEq, Debug)]
pub struct Ranks(pub RankOrder<ByClosure>);

impl Ranks {
    /// Me, then me + 1, and so on around.
    #[must_use]
    pub fn from_me(self) -> Ranks {
        Ranks(RankOrder::FromMe {
            start: 0,
            stride: 1,
            skipped: 0,
            but_last: Vec::new(),
        })
    }
    /// me + 1, me + 2, … around, without me.
    #[must_use]
    pub fn after_me(self) -> Ranks {
        Ranks(RankOrder::FromMe {
            start: 1,
            stride: 1,
            skipped: 1,
            but_last: Vec::new(),
        })
    }
    /// me - 1, me - 2, … around, without me.
    #[must_use]
    pub fn before_me(self) -> Ranks {
        Ranks(RankOrder::FromMe {
            start: -1,
            stride: -1,
            skipped: 1,
            but_last: Vec::new(),
        })
    }
    /// The order without its last `n` ranks: a number or an expression of `me()`, `world()` and the variables of loops
    /// over ranks around it. Without any if `n` is the world or more. `n` may not be negative.
    #[must_use]
    pub fn but_last(self, n: impl Into<RankExpr>) -> Ranks {
        Ranks(self.0.but_last(n))
    }
    /// `order(me, step, world)` for each step below `world`. It is asked once for each step of each rank when an op is built
    /// ([`Program::tabulated`](crate::program::Program::tabulated)). What it said then is proved and launched, and must be the
    /// same on every rank.
    #[must_use]
    pub fn by(self, order: OrderFn) -> Ranks {
        Ranks(RankOrder::Table(ByClosure::Closure(order)))
    }
}

/// A number or pair: a constant, or an open choice made by [`tune`].
///
/// [`tune`] has an example.
#[derive(Clone, PartialEq, Debug)]
pub struct Tune(pub(super) Vec<Setting>);

/// An open choice. The first option is the default. All options must be numbers, or all pairs.
///
/// ```
/// use counterflow_codegen::builder::{ScheduleBuilder, Tune, tune};
/// use counterflow_codegen::dtype::Dtype::Bf16;
///
/// let mut s = ScheduleBuilder::new("open");
/// let y = s.out("y", Bf16);
/// s.tiles("tiles", y, tune([(128, 256), (128, 128)])); // the first, unless a variant says otherwise
/// s.chunks("chunks", y, 128); // no choice: the same as `Tune::from(128)`
/// let program = s.finish();
/// assert_eq!(program.tunables.len(), 1);
/// # let _: Tune = 128.into();
/// ```
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

/// The options of a `#[gemm]` loop. Absent ones have the kernel's defaults.
///
/// ```
/// use counterflow_codegen::builder::{GemmOptions, ScheduleBuilder, tune};
///
/// let mut s = ScheduleBuilder::new("options");
/// let options = GemmOptions {
///     k: Some(64.into()),
///     ping_pong: Some(tune([false, true])), // a choice: `gemm.ping_pong`
///     ..GemmOptions::default()
/// };
/// s.gemm(options, |s| { /* loops over tiles */ });
/// # s.finish();
/// ```
#[derive(Clone, Default, Debug)]
pub struct GemmOptions {
    /// Depth of one step of the K loop, in elements.
    pub k: Option<Tune>,
    /// CTAs of a cluster along rows and columns of tiles. They load what their tiles share by multicast.
    pub cluster: Option<Tune>,
    /// CTAs of a cluster that divide the K steps of each tile and then add up their sums: for few tiles and a deep K. At
    /// most 8, and not together with a `cluster` of two.
    pub split: Option<Tune>,
    /// Stages of the shared-memory ring.
    pub stages: Option<Tune>,
    /// Shared-memory buffers through which results are stored.
    pub subtiles: Option<Tune>,
    /// If true, the warpgroups that multiply take whole tiles in ping-pong instead of sharing each. Tiles of 64 rows
    /// always do, and tiles of 64 columns whose rows are no multiple of 64.
    pub ping_pong: Option<Tune>,
}
