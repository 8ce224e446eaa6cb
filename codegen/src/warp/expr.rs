//! The whole numbers a pipeline computes with: evaluated by the verifier, printed by the emitter, from one line.

use super::symbol::Symbol;
use crate::kernel::DimId;
use crate::order::Int;
use crate::program::{CounterId, PartitionId, TensorId};
use std::ops::{Add, Div, Mul, Rem, Sub};

/// A number of 32 bits, never negative.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Expr {
    /// A literal.
    Const(u32),
    /// A constant of the variant.
    Symbol(Symbol, u32),
    /// Variable that a loop or a `let` binds.
    Var(String),
    /// Number that the host passes at launch.
    Field(Field),
    /// The CTA's number, of all CTAs.
    Block,
    /// Number of CTAs.
    Blocks,
    /// Two numbers combined.
    Binary(Op, Box<Expr>, Box<Expr>),
    /// The smaller of two.
    Min(Box<Expr>, Box<Expr>),
    /// A quotient, rounded up.
    CeilDiv(Box<Expr>, Box<Expr>),
    /// Rows of a shard of a dimension: the last ones may be short or empty.
    RowsOf(DimId, Box<Expr>),
    /// The rank at a step of an order that the host passes as a table.
    Ordered(OrderId, Box<Expr>),
    /// Index at which this CTA's items go on within the current loop: its running index less the items of earlier
    /// loops.
    Within,
    /// A number worth a name of its own in the text.
    Named(&'static str, Box<Expr>),
    /// A cell's number.
    Cell(Box<CellNumber>),
}

/// Number of a cell among those of its counter. The text has a function for each counter, with these arguments.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CellNumber {
    /// Counter whose cell it is.
    pub counter: CounterId,
    /// Arguments of the function, behind the plan.
    pub arguments: Vec<Expr>,
    /// Value of the call: [`CellFunction::call`](super::cells::CellFunction::call).
    pub number: Expr,
}

/// An index into [`super::Pipeline::orders`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct OrderId(pub u16);

/// The operators of [`Expr`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Op {
    /// `+`
    Add,
    /// `-`
    Sub,
    /// `*`
    Mul,
    /// `/`
    Div,
    /// `%`
    Rem,
    /// `^`
    Xor,
}

/// A number the host passes at launch.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Field {
    /// The size of a dimension.
    Size(DimId),
    /// Rows of a full shard of it.
    ShardRows(DimId),
    /// The shard of it that has some rows, but not all; the world if there is none. It has output maps of its own.
    PartialShard(DimId),
    /// This rank.
    Me,
    /// Number of ranks.
    World,
    /// The first cell of a counter among all cells of a rank.
    First(CounterId),
    /// Rows of the grid of cells that a shard has along a counter axis over this partition.
    CellRows(PartitionId),
    /// Number of waves of items that the GEMM's own CTAs do alone before the others join them.
    LateJoin,
    /// The ranks that an order visits, from this rank: one byte a step ([`MOST_STEPS`]).
    Order(OrderId),
    /// Address of slot 0 of the symmetric heap (64 bits).
    Heap,
    /// Bytes from a rank's slot of the heap to the next (64 bits).
    Stride,
    /// Offset of the counters in a slot of the heap (64 bits).
    Counters,
    /// Address, in this rank's own memory, of how much arrives at each of its cells in this launch (64 bits).
    Arrivals,
    /// Address, in this rank's own memory, of a word that is zero between launches (64 bits).
    Finished,
    /// The multicast address of the heap: of where each rank's slot starts (64 bits).
    HeapEverywhere,
    /// Address, in this rank's own memory, of a vector or a scale (64 bits).
    Vector(TensorId),
    /// Elements from a line of a plane of scales to the next.
    Line(TensorId),
}

/// Steps of an order that the host passes as a table: as many as there may be ranks.
pub const MOST_STEPS: u32 = 128;

impl Field {
    /// True if it takes 64 bits.
    pub const fn wide(self) -> bool {
        self.bytes() == 8
    }

    /// Size in bytes.
    pub const fn bytes(self) -> u32 {
        match self {
            Field::Size(_)
            | Field::ShardRows(_)
            | Field::PartialShard(_)
            | Field::Me
            | Field::World
            | Field::First(_)
            | Field::CellRows(_)
            | Field::Line(_)
            | Field::LateJoin => 4,
            Field::Order(_) => MOST_STEPS,
            Field::Heap
            | Field::HeapEverywhere
            | Field::Stride
            | Field::Counters
            | Field::Arrivals
            | Field::Finished
            | Field::Vector(_) => 8,
        }
    }
}

