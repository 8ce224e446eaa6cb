//! Orders of ranks, and of the items of a shard. Each order is defined once.
//!
//! Every affine order is generic over [`Int`]: the planner and the emulator compute with it, and the emitter prints the
//! same line. An order given as a closure has no expression. It is asked once for a world, and a kernel has its table.

mod selection;
mod table;

use crate::rank::{RankError, RankExpr, Var};
pub use selection::{Chosen, Cut, MOST_STEP, Selection};
use std::fmt;
use std::ops::{Add, Div, Mul, Rem, Sub};
pub use table::{ByClosure, ByStep, OrderFn, RankTable};

/// The integers of an order: numbers in the planner and the emulator, expressions in the emitter. Never negative.
pub trait Int:
    Clone
    + Add<Output = Self>
    + Sub<Output = Self>
    + Mul<Output = Self>
    + Div<Output = Self>
    + Rem<Output = Self>
{
    /// The constant `value`.
    fn constant(value: u32) -> Self;
    /// The smaller of two.
    fn min(self, other: Self) -> Self;
    /// Gives the number a name, which a printed text may use.
    #[must_use]
    fn named(self, name: &'static str) -> Self {
        let _ = name;
        self
    }
}

impl Int for u32 {
    fn constant(value: u32) -> Self {
        value
    }
    fn min(self, other: Self) -> Self {
        Ord::min(self, other)
    }
}

/// The order in which a rank visits ranks (and the shards they own). `T` is an order by closure: of a kernel its table, of a
/// [`Program`](crate::program::Program) what was written.
#[derive(Clone, PartialEq)]
pub enum RankOrder<T = RankTable> {
    /// Step `s` is at `(me + start + stride * s) mod world`, for each of the `world` steps but those that are left out at
    /// the end: `skipped`, and all of `but_last`. None if those are the world or more.
    FromMe {
        /// The first rank, relative to me.
        start: i32,
        /// The distance of one step.
        stride: i32,
        /// Number that is left out in every world.
        skipped: u32,
        /// Numbers that are left out besides, each not negative.
        but_last: Vec<RankExpr>,
    },
    /// Ranks `0..world`, the same on every rank.
    Ascending,
    /// One by closure, with as many steps as there are ranks.
    Table(T),
}

impl<T> RankOrder<T> {
    /// Number of steps that rank `me` takes in a world of `world` ranks. `var` gives the values of loop variables.
    ///
    /// # Errors
    /// As [`left_out`] of what the order leaves out.
    pub fn steps(
        &self,
        me: u32,
        world: u32,
        var: &impl Fn(Var) -> Option<i64>,
    ) -> Result<u32, RankError> {
        match self {
            RankOrder::FromMe {
                skipped, but_last, ..
            } => {
                let steps = world.saturating_sub(*skipped);
                but_last.iter().try_fold(steps, |steps, n| {
                    Ok(steps.saturating_sub(left_out(n, me, world, var)?))
                })
            }
            RankOrder::Ascending | RankOrder::Table(_) => Ok(world),
        }
    }

    /// The most steps that any rank takes: `world` if loop variables decide.
    pub fn most_steps(&self, world: u32) -> u32 {
        let steps = (0..world).map(|me| self.steps(me, world, &|_| None).unwrap_or(world));
        steps.max().unwrap_or(0)
    }

    /// Numbers of steps left out at its end, beside constants.
    pub fn but_lasts(&self) -> &[RankExpr] {
        match self {
            RankOrder::Ascending | RankOrder::Table(_) => &[],
            RankOrder::FromMe { but_last, .. } => but_last,
        }
    }

    /// Leaves out the last `n` steps.
    #[must_use]
    pub fn but_last(mut self, n: impl Into<RankExpr>) -> Self {
        if let RankOrder::FromMe {
            skipped, but_last, ..
        } = &mut self
        {
            match n.into() {
                RankExpr::Const(more @ 0..) => {
                    *skipped = skipped.saturating_add(u32::try_from(more).unwrap_or(u32::MAX));
                }
                more => but_last.push(more),
            }
        }
        self
    }
}

/// Number of steps that `n` leaves out on rank `me`. `var` gives the values of loop variables.
///
/// # Errors
/// As [`RankExpr::eval`], and if it is negative.
pub fn left_out(
    n: &RankExpr,
    me: u32,
    world: u32,
    var: &impl Fn(Var) -> Option<i64>,
) -> Result<u32, RankError> {
    match n.eval(me, world, var)? {
        ..0 => Err(RankError::Negative),
        n => Ok(u32::try_from(n).unwrap_or(u32::MAX)),
    }
}

