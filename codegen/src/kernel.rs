//! The tile-level IR: one small program per role, with choices settled and credits explicit.
//!
//! [`crate::unroll`] defines its meaning: it turns a kernel into the steps of each agent for one world and shape. The
//! verifier, the emulator and the timeline model use those steps, so they agree about orders, items and cells.
//!
//! A role's body has two levels. Outside items ([`Block`]) every CTA of the role runs the same control flow and accesses
//! no data. Inside an item ([`Op`]) one CTA works alone, in program order. Items of a role are claimed in order but are
//! otherwise concurrent. Only [`Block::Join`] orders earlier items before later ones.

mod handed_over;
mod ops;
mod reached;
mod region;
mod regions;
mod scales;
mod sides;
mod slots;
mod turns;
mod worlds;

pub use region::{Access, Axis, Region};
pub(crate) use sides::WhichShard;
pub(crate) use turns::Turn;

use crate::dtype::Dtype;
use crate::order::{RankOrder, Selection, TileOrder};
use crate::program::{
    CellIndex, CounterDim, CounterId, Home, Loc, PartitionId, Pick, Program, StoreMode, TensorId,
    Usage, Var,
};
use crate::rank::{Cond, RankExpr};
use crate::value::{AccId, Value};
use crate::variant::Variant;
use std::sync::Arc;

/// A lowered schedule.
///
/// ```
/// use counterflow_codegen::kernel::visit;
/// use counterflow_codegen::{lower::lower, variant::Variant};
/// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/example.rs")); }
///
/// let kernel = lower(&example::ag_gemm(), &Variant::new(2))?;
/// println!("{}", kernel.text()); // its roles and loops, with credits
/// assert!(kernel.gemm().is_some_and(|gemm| gemm.k == kernel.k_step()));
/// assert_eq!(kernel.orders().len(), 3, "of credits, peers and shards");
/// for role in &kernel.roles {
///     visit(&role.body, &mut |op| println!("{} {}", role.name, kernel.loc(op.id)));
///     println!("{:?}", kernel.block_loc(&role.body[0]));
/// }
/// # Ok::<(), counterflow_codegen::diag::Diagnostics>(())
/// ```
#[derive(Clone, Debug)]
pub struct Kernel {
    /// The program it was lowered from. It decides nothing here; results are compared with its meaning.
    pub program: Arc<Program>,
    /// The schedule's name.
    pub name: String,
    /// Variant that the kernel was lowered in.
    pub variant: Variant,
    /// The symbolic sizes, matched across tensors.
    pub dims: Vec<Dim>,
    /// The tensors, by [`TensorId`].
    pub buffers: Vec<Buffer>,
    /// The partitions, by [`PartitionId`].
    pub partitions: Vec<Partition>,
    /// The user's counters, then the inferred credits, by [`CounterId`].
    pub counters: Vec<Counter>,
    /// In the order first written: at most one of a kind but for [`RoleKind::Comm`], and of those one of a name, unless
    /// each loop was asked to be a role of its own.
    pub roles: Vec<Role>,
    /// Names of loop variables, by [`Var`].
    pub vars: Vec<String>,
    /// Names of accumulators, by [`AccId`].
    pub accs: Vec<String>,
    /// Stored values, by [`ValueId`].
    pub values: Vec<Value>,
    /// The source location of each op, by [`OpId`]. Credits have that of the access they protect.
    pub locs: Vec<Loc>,
}

/// An index into [`Kernel::dims`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct DimId(pub u16);

/// An index into [`Kernel::values`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ValueId(pub u16);

/// An index into [`Kernel::locs`]: which op of the kernel.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct OpId(pub u16);

/// A symbolic size.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Dim {
    /// `m`, `n`, `k`, or `tensor.rows` / `tensor.columns` if no dot names it.
    pub name: String,
    /// True if it is divided over ranks in shards of `ceil(size / world)`, rounded up where something must begin there, the last
    /// ones short or empty.
    pub sharded: bool,
    /// True for the single row of a vector, and for a side of one number.
    pub unit: bool,
    /// The blocks that it counts, if it is no size of its own.
    pub blocks: Option<CountedBlocks>,
}

/// Blocks of a size, as another size counts them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CountedBlocks {
    /// Name of the size that is divided into blocks.
    pub of: String,
    /// Elements of a block; the last one may have fewer.
    pub width: u32,
}

