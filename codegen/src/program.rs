//! The user's program: tensors, partitions, counters and roles, with the source location of every statement.
//!
//! A program is SPMD: every rank runs the same text. Nothing is resolved yet: choices are open, dimensions are not
//! matched, and the credits that make it safe to launch again are missing. [`crate::lower`] does all that.

mod ids;
mod side;
mod slots;
mod stored;
mod usage;
mod visit;

use crate::dtype::Dtype;
use crate::encoding::rule::ScaleRule;
pub use crate::encoding::{Along, ScaleBlock, Scaling};
use crate::given::Reference;
use crate::order::{ByClosure, RankOrder, Selection, TileOrder};
pub use crate::rank::Var;
use crate::rank::{Cond, RankExpr};
use crate::value::{AccId, Value};
pub use ids::{CounterId, PartitionId, TensorId};
pub use side::Side;
pub use slots::Slots;
use std::panic::Location;
pub use stored::StoreMode;
pub use usage::{AtEnd, AtStart, HeldRows, Numbers, Placement, Plane, TensorRole, Usage};

/// Place in the user's source.
pub type Loc = &'static Location<'static>;

/// A schedule as written.
///
/// ```
/// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/example.rs")); }
/// let program = example::ag_gemm();
/// assert_eq!(program.name, "ag_gemm");
/// for tunable in &program.tunables {
///     println!("{}: {:?}", tunable.name, tunable.options);
/// }
/// println!("{}", program.text()); // as it was written
/// let program = program.reference(|given| Ok(given.as_written())); // one's own, for its outputs
/// ```
#[derive(Clone, Debug)]
pub struct Program {
    /// The function's name.
    pub name: String,
    /// Parameters first, then scratch, in the order written.
    pub tensors: Vec<Tensor>,
    /// The partitions, in the order written.
    pub partitions: Vec<Partition>,
    /// The counters, in the order written.
    pub counters: Vec<CounterSet>,
    /// The open choices, in the order written.
    pub tunables: Vec<Tunable>,
    /// The role loops, in the order written. Loops of one name are one role: they run one after another.
    pub roles: Vec<Role>,
    /// The loop variables, by [`Var`].
    pub vars: Vec<VarDecl>,
    /// The accumulators, by [`AccId`].
    pub accs: Vec<AccDecl>,
    /// Place of the schedule in the user's source.
    pub at: Loc,
    /// The user's own reference for its outputs, if there is one.
    pub reference: Option<Reference>,
}

impl Program {
    /// This program, with `reference` as the reference for its outputs.
    #[must_use]
    pub fn reference(self, reference: Reference) -> Program {
        Program {
            reference: Some(reference),
            ..self
        }
    }

    /// The scales that stores compute of a tensor, and their rule, if they do.
    #[doc(hidden)]
    pub fn computed_scale_of(&self, tensor: TensorId) -> Option<(TensorId, ScaleRule)> {
        let mut tensors = (0..).map(TensorId).zip(&self.tensors);
        let is = |usage: Usage| usage.computed_scale_of() == Some(tensor);
        tensors.find_map(|(id, it)| Some((id, it.usage.rule().filter(|_| is(it.usage))?)))
    }
}

/// A tensor: `rows` by `columns`, row-sharded over ranks or whole on each.
#[derive(Clone, Debug)]
pub struct Tensor {
    /// The parameter's or the binding's name.
    pub name: String,
    /// Use of the tensor.
    pub usage: Usage,
    /// The tensor whose rows and columns scratch has; `None`: those of what is stored in it.
    pub like: Option<TensorId>,
    /// Element type.
    pub dtype: Dtype,
    /// Declaration in the user's source.
    pub at: Loc,
}

/// Planes of a tensor that a place covers. Only copies tell them apart.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Planes {
    /// All that it has: `x[c]`.
    All,
    /// Elements alone: `x.data()[c]`.
    Data,
    /// Scales alone: `x.scales()[c]`. Nothing where it has none that are gathered with it.
    Scales,
}

impl Planes {
    /// Word in the language, if it has one.
    pub const fn word(self) -> Option<&'static str> {
        match self {
            Planes::All => None,
            Planes::Data => Some("data"),
            Planes::Scales => Some("scales"),
        }
    }
}

/// A partition of a tensor's rows and columns into items. Items never straddle a row shard.
#[derive(Clone, Debug)]
pub struct Partition {
    /// The binding's name.
    pub name: String,
    /// The tensor it divides.
    pub tensor: TensorId,
    /// Rows and columns of an item.
    pub block: Block,
    /// True if items divide all rows, so that one may be in several shards; false if they divide each shard by itself.
    pub across: bool,
    /// Place in the user's source.
    pub at: Loc,
}