/// Condition of a branch.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Test {
    /// `a < b`
    Less(Expr, Expr),
    /// `a >= b`
    AtLeast(Expr, Expr),
    /// `a == b`
    Equal(Expr, Expr),
    /// `a != b`
    Differ(Expr, Expr),
    /// Both hold.
    And(Box<Test>, Box<Test>),
    /// At least one holds.
    Or(Box<Test>, Box<Test>),
}

/// Values of variables and fields.
pub trait Values {
    /// The variable's value.
    fn var(&self, name: &str) -> u32;
    /// The field's value.
    fn field(&self, field: Field) -> u32;
    /// Rows of a shard.
    fn rows_of(&self, dim: DimId, shard: u32) -> u32;
    /// The rank at a step of an order.
    fn ordered(&self, order: OrderId, step: u32) -> u32;
    /// The CTA and how many there are.
    fn block(&self) -> (u32, u32);
    /// The index within the current loop over items.
    fn within(&self) -> u32;
    /// A constant's value, unless a smaller case stands for the variant.
    fn symbol(&self, symbol: &Symbol, value: u32) -> u32 {
        let _ = symbol;
        value
    }
}

impl Expr {
    /// A variable.
    pub fn var(name: impl Into<String>) -> Expr {
        Expr::Var(name.into())
    }

    /// A constant of the variant.
    pub const fn symbol(symbol: Symbol, value: u32) -> Expr {
        Expr::Symbol(symbol, value)
    }

    /// This rank.
    pub const fn me() -> Expr {
        Expr::Field(Field::Me)
    }

    /// Number of ranks.
    pub const fn world() -> Expr {
        Expr::Field(Field::World)
    }

    /// The quotient, rounded up.
    #[must_use]
    pub fn ceil_div(self, by: impl Into<Expr>) -> Expr {
        Expr::CeilDiv(Box::new(self), Box::new(by.into()))
    }

    /// Value of the expression.
    pub fn eval(&self, values: &impl Values) -> u32 {
        match self {
            Expr::Const(value) => *value,
            Expr::Symbol(symbol, value) => values.symbol(symbol, *value),
            Expr::Var(name) => values.var(name),
            Expr::Field(field) => values.field(*field),
            Expr::Block => values.block().0,
            Expr::Blocks => values.block().1,
            Expr::Binary(op, a, b) => {
                let (a, b) = (a.eval(values), b.eval(values));
                match op {
                    Op::Add => a.wrapping_add(b),
                    Op::Sub => a.wrapping_sub(b),
                    Op::Mul => a.wrapping_mul(b),
                    Op::Div => a.checked_div(b).unwrap_or(u32::MAX),
                    Op::Rem => a.checked_rem(b).unwrap_or(a),
                    Op::Xor => a ^ b,
                }
            }
            Expr::Min(a, b) => Ord::min(a.eval(values), b.eval(values)),
            Expr::CeilDiv(a, b) => a.eval(values).div_ceil(b.eval(values).max(1)),
            Expr::RowsOf(dim, shard) => values.rows_of(*dim, shard.eval(values)),
            Expr::Ordered(order, step) => values.ordered(*order, step.eval(values)),
            Expr::Within => values.within(),
            Expr::Named(_, value) => value.eval(values),
            Expr::Cell(cell) => cell.number.eval(values),
        }
    }

    /// The same with values for the variables that `value` knows.
    #[must_use]
    pub fn bound(&self, value: &dyn Fn(&str) -> Option<Expr>) -> Expr {
        let of = |part: &Expr| Box::new(part.bound(value));
        match self {
            Expr::Var(name) => value(name).unwrap_or_else(|| self.clone()),
            Expr::Const(_)
            | Expr::Symbol(..)
            | Expr::Field(_)
            | Expr::Block
            | Expr::Blocks
            | Expr::Within => self.clone(),
            Expr::Binary(op, a, b) => a.bound(value).binary(*op, b.bound(value)),
            Expr::Min(a, b) => Expr::Min(of(a), of(b)),
            Expr::CeilDiv(a, b) => Expr::CeilDiv(of(a), of(b)),
            Expr::RowsOf(dim, shard) => Expr::RowsOf(*dim, of(shard)),
            Expr::Ordered(order, step) => Expr::Ordered(*order, of(step)),
            Expr::Named(name, number) => Expr::Named(name, of(number)),
            Expr::Cell(cell) => Expr::Cell(Box::new(CellNumber {
                counter: cell.counter,
                arguments: cell.arguments.iter().map(|it| it.bound(value)).collect(),
                number: cell.number.bound(value),
            })),
        }
    }

