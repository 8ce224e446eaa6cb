//! The warp level: how the warps of a CTA do what a checked kernel says, with every barrier, group, fence, release and
//! acquire spelled out.
//!
//! [`crate::sm90::build`] makes a [`Pipeline`] from a checked kernel or refuses with the numbers,
//! [`crate::verify::pipeline`] runs all warps of all
//! CTAs of a few ranks on a small case and accepts it, and `counterflow_emitter::emit` prints what was accepted. Both read
//! the same nodes; a number is written once, as an [`Expr`].
//!
//! On Hopper a CTA has three warpgroups. In the first, warp 0's elected thread loads (*load*) and warp 1's stores
//! (*store*); on CTAs that move data the same two threads first fetch and send. The other two warpgroups multiply
//! (*multiply*): they share a tile, half of its rows each (of its columns, if it is [swapped](Tiling::swap_ab)), or take
//! tiles in ping-pong, so that one rounds and hands over its tile while the other multiplies; then each has subtiles of its own
//! and a thread that stores them. Where they share a tile that is too large for all of its subtiles to have room beside three
//! stages, they end it with staggered epilogues: each has subtiles of its own half and a thread that stores them, in places
//! that go from
//! one to the other. Operands pass through a ring of stages, results through a ring of subtiles.
//!
//! CTAs of a cluster work together in one of two ways. Those that have tiles beside each other load what these have in
//! common, a piece each into all of them; `multicast_rank` is which of them one is. Those that share the K steps of a tile
//! send each other their sums, which may lie where the stages are; `split_rank` is which.

pub mod cells;
mod expr;
mod fragment;
mod node;
mod ring;
mod scheduler;
mod spelling;
mod symbol;
mod text;
mod visit;

pub use crate::sm90::cta::{
    BLOCK_ROWS, CONSUMERS, PARTIAL_BOX_ROWS, RunBy, STAGING_COLUMNS, SlotKind,
};
pub use crate::tiling::{Subtile, Tile};
pub use expr::{CellNumber, Expr, Field, MOST_STEPS, Op, OrderId, Test, Values};
pub use fragment::{Along, Elements, Epilogue, FragmentOp, Param, ReadInto, ScalesTo, Source};
pub use node::{At, Grid, Map, MapId, Node, Note, PartialBoxes, Phase, Slot, Unroll, View, Whose};
pub use ring::{Barrier, BarrierId, Buffer, MulticastArrivals, Part, Ring, RingId, Scope, Side};
pub use scheduler::{Ctas, ItemLoop, LoopId, Scheduler, SchedulerId};
pub use spelling::{
    Spelling, counter_name, factor, field_name, identifier, number, test, variable,
};
pub use symbol::{Symbol, TileNumber};
pub use visit::Reaches;

use crate::checked::{Checked, Subject};
use crate::dtype::Dtype;
use crate::kernel::Kernel;
use crate::order::{RankTable, TileOrder};
use crate::program::CounterId;
use crate::sm90::cta::{Cta, Role};
use crate::tiling::Tiling;

/// A kernel as the warps of a CTA run it.
#[derive(Clone, Debug)]
pub struct Pipeline {
    /// The kernel that it computes, tile by tile.
    pub kernel: Checked<Kernel>,
    /// Tilings and shared memory of a CTA.
    pub cta: Cta,
    /// CTAs that move data before they multiply: the first ones.
    pub comm: Option<Comm>,
    /// Items of each role's loops that the CTAs have.
    pub schedulers: Vec<Scheduler>,
    /// The tensor maps.
    pub maps: Vec<Map>,
    /// The rings, by [`RingId`].
    pub rings: Vec<Ring>,
    /// The orders of ranks that the host passes as tables.
    pub orders: Vec<OrderTable>,
    /// Numbers that all warps use.
    pub lets: Vec<(String, Expr)>,
    /// The math after the dot, by [`FragmentOp::Apply`].
    pub epilogues: Vec<Epilogue>,
    /// Counters whose cells get several arrivals for each the kernel counts: by how many.
    pub scale: Vec<(CounterId, Expr)>,
    /// True if its CTAs may come while the launch before on the stream still runs, and let those of the next launch come
    /// as soon as all of its own are there ([`crate::sm90::cta::dependent_launch`]).
    pub dependent_launch: bool,
    /// Nodes of all warps once the CTA's barriers are there: none, or the wait of dependent launches.
    pub start: Vec<Node>,
    /// Programs of the warps.
    pub warps: Vec<Warp>,
    /// Nodes of all warps at the end: none, or a barrier and the last CTA's work.
    pub end: Vec<Node>,
}