/// `(me + start + stride * step) mod world`, without a negative intermediate: `step < world` bounds what is added.
pub fn affine<I: Int>(start: i32, stride: i32, me: I, step: I, world: I) -> I {
    let whole = |n: u32| I::constant(n) * world.clone();
    let mut at = me;
    if start < 0 {
        at = at + whole(start.unsigned_abs()) - I::constant(start.unsigned_abs());
    } else if start > 0 {
        at = at + I::constant(start.unsigned_abs());
    }
    match stride {
        0 => {}
        1 => at = at + step,
        // A negative start adds at least world - 1.
        -1 if start < 0 => at = at - step,
        s if s > 0 => at = at + I::constant(s.unsigned_abs()) * step,
        s => at = at + I::constant(s.unsigned_abs()) * (world.clone() - step),
    }
    at % world
}

impl<T: ByStep> RankOrder<T> {
    /// The rank at step `step` of rank `me`. A table knows only its own world's.
    pub fn at(&self, me: u32, step: u32, world: u32) -> u32 {
        match self {
            RankOrder::FromMe { start, stride, .. } => {
                // Numbers stay below world² whatever the user wrote.
                let within = |n: i32| {
                    i32::try_from(world).map_or(n, |world| n.checked_rem_euclid(world).unwrap_or(0))
                };
                affine(within(*start), within(*stride), me, step, world)
            }
            RankOrder::Ascending => step,
            RankOrder::Table(order) => order.at(me, step, world),
        }
    }
}

impl<T> RankOrder<T> {
    /// Order with another form of what is by closure.
    pub(crate) fn map<U>(&self, of: impl FnOnce(&T) -> U) -> RankOrder<U> {
        match self {
            RankOrder::FromMe {
                start,
                stride,
                skipped,
                but_last,
            } => RankOrder::FromMe {
                start: *start,
                stride: *stride,
                skipped: *skipped,
                but_last: but_last.clone(),
            },
            RankOrder::Ascending => RankOrder::Ascending,
            RankOrder::Table(table) => RankOrder::Table(of(table)),
        }
    }
}

impl<T> RankOrder<T> {
    /// Text of the order, with loop variables under the names that `name` gives them.
    pub fn text(&self, name: &impl Fn(Var) -> String) -> String {
        match self {
            RankOrder::FromMe {
                start,
                stride,
                skipped,
                but_last,
            } => {
                let all = match (start, stride, skipped) {
                    (0, 1, 0) => "from_me".into(),
                    (1, 1, 1) => "after_me".into(),
                    (-1, -1, 1) => "before_me".into(),
                    (0, stride, 0) => format!("ring({})", -stride),
                    (0, stride, skipped) => format!("ring({}).but_last({skipped})", -stride),
                    (start, stride, skipped) => {
                        format!("from({start} by {stride}, {skipped} skipped)")
                    }
                };
                let less = but_last
                    .iter()
                    .map(|n| format!(".but_last({})", n.text(name)));
                less.fold(all, |all, less| all + &less)
            }
            RankOrder::Ascending => "ascending".into(),
            RankOrder::Table(_) => "table".into(),
        }
    }
}

impl<T> fmt::Display for RankOrder<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text(&|var| format!("var{}", var.0)))
    }
}

/// Unlike its text, with the ranks of a table: two orders of one text may differ in those.
impl<T: fmt::Debug> fmt::Debug for RankOrder<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RankOrder::Table(table) => table.fmt(f),
            RankOrder::FromMe { .. } | RankOrder::Ascending => fmt::Display::fmt(self, f),
        }
    }
}

/// The order of the items of one shard: item `index` of a grid of `rows` by `columns`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TileOrder {
    /// Along a row, then the next row.
    RowMajor,
    /// Down a column, then the next column.
    ColumnMajor,
    /// Groups of this many rows; within a group, column by column. Keeps both operands of nearby tiles in L2.
    Grouped(u32),
}

impl TileOrder {
    /// The (row, column) of item `index`, for `index` below `rows * columns`.
    pub fn at<I: Int>(self, index: I, rows: I, columns: I) -> (I, I) {
        match self {
            TileOrder::RowMajor => (index.clone() / columns.clone(), index % columns),
            TileOrder::ColumnMajor => (index.clone() % rows.clone(), index / rows),
            TileOrder::Grouped(group) => {
                let size = I::constant(group.max(1));
                let in_group = (size.clone() * columns).named("sweep");
                let first = (index.clone() / in_group.clone() * size.clone()).named("first");
                let height = (rows - first.clone()).min(size).named("height");
                let within = (index % in_group).named("within");
                (first + within.clone() % height.clone(), within / height)
            }
        }
    }
}

impl fmt::Display for TileOrder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TileOrder::RowMajor => f.write_str("row_major"),
            TileOrder::ColumnMajor => f.write_str("column_major"),
            TileOrder::Grouped(group) => write!(f, "grouped({group})"),
        }
    }
}
