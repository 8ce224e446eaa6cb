//! A schedule as the macro reads it: parsed, names resolved, not yet checked.
//!
//! A node keeps the user's tokens if a mistake or a builder call must point at them.
#![expect(
    clippy::large_enum_variant,
    reason = "a schedule has tens of nodes, and boxes would be in the way of every match"
)]

use proc_macro2::{Ident, Span, TokenStream};
use std::collections::HashSet;
use syn::{Attribute, BinOp, Expr, Item, Path, Type, Visibility};

/// A whole `#[schedule]` function.
pub struct Schedule {
    pub attrs: Vec<Attribute>,
    pub vis: Visibility,
    pub name: Ident,
    pub params: Vec<Param>,
    pub body: Vec<Top>,
    /// The names inside statements that could not be read. They may or may not be used.
    pub unsure: HashSet<String>,
}

/// `x: Gathered<bf16>`
pub struct Param {
    pub name: Ident,
    pub usage: Usage,
    pub marker: Ident,
    pub element: Type,
}

/// Purpose of a tensor, as far as the macro must know. Mirrors the builder's, which this crate may not depend on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Usage {
    /// Name in the language.
    pub name: &'static str,
    /// The builder's method that declares it.
    pub builder: &'static str,
    /// Peers can address it.
    pub shared: bool,
    /// True if a slot may index it.
    pub slots: bool,
    /// The schedule must write it.
    pub output: bool,
}

impl Usage {
    pub const LOCAL: Usage = Usage {
        name: "Local",
        builder: "local",
        shared: false,
        slots: false,
        output: false,
    };
    pub const VECTOR: Usage = Usage {
        name: "Vector",
        builder: "vector",
        ..Usage::LOCAL
    };
    pub const GATHERED: Usage = Usage {
        name: "Gathered",
        builder: "gathered",
        shared: true,
        ..Usage::LOCAL
    };
    /// `Gathered`, and a statement computes it.
    pub const GATHERED_OUTPUT: Usage = Usage {
        builder: "gathered_output",
        output: true,
        ..Usage::GATHERED
    };
    pub const OUT: Usage = Usage {
        name: "Out",
        builder: "out",
        output: true,
        ..Usage::LOCAL
    };
    pub const ACCUMULATED: Usage = Usage {
        name: "Accumulated",
        builder: "accumulated",
        ..Usage::OUT
    };
    pub const REDUCE_SCATTERED: Usage = Usage {
        name: "ReduceScattered",
        builder: "reduce_scattered",
        shared: true,
        ..Usage::OUT
    };
    pub const ALL_REDUCED: Usage = Usage {
        name: "AllReduced",
        builder: "all_reduced",
        ..Usage::REDUCE_SCATTERED
    };
    pub const ALL_TO_ALL: Usage = Usage {
        name: "AllToAll",
        builder: "all_to_all",
        slots: true,
        ..Usage::REDUCE_SCATTERED
    };
    pub const SCRATCH: Usage = Usage {
        name: "symmetric",
        builder: "symmetric",
        shared: true,
        slots: true,
        output: false,
    };

    /// Tensors that a parameter's type may name.
    pub const PARAMS: [Usage; 8] = [
        Usage::GATHERED,
        Usage::LOCAL,
        Usage::VECTOR,
        Usage::OUT,
        Usage::ACCUMULATED,
        Usage::REDUCE_SCATTERED,
        Usage::ALL_REDUCED,
        Usage::ALL_TO_ALL,
    ];
}

/// A statement of the function itself, outside every role.
pub enum Top {
    /// A `const`, `fn` or `use` that closures and constants may name. It stays unchanged.
    Rust(Item),
    Declare(Ident, Declaration),
    Rank(Ident, Rank),
    Role(Role),
}

/// The right side of a `let` outside every role.
pub enum Declaration {
    Partition {
        tensor: Ident,
        shape: Shape,
        method: Ident,
        size: Size,
    },
    Counters {
        word: Ident,
        axes: Vec<Axis>,
    },
    Symmetric {
        word: Ident,
        element: Type,
        /// Absent where what is stored in it says its shape.
        like: Option<Like>,
    },
}

/// Tensor whose shape scratch has.
pub struct Like {
    pub tensor: Ident,
    /// `shard` or `whole`, if the user chose.
    pub extent: Option<Ident>,
    pub slots: Axis,
}

/// The size of a partition's items.
pub enum Size {
    Constant(Constant),
    /// Shape of another partition.
    Of(Ident),
}

/// Division of a tensor by a partition.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Shape {
    Chunks,
    Panels,
    Tiles,
    /// Tiles of all ranks' rows at once.
    TilesAcross,
}

/// One axis of a counter set, or the slots of scratch.
#[derive(Clone)]
pub enum Axis {
    World(Ident),
    /// `world() - 1`
    Peers(Ident),
    Items(Ident),
    Count(Expr),
}

/// A number or pair, or several of them in `tune`.
pub struct Constant {
    /// The word `tune`. Absent for a plain number.
    pub tune: Option<Ident>,
    pub options: Vec<Expr>,
}

/// A loop or block under `#[gemm]` and the like.
pub struct Role {
    pub word: Ident,
    pub kind: RoleKind,
    pub body: Vec<Stmt>,
}

