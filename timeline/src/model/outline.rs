//! A lower bound on a launch's time, from the kernel's loops alone. Many variants are first compared by it.
//!
//! A CTA computes its tiles one after another, and each costs at least [`Costs::dot`] of a tile with cached operands
//! and without waits. So a rank takes at least its CTAs' share of all tiles, in whole tiles. Every shard counts as the
//! smallest, a branch as the cheaper side, and a partial tile as the last one: the bound may be too small, never too
//! large.

use super::cost::{Costs, Ps, ps, seconds};
use super::start::launch;
use super::state::lane_count;
use counterflow_codegen::diag::Diagnostics;
use counterflow_codegen::kernel::{Axis, Block, Kernel, Op, OpKind, Region, RoleKind};
use counterflow_codegen::machine::Machine;
use counterflow_codegen::order::{Selection, TileOrder};
use counterflow_codegen::plan::{Grid, Plan};
use counterflow_codegen::program::{PartitionId, Side, Var};
use counterflow_codegen::region::{Owner, Rectangle};
use counterflow_codegen::shape::{Extent, Shape};
use counterflow_codegen::verify::Checked;

/// Facts about a plan before it is unrolled or verified.
///
/// ```
/// use counterflow_codegen::machine::Machine;
/// use counterflow_timeline::model::{Outline, outline, seconds};
/// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/../codegen/tests/fixtures/example.rs")); }
///
/// let (series, plan) = example::proven();
/// let Outline { least, grid } = outline(series.kernel(), &plan.shape, &Machine::h200())?;
/// assert!(least <= seconds(series.kernel(), &plan, &Machine::h200())?);
/// println!("{} tiles on {} CTAs", grid.tiles, grid.gemm);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Outline {
    /// A lower bound of [`super::seconds`].
    pub least: f64,
    /// The CTAs, and the number of tiles they compute.
    pub grid: Grid,
}

/// A cheap outline of the kernel's plan for that shape.
///
/// # Errors
/// What [`Plan::new`] rejects before it unrolls anything: an illegal shape, tiles or a grid that do not fit.
pub fn outline(
    kernel: &Checked<Kernel>,
    shape: &Shape,
    machine: &Machine,
) -> Result<Outline, Diagnostics> {
    let outlines = Outlines::new(kernel, shape, machine)?;
    Ok(Outline {
        least: outlines.least(&[]),
        grid: outlines.grid(),
    })
}

/// Outlines of kernels that differ in the order of their tiles alone.
///
/// ```
/// use counterflow_codegen::machine::Machine;
/// use counterflow_timeline::model::{Outlines, outline};
/// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/../codegen/tests/fixtures/example.rs")); }
///
/// let (series, plan) = example::proven();
/// let machine = Machine::h200();
/// let outlines = Outlines::new(series.kernel(), &plan.shape, &machine)?;
/// let as_written = outline(series.kernel(), &plan.shape, &machine)?;
/// assert_eq!((outlines.least(&[]), outlines.grid()), (as_written.least, as_written.grid));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Outlines<'a> {
    kernel: &'a Kernel,
    machine: &'a Machine,
    plan: Plan,
}

impl<'a> Outlines<'a> {
    /// The outlines of `kernel` for that shape.
    ///
    /// # Errors
    /// As [`outline`].
    pub fn new(
        kernel: &'a Checked<Kernel>,
        shape: &Shape,
        machine: &'a Machine,
    ) -> Result<Outlines<'a>, Diagnostics> {
        Ok(Outlines {
            plan: Plan::outlined(kernel, shape, machine)?,
            kernel,
            machine,
        })
    }

    /// The CTAs, and the number of tiles they compute. No order changes it.
    pub const fn grid(&self) -> Grid {
        self.plan.grid
    }

    /// [`Outline::least`] in seconds, if the loops over items of these variables have these orders, and others the kernel's.
    pub fn least(&self, orders: &[(Var, TileOrder)]) -> f64 {
        let plan = &self.plan;
        let mut loops = Loops {
            plan,
            costs: Costs::in_orders(self.kernel, plan, self.machine, orders),
            tile: [0, 0],
            fresh: true,
        };
        let roles = &self.kernel.roles;
        let lanes = roles.iter().map(|role| match role.kind {
            RoleKind::Gemm(_) | RoleKind::Comm { .. } => lane_count(role.kind, plan),
            RoleKind::SpareWarps | RoleKind::CopyEngine => 0,
        });
        let lanes = u64::from(lanes.sum::<u32>()).max(1);
        let each = roles.iter().map(|role| match role.kind {
            RoleKind::Gemm(_) => loops.blocks(&role.body).over(lanes),
            RoleKind::Comm { .. } | RoleKind::SpareWarps | RoleKind::CopyEngine => 0,
        });
        let longest = each.max().unwrap_or(0);
        seconds(ps(launch(self.machine, self.kernel, plan.grid)) + longest)
    }
}

/// Tiles of some loops: their number, their total cost, and the cheapest one's cost.
#[derive(Clone, Copy, Default)]
struct Work {
    tiles: u64,
    all: Ps,
    cheapest: Option<Ps>,
}

impl Work {
    fn and(self, other: Work) -> Work {
        let cheapest = self.cheapest.into_iter().chain(other.cheapest);
        Work {
            tiles: self.tiles + other.tiles,
            all: self.all + other.all,
            cheapest: cheapest.min(),
        }
    }