    /// Calls `f` on this and every part of it.
    pub fn visit(&self, f: &mut impl FnMut(&Expr)) {
        f(self);
        match self {
            Expr::Const(_)
            | Expr::Symbol(..)
            | Expr::Var(_)
            | Expr::Field(_)
            | Expr::Block
            | Expr::Blocks
            | Expr::Within => {}
            Expr::Binary(_, a, b) | Expr::Min(a, b) | Expr::CeilDiv(a, b) => {
                a.visit(f);
                b.visit(f);
            }
            Expr::RowsOf(_, a) | Expr::Ordered(_, a) | Expr::Named(_, a) => a.visit(f),
            Expr::Cell(cell) => cell.number.visit(f),
        }
    }

    fn binary(self, op: Op, other: Expr) -> Expr {
        match (op, &self, &other) {
            (Op::Add, Expr::Const(0), _) | (Op::Mul, Expr::Const(1), _) => other,
            (Op::Add | Op::Sub, _, Expr::Const(0)) | (Op::Mul | Op::Div, _, Expr::Const(1)) => self,
            (Op::Mul, Expr::Const(0), _) | (Op::Mul, _, Expr::Const(0)) => Expr::Const(0),
            _ => Expr::Binary(op, Box::new(self), Box::new(other)),
        }
    }
}

impl Test {
    /// True if it holds.
    pub fn eval(&self, values: &impl Values) -> bool {
        let is = |a: &Expr, b: &Expr| a.eval(values).cmp(&b.eval(values));
        match self {
            Test::Less(a, b) => is(a, b).is_lt(),
            Test::AtLeast(a, b) => is(a, b).is_ge(),
            Test::Equal(a, b) => is(a, b).is_eq(),
            Test::Differ(a, b) => is(a, b).is_ne(),
            Test::And(a, b) => a.eval(values) && b.eval(values),
            Test::Or(a, b) => a.eval(values) || b.eval(values),
        }
    }

    /// Expressions that are compared.
    pub fn exprs(&self) -> Vec<&Expr> {
        match self {
            Test::Less(a, b) | Test::AtLeast(a, b) | Test::Equal(a, b) | Test::Differ(a, b) => {
                vec![a, b]
            }
            Test::And(a, b) | Test::Or(a, b) => {
                [a, b].into_iter().flat_map(|test| test.exprs()).collect()
            }
        }
    }

    /// The opposite.
    #[must_use]
    pub fn negate(self) -> Test {
        match self {
            Test::Less(a, b) => Test::AtLeast(a, b),
            Test::AtLeast(a, b) => Test::Less(a, b),
            Test::Equal(a, b) => Test::Differ(a, b),
            Test::Differ(a, b) => Test::Equal(a, b),
            Test::And(a, b) => Test::Or(a.negate().into(), b.negate().into()),
            Test::Or(a, b) => Test::And(a.negate().into(), b.negate().into()),
        }
    }
}

impl From<u32> for Expr {
    fn from(value: u32) -> Self {
        Expr::Const(value)
    }
}

impl Int for Expr {
    fn constant(value: u32) -> Self {
        Expr::Const(value)
    }
    fn min(self, other: Self) -> Self {
        Expr::Min(Box::new(self), Box::new(other))
    }
    fn named(self, name: &'static str) -> Self {
        Expr::Named(name, Box::new(self))
    }
}

macro_rules! operator {
    ($($trait:ident :: $method:ident),*) => {$(
        impl<T: Into<Expr>> $trait<T> for Expr {
            type Output = Expr;
            fn $method(self, other: T) -> Expr {
                self.binary(Op::$trait, other.into())
            }
        }
    )*};
}
operator!(Add::add, Sub::sub, Mul::mul, Div::div, Rem::rem);