/// Division of a tensor by a partition.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Block {
    /// Blocks of rows, all columns: what moves.
    Chunks {
        /// Rows of a chunk.
        rows: Choice,
    },
    /// Blocks of columns, all rows of a shard.
    Panels {
        /// Columns of a panel.
        columns: Choice,
    },
    /// Blocks of rows and columns: what is computed.
    Tiles {
        /// Rows and columns of a tile, a pair.
        shape: Choice,
    },
}

/// A number (or pair) of the schedule: a constant, or an open choice.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Choice {
    /// A constant.
    Fixed(Setting),
    /// An open choice: an index into [`Program::tunables`].
    Open(u16),
}

/// The value of a choice.
///
/// ```
/// use counterflow_codegen::program::Setting;
///
/// assert_eq!(Setting::parse("128x256"), Some(Setting::from((128, 256))));
/// assert_eq!(Setting::from(4_u32).to_string(), "4");
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Setting {
    /// One number.
    One(u32),
    /// A pair: rows and columns.
    Pair(u32, u32),
}

/// An open choice: `tune(a, b, …)`.
#[derive(Clone, Debug)]
pub struct Tunable {
    /// Name for `--set`.
    pub name: String,
    /// Options, all of one kind. The first is the default.
    pub options: Vec<Setting>,
    /// Place in the user's source.
    pub at: Loc,
}

/// A set of 64-bit counters on every rank, one for each cell of its index space.
#[derive(Clone, Debug)]
pub struct CounterSet {
    /// The binding's name.
    pub name: String,
    /// The index space, outermost first. Empty: one cell.
    pub dims: Vec<CounterDim>,
    /// Place in the user's source.
    pub at: Loc,
}

/// One axis of a counter set's index space.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CounterDim {
    /// One per rank.
    World,
    /// One per item of a partition.
    Items(PartitionId),
    /// This many.
    Count(u32),
}

/// A loop under a role.
#[derive(Clone, Debug)]
pub struct Role {
    /// The role's name: the author's, or the word of its kind.
    pub name: String,
    /// Threads that run it.
    pub kind: RoleKind,
    /// Statements in order.
    pub body: Vec<Stmt>,
    /// Place in the user's source.
    pub at: Loc,
}

impl Role {
    /// Attribute in the language, with the role's name if it has one of its own: `#[comm]`, `#[comm(name = halo)]`.
    pub fn words(&self) -> String {
        role_words(self.kind.word(), &self.name)
    }
}

/// A role's attribute in the language.
pub(crate) fn role_words(word: &str, name: &str) -> String {
    if name == word {
        format!("#[{word}]")
    } else {
        format!("#[{word}(name = {name})]")
    }
}

/// Threads that run a loop.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum RoleKind {
    /// The persistent GEMM CTAs.
    Gemm {
        /// Depth of one step of the K loop, in elements.
        k: Option<Choice>,
        /// CTAs of a cluster, along rows and columns.
        cluster: Option<Choice>,
        /// CTAs of a cluster that share the K steps of each tile.
        split: Option<Choice>,
        /// Stages of the shared-memory ring.
        stages: Option<Choice>,
        /// Shared-memory buffers through which results are stored.
        subtiles: Option<Choice>,
        /// True if the warpgroups that multiply take whole tiles in ping-pong.
        ping_pong: Option<Choice>,
    },
    /// Separate CTAs that only move data. When they are done, they join the GEMM. There may be several such roles.
    Comm {
        /// Number of CTAs.
        ctas: Choice,
    },
    /// Idle warps of the GEMM CTAs.
    SpareWarps,
    /// Copies enqueued by the host, with stream-ordered signals.
    CopyEngine,
}

impl RoleKind {
    /// Word in the language, which is the name of a role that has none of its own.
    pub const fn word(self) -> &'static str {
        match self {
            RoleKind::Gemm { .. } => "gemm",
            RoleKind::Comm { .. } => "comm",
            RoleKind::SpareWarps => "spare_warps",
            RoleKind::CopyEngine => "copy_engine",
        }
    }
}

/// A loop variable's declaration.
#[derive(Clone, Debug)]
pub struct VarDecl {
    /// Name of the role.
    pub name: String,
    /// Place in the user's source where it is bound.
    pub at: Loc,
}

/// An accumulator's declaration.
#[derive(Clone, Debug)]
pub struct AccDecl {
    /// Name, if the user gave one.
    pub name: Option<String>,
}

/// One statement with its location.
#[derive(Clone, Debug)]
pub struct Stmt {
    /// Work of the statement.
    pub kind: StmtKind,
    /// Place in the user's source.
    pub at: Loc,
}