/// An order of ranks that has no expression.
#[derive(Clone, Debug)]
pub struct OrderTable {
    /// Name in the text.
    pub name: String,
    /// The rank at each step of each rank.
    pub by: RankTable,
}

/// CTAs that move data: the first ones of a launch.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Comm {
    /// Their roles, in the order of their CTAs.
    pub roles: Vec<CommRole>,
    /// True if they take items of the GEMM when they are done.
    pub join_late: bool,
}

/// The CTAs of one role that moves data.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CommRole {
    /// Index among the kernel's roles.
    pub role: usize,
    /// The constant that says how many there are.
    pub symbol: String,
    /// Number of CTAs.
    pub ctas: u32,
}

impl Comm {
    /// Number of CTAs of all roles.
    pub fn ctas(&self) -> u32 {
        self.roles.iter().map(|role| role.ctas).sum()
    }

    /// Number of CTAs of all roles, as an expression of the kernel's text.
    pub fn count(&self) -> Expr {
        self.before(self.roles.len())
    }

    /// CTAs of the roles before the one of that index here: the number of its first one.
    pub fn before(&self, at: usize) -> Expr {
        let counts = self.roles[..at].iter().map(CommRole::count);
        counts.reduce(|all, more| all + more).unwrap_or(0.into())
    }
}

impl CommRole {
    /// Their number, as an expression of the kernel's text.
    pub fn count(&self) -> Expr {
        let symbol = Symbol::Ctas {
            role: self.role,
            name: self.symbol.clone(),
        };
        Expr::symbol(symbol, self.ctas)
    }
}

/// One role of a CTA.
#[derive(Clone, PartialEq, Debug)]
pub struct Warp {
    /// Name, also in stall records.
    pub name: &'static str,
    /// Threads that run it.
    pub run_by: RunBy,
    /// Nodes in order.
    pub body: Vec<Node>,
}

/// Lanes of a warp that run its role.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Lanes {
    /// One elected lane.
    One,
    /// All of them. What one does for all (TMA, barriers, counters), the first does.
    All,
}

impl Lanes {
    pub(crate) const fn words(self) -> &'static str {
        match self {
            Lanes::One => "one thread of",
            Lanes::All => "all lanes of",
        }
    }
}

impl Warp {
    /// Lanes of its warps that run it; of warpgroups, all do.
    pub fn lanes(&self) -> Lanes {
        let mut by_lanes = false;
        for node in &self.body {
            node.visit(&mut |node| by_lanes |= node.by_lanes());
        }
        match by_lanes || self.run_by == RunBy::Groups {
            true => Lanes::All,
            false => Lanes::One,
        }
    }
}

/// Boxes of a chunk that are sent and signalled together.
pub const BATCH: u32 = 16;
/// Stores of a sending thread that may still be reading their slots.
pub const SENDING: u32 = 5;

impl Subject for Pipeline {
    type Decided = ();
}

impl Pipeline {
    /// Tiling of its first loop: those of the others have the same sides on the instruction, and subtiles
    /// as wide.
    pub const fn tiling(&self) -> &Tiling {
        self.cta.tiling()
    }

    /// The name of a product's accumulators in the tiles of a loop: those of several products have that of the operand
    /// that is theirs.
    pub fn accumulators(&self, tiling: usize, product: usize) -> String {
        let products = self.tiling_of(tiling).products();
        if products.len() == 1 {
            return "acc".into();
        }
        let part = |part: usize| self.rings[0].part(tiling, part).name.clone();
        let common = |side: usize| products.iter().all(|it| it[side] == products[0][side]);
        match products[product] {
            [_, w] if common(0) => format!("acc_{}", part(w)),
            [x, _] if common(1) => format!("acc_{}", part(x)),
            [x, w] => format!("acc_{}_{}", part(x), part(w)),
        }
    }