impl Dim {
    /// True if a shape gives its size by name, because it is none of m, n and k.
    pub fn is_further(&self) -> bool {
        !self.unit && self.blocks.is_none() && !matches!(self.name.as_str(), "m" | "n" | "k")
    }
}

/// A tensor in memory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Buffer {
    /// Name of the tensor.
    pub name: String,
    /// Use of the buffer.
    pub usage: Usage,
    /// Element type.
    pub dtype: Dtype,
    /// Dimension of the rows.
    pub rows: DimId,
    /// Dimension of the columns.
    pub columns: DimId,
    /// True if rows are contiguous in memory (a transposed operand), false if columns are.
    pub mn_major: bool,
}

impl Buffer {
    /// True if each rank holds only the rows of its own shard.
    pub fn shard_only(&self) -> bool {
        self.usage.is_own_shard()
    }

    /// True for scratch, whose last readers matter across launches.
    pub fn is_scratch(&self) -> bool {
        self.usage.is_scratch()
    }
}

/// A partition with its block sizes settled.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Partition {
    /// Name of the partition.
    pub name: String,
    /// The rows it divides.
    pub rows: DimId,
    /// The columns it divides.
    pub columns: DimId,
    /// Rows of an item; `None`: all of the shard.
    pub row_block: Option<u32>,
    /// Columns of an item; `None`: all.
    pub column_block: Option<u32>,
    /// True if its items divide all rows at once: it has no shards, and an item may be in several shards.
    pub across: bool,
}

/// A set of counters on every rank.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Counter {
    /// Name of the counter.
    pub name: String,
    /// Index space.
    pub dims: Vec<CounterDim>,
    /// Accesses that it orders.
    pub purpose: Purpose,
    /// Declaration in the schedule; for a credit, the tensor's.
    pub at: Loc,
}

/// Accesses that a counter orders.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Purpose {
    /// Data: a counter that the user wrote.
    Data,
    /// Cell `r` on me: rank `r` has started this launch, so I may access this parameter of its.
    Ready(TensorId),
    /// Cell `r` on me: rank `r` has done its last remote read of this parameter of mine.
    Returned(TensorId),
    /// Cell `r` on me: rank `r` has done its last read of this scratch, so the *next* launch may write it.
    Free(TensorId),
}

impl Purpose {
    /// Number of launches back that a wait counts: the scratch credit of launch `e` was granted in launch `e - 1`.
    pub const fn lag(self) -> u32 {
        match self {
            Purpose::Data | Purpose::Ready(_) | Purpose::Returned(_) => 0,
            Purpose::Free(_) => 1,
        }
    }

    /// True if lowering inferred the counter.
    pub const fn is_credit(self) -> bool {
        !matches!(self, Purpose::Data)
    }

    /// True if a read of `region` must come after a wait for these cells: a credit of the rank whose memory is read.
    pub fn lets_read(self, region: &Region, index: &[CellIndex]) -> bool {
        let Purpose::Ready(buffer) = self else {
            return false;
        };
        let owner = match (&region.home, index) {
            (Home::Me, _) => false,
            (Home::On(rank), [CellIndex::Rank(Pick::One(of))]) => rank == of,
            (Home::On(_) | Home::Everywhere, _) => true,
        };
        buffer == region.buffer && owner
    }
}

/// All loops of one name, run one after another by the same CTAs.
#[derive(Clone, PartialEq, Debug)]
pub struct Role {
    /// Name of the role: the author's, or that of its kind.
    pub name: String,
    /// First place of the role in the schedule.
    pub at: Loc,
    /// Threads that run it.
    pub kind: RoleKind,
    /// Blocks in order.
    pub body: Vec<Block>,
}

/// Threads that run a role.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum RoleKind {
    /// The persistent GEMM CTAs.
    Gemm(GemmKind),
    /// CTAs that only move data: a role of its own for each name.
    Comm {
        /// Number of CTAs.
        ctas: u32,
    },
    /// Idle warps of the GEMM CTAs.
    SpareWarps,
    /// Copies enqueued by the host on one stream: its items are sequential.
    CopyEngine,
}

/// Options of the persistent GEMM CTAs.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct GemmKind {
    /// Depth of one step of the K loop, in elements.
    pub k: u32,
    /// CTAs of a cluster along rows and columns of tiles. They load what their tiles share by multicast.
    pub cluster: (u32, u32),
    /// CTAs of a cluster that share the K steps of each tile. 1: none. Such a cluster has no adjacent tiles.
    pub split: u32,
    /// Stages of the shared-memory ring. `None`: as many as fit.
    pub stages: Option<u32>,
    /// Shared-memory buffers through which results are stored. `None`: as many as fit.
    pub subtiles: Option<u32>,
    /// True if the warpgroups that multiply take whole tiles in ping-pong, false if they share each.
    pub ping_pong: bool,
}