/// Kinds of statements.
#[derive(Clone, Debug)]
pub enum StmtKind {
    /// Visit ranks in an order.
    ForRanks {
        /// Bound to the rank.
        var: Var,
        /// The order.
        order: RankOrder<ByClosure>,
        /// Body of one step.
        body: Vec<Stmt>,
    },
    /// Visit the items of a partition. One item is one unit of work: one CTA does it, in program order.
    ForItems {
        /// Bound to the item.
        var: Var,
        /// Items that are visited.
        items: Items,
        /// Body of one item.
        body: Vec<Stmt>,
    },
    /// Control that depends on ranks only.
    If {
        /// Condition on ranks.
        cond: Cond,
        /// Body if the condition holds.
        then: Vec<Stmt>,
        /// Body if it does not.
        otherwise: Vec<Stmt>,
    },
    /// Block until cells of this rank have been signalled.
    Wait {
        /// The cells.
        cells: Cells,
        /// Number of signals of this launch to wait for. `None`: as many as the schedule sends.
        at_least: Option<u32>,
        /// True if the product behind it waits for each slab of K when it comes to it; false if all are waited for here.
        by_slab: bool,
    },
    /// Add to cells, after everything before it in this item is visible system-wide.
    Signal {
        /// The cells.
        cells: Cells,
        /// Amount that is added; at least 1.
        amount: u32,
    },
    /// Move data unchanged.
    Copy {
        /// To where.
        dst: Place,
        /// Source of the copy.
        src: Place,
    },
    /// Add a tile product over K to an accumulator.
    Dot {
        /// The accumulator.
        acc: AccId,
        /// The rows operand.
        a: Place,
        /// The columns operand.
        b: Place,
    },
    /// Add stored tiles to an accumulator, slot by slot in ascending order.
    Sum {
        /// The accumulator.
        acc: AccId,
        /// The tiles: one slot, several, or every rank's.
        from: Place,
        /// This rank's term of a sum over the others: rounded to the type of the tiles, and added in this rank's turn. Lowering
        /// finds it; authors leave it open.
        own: Option<Value>,
    },
    /// Load a tile (or a vector along its columns) for the epilogue.
    Load {
        /// The accumulator it lands in.
        acc: AccId,
        /// Source of the load.
        from: Place,
    },
    /// Write an item.
    Store {
        /// To where.
        dst: Place,
        /// Replace, or add to what is there.
        mode: StoreMode,
        /// Stored value.
        value: Value,
        /// Amax that is taken of the stored elements, if any.
        amax: Option<Amax>,
    },
}

/// The largest absolute value of what a store computes.
#[derive(Clone, PartialEq, Debug)]
pub struct Amax {
    /// Value before its scale.
    pub of: Value,
    /// The number that becomes as large as it, if it is smaller.
    pub to: TensorId,
}

/// The items a loop visits.
#[derive(Clone, PartialEq, Debug)]
pub struct Items {
    /// Partition whose items they are.
    pub partition: PartitionId,
    /// Row shard of the items; `None`: of all.
    pub shard: Option<RankExpr>,
    /// Order within a shard.
    pub order: ItemOrder,
    /// Items that are visited, by their place in that order.
    pub selection: Selection,
}

/// The order of items as written. Its group may be an open choice.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ItemOrder {
    /// A settled order.
    Tile(TileOrder),
    /// Grouped, by a choice.
    Grouped(Choice),
}

/// Rank whose memory holds a place or a cell.
#[derive(Clone, PartialEq, Debug)]
pub enum Home {
    /// This rank's.
    Me,
    /// The memory of that rank.
    On(RankExpr),
    /// Every rank's at once: a multicast address.
    Everywhere,
}

impl Home {
    /// True if it may be another rank's memory.
    pub fn is_remote(&self) -> bool {
        match self {
            Home::Me | Home::On(RankExpr::Me) => false,
            Home::On(_) | Home::Everywhere => true,
        }
    }
}

/// A place of data: tensor, rank, slot and item.
#[derive(Clone, PartialEq, Debug)]
pub struct Place {
    /// The tensor.
    pub tensor: TensorId,
    /// Planes of the tensor.
    pub planes: Planes,
    /// Rank whose memory it is.
    pub home: Home,
    /// Slot of a scratch tensor.
    pub slot: Option<Pick>,
    /// Item; `None` only for a vector.
    pub item: Option<Var>,
}

/// One rank, or several.
#[derive(Clone, PartialEq, Debug)]
pub enum Pick {
    /// The one of this number.
    One(RankExpr),
    /// All but me, ascending.
    Others,
    /// All, ascending.
    All,
}

/// Counter cells: set, rank and index.
#[derive(Clone, PartialEq, Debug)]
pub struct Cells {
    /// The set.
    pub counter: CounterId,
    /// Rank whose cells they are.
    pub home: Home,
    /// The index, one entry an axis.
    pub index: Vec<CellIndex>,
}

/// One entry of a cell index.
#[derive(Clone, PartialEq, Debug)]
pub enum CellIndex {
    /// Along a rank axis (or a counted one).
    Rank(Pick),
    /// The item itself.
    Item(Var),
    /// The items of another partition that hold this item's rows or columns.
    Along(Var, Side),
}