pub enum RoleKind {
    Gemm {
        /// `k`, `cluster`, `split`, `stages`, `subtiles` and `ping_pong`, if given.
        options: Vec<(Ident, Constant)>,
    },
    Comm {
        /// Name that distinguishes it from other `#[comm]` roles, if it has one.
        name: Option<Ident>,
        ctas: Constant,
    },
    SpareWarps,
    CopyEngine,
}

/// A statement inside a role, with the token that its builder call points at.
pub struct Stmt {
    pub at: Span,
    pub kind: StmtKind,
}

pub enum StmtKind {
    ForRanks {
        var: Binding,
        order: Order,
        body: Vec<Stmt>,
    },
    ForItems {
        var: Binding,
        items: Items,
        body: Vec<Stmt>,
    },
    If {
        cond: Cond,
        then: Vec<Stmt>,
        otherwise: Vec<Stmt>,
    },
    Wait {
        cells: Cells,
        at_least: Option<Expr>,
    },
    Signal {
        cells: Cells,
        amount: Expr,
    },
    Copy {
        dst: Place,
        src: Read,
    },
    Store {
        dst: Place,
        add: bool,
        value: Value,
    },
    Value(Ident, Value),
    Rank(Ident, Rank),
    Accumulator(Ident),
    Accumulate {
        into: Ident,
        a: Read,
        b: Read,
    },
}

/// The variable of a loop; `None` for `_`.
pub struct Binding(pub Option<Ident>);

/// `ranks().before_me()`
pub struct Order {
    pub root: Ident,
    /// The step of `ring`.
    pub step: Option<Expr>,
    pub calls: Vec<OrderCall>,
}

/// `.but_last(world() / 2)`
pub struct OrderCall {
    pub method: Ident,
    pub argument: OrderArgument,
}

/// Arguments of an order's method.
pub enum OrderArgument {
    Nothing,
    /// A function `(me, step, world) -> rank`.
    Function(Expr),
    /// Number of ranks that are left out.
    Ranks(Rank),
}

/// `tiles.of(shard).grouped().skip(1)`
pub struct Items {
    pub partition: Ident,
    pub shard: Option<(Ident, Rank)>,
    pub order: Option<(Ident, Option<Constant>)>,
    /// The steps of a selection, with their numbers.
    pub cuts: Vec<(Ident, Option<Rank>)>,
}

/// Arithmetic over ranks.
pub enum Rank {
    Me(Ident),
    World(Ident),
    /// A literal, or a constant of the Rust around the schedule.
    Number(Expr),
    Var(Ident),
    Binary(Box<Rank>, BinOp, Box<Rank>),
}

/// A condition on ranks.
pub enum Cond {
    Compare(Rank, BinOp, Rank),
    Both(Box<Cond>, Box<Cond>),
    Either(Box<Cond>, Box<Cond>),
    Not(Box<Cond>),
}

/// Owner of the memory.
pub enum Home {
    Me,
    On(Ident, Rank),
    Everywhere(Ident),
}

/// One rank, or several.
pub enum Pick {
    One(Rank),
    /// `others` or `everyone`.
    Several(Ident),
}

/// Something in brackets, with the user's tokens.
pub struct Index {
    pub tokens: TokenStream,
    pub kind: IndexKind,
}

pub enum IndexKind {
    Rank(Pick),
    Item { var: Ident, partition: Ident },
    Along { var: Ident, side: Ident },
}

/// Data: `partial.on(owner)[me()][t]`
pub struct Place {
    pub tensor: Ident,
    pub usage: Usage,
    pub home: Home,
    /// `data` or `scales`, if it is of one plane.
    pub planes: Option<Ident>,
    pub indices: Vec<Index>,
    pub tokens: TokenStream,
}

/// Counter cells: `landed.on(owner)[me()][t]`
pub struct Cells {
    pub counter: Ident,
    pub axes: Vec<Axis>,
    pub home: Home,
    pub indices: Vec<Index>,
    pub tokens: TokenStream,
}

/// A place that is read, after waiting for it.
pub struct Read {
    pub place: Place,
    pub waits: Vec<ReadWait>,
}

/// `.wait(landed)` or `.wait(landed[me()][t])`
pub struct ReadWait {
    pub word: Ident,
    pub cells: WaitCells,
}

pub enum WaitCells {
    /// The cells at the place's own indices.
    Same {
        counter: Ident,
        axes: Vec<Axis>,
    },
    Given(Cells),
}

/// The right side of a store.
pub enum Value {
    Dot {
        word: Ident,
        a: Read,
        b: Read,
    },
    Sum {
        word: Ident,
        from: Read,
    },
    Load(Read),
    Name(Ident),
    Number(Expr),
    Negate(Span, Box<Value>),
    Binary(Box<Value>, BinOp, Box<Value>),
    /// `.gelu()` and the like: builder methods and scalar functions of one number.
    Unary(Box<Value>, Ident),
    /// `.mul(z)`, `.max(z)` and the like.
    Combine(Box<Value>, Ident, Box<Value>),
    Scale(Box<Value>, Ident, Expr),
    Cast(Box<Value>, Ident, Type),
    Map {
        first: Box<Value>,
        word: Ident,
        function: Path,
        others: Vec<Value>,
    },
}