impl GemmKind {
    /// Options of a kernel without a GEMM, whose tiles are computed by CTAs that move data.
    pub(crate) const NONE: GemmKind = GemmKind {
        k: 64,
        cluster: (1, 1),
        split: 1,
        stages: None,
        subtiles: None,
        ping_pong: false,
    };

    /// CTAs of a cluster: its adjacent tiles, times the CTAs that share each tile's steps.
    pub const fn ctas(&self) -> u32 {
        self.cluster
            .0
            .saturating_mul(self.cluster.1)
            .saturating_mul(self.split)
    }
}

impl RoleKind {
    /// Word in the language.
    pub const fn word(self) -> &'static str {
        match self {
            RoleKind::Gemm(_) => "gemm",
            RoleKind::Comm { .. } => "comm",
            RoleKind::SpareWarps => "spare_warps",
            RoleKind::CopyEngine => "copy_engine",
        }
    }

    /// True if each item happens before the next, because one agent runs them in order.
    pub const fn sequential(self) -> bool {
        matches!(self, RoleKind::CopyEngine)
    }
}

/// Control flow outside items. Every CTA of the role runs it. It accesses no data.
#[derive(Clone, PartialEq, Debug)]
pub enum Block {
    /// Visit ranks.
    ForRanks {
        /// Place in the schedule.
        at: Loc,
        /// Bound to the rank.
        var: Var,
        /// The order.
        order: RankOrder,
        /// Body of one step.
        body: Vec<Block>,
    },
    /// Branch on ranks.
    If {
        /// Place in the schedule.
        at: Loc,
        /// Condition on ranks.
        cond: Cond,
        /// Body if the condition holds.
        then: Vec<Block>,
        /// Body if it does not.
        otherwise: Vec<Block>,
    },
    /// Items of a partition: each is one unit of work.
    Items {
        /// Place in the schedule.
        at: Loc,
        /// Bound to the item.
        var: Var,
        /// Partition whose items they are.
        partition: PartitionId,
        /// Row shard of the items; `None`: all, ascending.
        shard: Option<RankExpr>,
        /// Order within a shard.
        order: TileOrder,
        /// Items of a shard that are visited, by their place in that order.
        selection: Selection,
        /// Ops of one item.
        body: Vec<Op>,
    },
    /// One unit of work without an item: signals and waits between loops.
    Once {
        /// Work of the loop.
        body: Vec<Op>,
    },
    /// All items before it are done before any item after it starts: the CTA that finishes last continues.
    Join,
}

/// One operation inside an item.
#[derive(Clone, PartialEq, Debug)]
pub struct Op {
    /// Number of the op in the kernel.
    pub id: OpId,
    /// Work of the op.
    pub kind: OpKind,
}

/// Kinds of ops.
#[derive(Clone, PartialEq, Debug)]
pub enum OpKind {
    /// Visit ranks.
    ForRanks {
        /// Bound to the rank.
        var: Var,
        /// The order.
        order: RankOrder,
        /// Body of one step.
        body: Vec<Op>,
    },
    /// Branch on ranks.
    If {
        /// Condition on ranks.
        cond: Cond,
        /// Body if the condition holds.
        then: Vec<Op>,
        /// Body if it does not.
        otherwise: Vec<Op>,
    },
    /// Block until cells of mine grew by their target in this launch (minus the counter's lag). Acquire.
    Wait {
        /// The cells.
        cells: Cells,
        /// By how much; `None`: by all the schedule adds in one launch.
        at_least: Option<u32>,
        /// The slabs of K by which the products behind it wait and multiply in turn; `None`: all cells are waited for here.
        slabs: Option<PartitionId>,
    },
    /// Add to cells. Release: everything before it in this item is visible to whoever waits for it.
    Signal {
        /// The cells.
        cells: Cells,
        /// Amount that is added; at least 1.
        amount: u32,
    },
    /// Move data unchanged.
    Copy {
        /// To where.
        dst: Region,
        /// Source of the copy.
        src: Region,
    },
    /// `acc += a · bᵀ` over the columns of both.
    Dot {
        /// The accumulator.
        acc: AccId,
        /// Rows of the result.
        a: Region,
        /// Columns of the result.
        b: Region,
    },
    /// `acc += ` a stored tile, in f32.
    Reduce {
        /// The accumulator.
        acc: AccId,
        /// The tiles, added in ascending order of slot (or rank).
        from: Region,
        /// This rank's term of a sum over the others: rounded to the type of the tiles, and added in this rank's turn.
        own: Option<ValueId>,
    },
    /// `acc = ` a stored tile, or a vector repeated along the rows.
    Load {
        /// The accumulator.
        acc: AccId,
        /// Source of the load.
        from: Region,
    },
    /// Write an item.
    Store {
        /// To where.
        dst: Region,
        /// Replace or add.
        mode: StoreMode,
        /// Stored value.
        value: ValueId,
        /// Amax that is taken of the stored elements, if any.
        amax: Option<Amax>,
    },
}