    /// The lower figures of the two, since either may run.
    fn or(self, other: Work) -> Work {
        Work {
            tiles: self.tiles.min(other.tiles),
            all: self.all.min(other.all),
            ..self.and(other)
        }
    }

    fn times(self, count: u64) -> Work {
        Work {
            tiles: self.tiles * count,
            all: self.all * count,
            ..self
        }
    }

    /// The least time with that many lanes: one of them has a full share.
    fn over(self, lanes: u64) -> Ps {
        let share = self.tiles.div_ceil(lanes) * self.cheapest.unwrap_or(0);
        share.max(self.all / lanes)
    }
}

struct Loops<'a> {
    plan: &'a Plan,
    costs: Costs<'a>,
    /// Rows and columns of the tile.
    tile: [u32; 2],
    /// No dot of the item was counted yet.
    fresh: bool,
}

impl Loops<'_> {
    fn blocks(&mut self, body: &[Block]) -> Work {
        let geometry = &self.plan.geometry;
        body.iter().fold(Work::default(), |work, block| {
            work.and(match block {
                Block::ForRanks { order, body, .. } => {
                    let steps = order.most_steps(geometry.world);
                    self.blocks(body).times(steps.into())
                }
                Block::If {
                    then, otherwise, ..
                } => self.blocks(then).or(self.blocks(otherwise)),
                Block::Items {
                    partition,
                    shard,
                    selection,
                    body,
                    ..
                } => {
                    let shards = 0..geometry.partition_shards(*partition);
                    let each = shards.map(|of| self.items(*partition, of, selection, body));
                    match shard {
                        None => each.fold(Work::default(), Work::and),
                        Some(_) => each.reduce(Work::or).unwrap_or_default(),
                    }
                }
                Block::Once { .. } | Block::Join => Work::default(),
            })
        })
    }

    /// The tiles of a shard: whole ones, and others that cost at least as much as the last.
    fn items(
        &mut self,
        partition: PartitionId,
        shard: u32,
        selection: &Selection,
        body: &[Op],
    ) -> Work {
        let geometry = &self.plan.geometry;
        let item = &self.costs.kernel().partitions[partition.index()];
        let (rows, columns) = geometry.grid(partition, Some(shard));
        let all = rows.saturating_mul(columns);
        let (some, _) = selection.least_and_most(all, geometry.world);
        let tiles = u64::from(some);
        if tiles == 0 {
            return Work::default();
        }
        let sizes = Side::ALL.map(|side| {
            let size = geometry.span(partition, side, shard).len();
            (size, item.block(side))
        });
        let blocks = sizes.map(|(size, block)| block.unwrap_or(size).max(1));
        let whole = [0, 1].map(|side| u64::from(sizes[side].0 / blocks[side]));
        let last = [0, 1].map(|side| (sizes[side].0 - 1) % blocks[side] + 1);
        let mut each = |tile| {
            self.tile = tile;
            self.fresh = true;
            self.ops(body)
        };
        let (full, cheapest) = (each(blocks), each(last));
        let partial = u64::from(all) - whole[0] * whole[1];
        let whole = tiles.saturating_sub(partial);
        Work {
            tiles,
            all: full * whole + cheapest * (tiles - whole),
            cheapest: Some(cheapest),
        }
    }

    /// The cost of one item's products.
    fn ops(&mut self, body: &[Op]) -> Ps {
        let mut all = 0;
        for op in body {
            all += match &op.kind {
                OpKind::ForRanks { order, body, .. } => {
                    let steps = order.most_steps(self.plan.geometry.world);
                    (0..steps).map(|_| self.ops(body)).sum()
                }
                OpKind::If {
                    then, otherwise, ..
                } => {
                    let before = self.fresh;
                    let then = self.ops(then);
                    let after = std::mem::replace(&mut self.fresh, before);
                    let otherwise = self.ops(otherwise);
                    self.fresh &= after;
                    then.min(otherwise)
                }
                OpKind::Dot { a, b, .. } => {
                    let (a, b) = (self.operand(a), self.operand(b));
                    let first = std::mem::replace(&mut self.fresh, false);
                    self.costs.dot(op.id, &a, &b, first)
                }
                OpKind::Wait { .. }
                | OpKind::Signal { .. }
                | OpKind::Copy { .. }
                | OpKind::Reduce { .. }
                | OpKind::Load { .. }
                | OpKind::Store { .. } => 0,
            };
        }
        all
    }

    /// An operand of a tile, wherever the tile is.
    fn operand(&self, region: &Region) -> Rectangle {
        let buffer = &self.costs.kernel().buffers[region.buffer.index()];
        let geometry = &self.plan.geometry;
        let first = |end| Extent { start: 0, end };
        let depth = geometry.size(buffer.columns);
        let columns = match region.columns {
            Axis::All => first(depth),
            Axis::RowsOf(_) | Axis::ColumnsOf(_) => first(0),
        };
        let rows = match region.rows {
            Axis::RowsOf(_) => self.tile[0],
            Axis::ColumnsOf(_) => self.tile[1],
            Axis::All => 0,
        };
        Rectangle {
            tensor: region.buffer,
            owner: Owner::Rank(0),
            slot: 0,
            rows: first(rows),
            columns,
        }
    }
}