    /// Rows, columns and depth of a tile of its first loop: those of the others have the same depth.
    pub const fn tile(&self) -> Tile {
        self.tiling().tile()
    }

    /// The tiles of all loops, each once.
    pub fn tiles(&self) -> Vec<Tile> {
        let mut tiles: Vec<Tile> = Vec::new();
        for tile in self.cta.tilings().iter().map(Tiling::tile) {
            if !tiles.contains(&tile) {
                tiles.push(tile);
            }
        }
        tiles
    }

    /// The constant that says how many rows a loop's tiles have, by the loop's tiling.
    pub fn tile_rows(&self, tiling: usize) -> String {
        self.constant(tiling, TileNumber::Rows.name(), |tiling| tiling.tile().rows)
    }

    /// The constant that says how many columns a loop's tiles have, by the loop's tiling.
    pub fn tile_columns(&self, tiling: usize) -> String {
        self.constant(tiling, TileNumber::Columns.name(), |tiling| {
            tiling.tile().columns
        })
    }

    /// The name of a constant that may be a loop's own, by the loop's tiling.
    pub fn constant(&self, tiling: usize, name: &str, value: impl Fn(&Tiling) -> u32) -> String {
        let stage = self.rings[0].buffer.as_ref();
        let stage = stage.expect("tiles pass through stages");
        stage.constant(self.cta.tilings(), tiling, name, value)
    }

    /// The element type of operands and results.
    pub fn dtype(&self) -> Dtype {
        self.tiling().element()
    }

    /// The types of its operands: one, or that of the first and of the second ones.
    pub fn types(&self) -> String {
        let of = |columns: bool| {
            let mut operands = self.tiling().operands().iter();
            let found = operands.find(|operand| operand.columns == columns);
            found.map_or(self.dtype(), |operand| operand.element)
        };
        match [of(false), of(true)] {
            [a, b] if a == b => a.to_string(),
            [a, b] => format!("{a}×{b}"),
        }
    }

    /// The ring of that id.
    pub fn ring(&self, ring: RingId) -> &Ring {
        &self.rings[usize::from(ring.0)]
    }

    /// The scheduler of that id.
    pub fn scheduler(&self, scheduler: SchedulerId) -> &Scheduler {
        &self.schedulers[usize::from(scheduler.0)]
    }

    /// The order of that id.
    pub fn order_table(&self, order: OrderId) -> &OrderTable {
        &self.orders[usize::from(order.0)]
    }

    /// Order in which a loop visits its grid.
    pub fn order(&self, of: LoopId) -> TileOrder {
        self.item_loop(of).order
    }

    /// A loop over items.
    pub fn item_loop(&self, of: LoopId) -> ItemLoop {
        self.scheduler(of.scheduler).loops[usize::from(of.nth)]
    }

    /// Tiling of a loop, by [`ItemLoop::tiling`].
    pub fn tiling_of(&self, tiling: usize) -> &Tiling {
        &self.cta.tilings()[tiling]
    }

    /// The map of that id.
    pub fn map(&self, map: MapId) -> &Map {
        &self.maps[usize::from(map.0)]
    }

    /// True if the contiguous dimension of a map is its tensor's rows.
    pub fn mn_major(&self, map: MapId) -> bool {
        self.kernel.buffers[self.map(map).tensor.index()].mn_major
    }

    /// Offset of the barriers in shared memory: after the rings' buffers.
    pub fn barriers_at(&self) -> u32 {
        let buffers = self.rings.iter().filter_map(|ring| ring.buffer.as_ref());
        let end = buffers.map(Buffer::end).max();
        end.unwrap_or(0).next_multiple_of(8)
    }

    /// All barriers of rings, as they lie in shared memory: of each so many as its ring has slots.
    pub fn barriers(&self) -> impl Iterator<Item = (BarrierId, &Barrier)> {
        self.rings.iter().zip(0..).flat_map(|(ring, at)| {
            let of = move |(side, barrier)| {
                let ring = RingId(at);
                (BarrierId { ring, side }, barrier)
            };
            ring.barriers().map(of)
        })
    }