/// The largest absolute value of what a store computes; as [`crate::program::Amax`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Amax {
    /// Value that is stored.
    pub of: ValueId,
    /// The number that becomes as large as it, if it is smaller.
    pub to: TensorId,
}

/// Counter cells; as [`crate::program::Cells`].
#[derive(Clone, PartialEq, Debug)]
pub struct Cells {
    /// The set.
    pub counter: CounterId,
    /// Rank whose cells they are.
    pub home: Home,
    /// The index.
    pub index: Vec<CellIndex>,
}

impl Kernel {
    /// The op's source location.
    pub fn loc(&self, op: OpId) -> Loc {
        self.locs[usize::from(op.0)]
    }

    /// A block's source location, or that of its first op if it has no statement of its own.
    pub fn block_loc(&self, block: &Block) -> Option<Loc> {
        match block {
            Block::ForRanks { at, .. } | Block::If { at, .. } | Block::Items { at, .. } => Some(at),
            Block::Once { body } => body.first().map(|op| self.loc(op.id)),
            Block::Join => None,
        }
    }

    /// True if the variant declares a tensor constant ([`Variant::constant`]).
    pub(crate) fn is_constant(&self, tensor: TensorId) -> bool {
        let name = &self.buffers[tensor.index()].name;
        self.variant.constants.contains(name)
    }

    /// The GEMM loop's kind; `None` if the kernel multiplies nothing.
    pub fn gemm(&self) -> Option<GemmKind> {
        self.roles.iter().find_map(|role| match role.kind {
            RoleKind::Gemm(kind) => Some(kind),
            RoleKind::Comm { .. } | RoleKind::SpareWarps | RoleKind::CopyEngine => None,
        })
    }

    /// The orders of all loops over ranks: role by role, those outside items first.
    pub fn orders(&self) -> Vec<RankOrder> {
        fn outside(body: &[Block], found: &mut Vec<RankOrder>) {
            for block in body {
                match block {
                    Block::ForRanks { order, body, .. } => {
                        found.push(order.clone());
                        outside(body, found);
                    }
                    Block::If {
                        then, otherwise, ..
                    } => {
                        outside(then, found);
                        outside(otherwise, found);
                    }
                    Block::Items { .. } | Block::Once { .. } | Block::Join => {}
                }
            }
        }
        let mut found = Vec::new();
        for role in &self.roles {
            outside(&role.body, &mut found);
            visit(&role.body, &mut |op| {
                if let OpKind::ForRanks { order, .. } = &op.kind {
                    found.push(order.clone());
                }
            });
        }
        found
    }

    /// The GEMM role's K step, or 64 without one.
    pub fn k_step(&self) -> u32 {
        self.gemm().map_or(64, |kind| kind.k)
    }
}

/// Calls `f` with every op of a role's body, enclosing ops before what they enclose.
pub fn visit(body: &[Block], f: &mut impl FnMut(&Op)) {
    for block in body {
        match block {
            Block::ForRanks { body, .. } => visit(body, f),
            Block::If {
                then, otherwise, ..
            } => {
                visit(then, f);
                visit(otherwise, f);
            }
            Block::Items { body, .. } | Block::Once { body } => visit_ops(body, f),
            Block::Join => {}
        }
    }
}

/// Calls `f` with every op of an item, enclosing ops before what they enclose.
pub fn visit_ops(body: &[Op], f: &mut impl FnMut(&Op)) {
    for op in body {
        f(op);
        for body in op.kind.bodies() {
            visit_ops(body, f);
        }
    }
}