    /// The barrier of that id.
    ///
    /// # Panics
    /// If its ring has no such barrier: a node that names it is a mistake in whatever made the pipeline.
    pub fn barrier(&self, id: BarrierId) -> &Barrier {
        let barrier = self.ring(id.ring).barrier(id.side);
        barrier.expect("a barrier that a node names is one of its ring's")
    }

    /// The number of a barrier's first mbarrier among all of them.
    pub fn barrier_number(&self, id: BarrierId) -> u32 {
        let before = self.barriers().take_while(|(other, _)| *other != id);
        before.map(|(other, _)| self.ring(other.ring).all()).sum()
    }

    /// Number of mbarriers of the rings.
    pub fn ring_barriers(&self) -> u32 {
        let all = self.barriers();
        all.map(|(id, _)| self.ring(id.ring).all()).sum()
    }

    /// Offset of the order barriers, if there are any: after those of the rings.
    pub fn order_at(&self) -> u32 {
        self.barriers_at() + self.ring_barriers() * 8
    }

    /// Bytes of shared memory a CTA needs.
    pub fn shared_bytes(&self) -> u32 {
        self.order_at() + self.order_barriers() * 8
    }

    /// Order barriers: one for each warpgroup that multiplies, if one waits for the other. Of tiles that they
    /// end with staggered epilogues only the second one's is used.
    pub fn order_barriers(&self) -> u32 {
        if self.cta.ordered() { CONSUMERS } else { 0 }
    }

    /// Threads of a CTA: one warpgroup, and those that multiply if it computes tiles.
    pub const fn threads(&self) -> u32 {
        match self.cta.computes() {
            true => 128 * (1 + CONSUMERS),
            false => 128,
        }
    }

    /// Registers a thread of the first warpgroup keeps, and one of the others takes; `None` where there are no others.
    pub fn registers(&self) -> Option<(u32, u32)> {
        let [first, others] = [Role::Load, Role::Multiply].map(|role| self.cta.registers(role));
        self.cta.computes().then_some((first, others))
    }

    /// Registers that each thread begins with, before the warpgroups reallocate them; `None` where they do not.
    pub fn registers_at_first(&self) -> Option<u32> {
        let (first, others) = self.registers()?;
        Some((first + CONSUMERS * others) / (1 + CONSUMERS))
    }

    /// Bytes of a warpgroup's sums of a subtile, as CTAs that split a tile's K send them.
    pub fn partial_subtile_bytes(&self) -> u32 {
        self.tiling().subtile().elements() * 4 / self.cta.mode().warpgroups()
    }

    /// The first row and column of a subtile within its tile. Those of a warpgroup's own half follow each other.
    pub(crate) fn subtile_at(&self, part: u32) -> (u32, u32) {
        let subtile = self.tiling().subtile();
        let (half, part) = match self.cta.staggered() {
            true => (part / self.own_subtiles(), part % self.own_subtiles()),
            false => (0, part),
        };
        if self.tiling().swap_ab() {
            (part * subtile.rows, half * subtile.columns)
        } else {
            (half * subtile.rows, part * subtile.columns)
        }
    }

    /// Subtiles of a warpgroup's half of a tile, where epilogues are staggered: such a kernel has one loop.
    pub(crate) const fn own_subtiles(&self) -> u32 {
        self.tiling().subtiles() / CONSUMERS
    }

    /// Number of runners of a role in a CTA: one, or one a warpgroup that multiplies.
    pub(crate) const fn runners(run_by: RunBy) -> u32 {
        match run_by {
            RunBy::Thread { .. } => 1,
            RunBy::Threads { .. } | RunBy::Groups => CONSUMERS,
        }
    }
}

/// CTAs of a cluster in the text: those that share steps, or those that load together.
pub fn cluster(cta: &Cta) -> Expr {
    match cta.split() {
        1 => Expr::symbol(Symbol::Cluster, cta.multicast_group()),
        split => Expr::symbol(Symbol::Split, split),
    }
}
