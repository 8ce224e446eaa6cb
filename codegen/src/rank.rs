//! Arithmetic over ranks: `(me() + 1) % world()`, `me() ^ 1`, and the conditions an `if` may ask.
//!
//! Deliberately absent: anything read from data or from a counter. A schedule is confluent because its control depends
//! only on ranks (see [`crate::verify`]).

use std::fmt;
use std::ops::{Add, BitXor, Div, Mul, Rem, Sub};

/// A loop variable: a rank or an item.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Var(pub u16);

impl Var {
    /// Index in the table that it belongs to.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// A number computed from this rank, the world size, loop variables and constants.
#[derive(Clone, PartialEq, Debug)]
pub enum RankExpr {
    /// The rank that runs the schedule.
    Me,
    /// Number of ranks.
    World,
    /// A constant.
    Const(i64),
    /// A loop variable's rank.
    Var(Var),
    /// Two numbers combined.
    Binary(RankOp, Box<RankExpr>, Box<RankExpr>),
}

/// The operations of [`RankExpr`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RankOp {
    /// `+`
    Add,
    /// `-`
    Sub,
    /// `*`
    Mul,
    /// `/`, rounding down
    Div,
    /// `%`, never negative: `(me() - 1) % world()` is the rank before me
    Rem,
    /// `^`
    Xor,
}

/// Reason that a rank expression has no value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RankError {
    /// `/ 0` or `% 0`.
    DivisionByZero,
    /// A result beyond 64 bits.
    Overflow,
    /// A loop variable that no enclosing loop binds to a rank.
    Unbound(Var),
    /// A number of ranks or items below zero.
    Negative,
    /// A step that is not from 1 to [`MOST_STEP`](crate::order::MOST_STEP).
    Step,
}

impl RankExpr {
    /// The value at rank `me` of `world`. `var` gives the values of loop variables.
    ///
    /// # Errors
    /// Division by zero, overflow, or a variable that is not bound to a rank.
    pub fn eval(
        &self,
        me: u32,
        world: u32,
        var: &impl Fn(Var) -> Option<i64>,
    ) -> Result<i64, RankError> {
        Ok(match self {
            RankExpr::Me => i64::from(me),
            RankExpr::World => i64::from(world),
            RankExpr::Const(value) => *value,
            RankExpr::Var(v) => var(*v).ok_or(RankError::Unbound(*v))?,
            RankExpr::Binary(op, a, b) => {
                let (a, b) = (a.eval(me, world, var)?, b.eval(me, world, var)?);
                let checked = match op {
                    RankOp::Add => a.checked_add(b),
                    RankOp::Sub => a.checked_sub(b),
                    RankOp::Mul => a.checked_mul(b),
                    RankOp::Xor => Some(a ^ b),
                    RankOp::Div | RankOp::Rem if b == 0 => return Err(RankError::DivisionByZero),
                    RankOp::Div => a.checked_div_euclid(b),
                    RankOp::Rem => a.checked_rem_euclid(b),
                };
                checked.ok_or(RankError::Overflow)?
            }
        })
    }

    /// The variables it reads, in order of appearance.
    pub fn vars(&self) -> Vec<Var> {
        match self {
            RankExpr::Me | RankExpr::World | RankExpr::Const(_) => Vec::new(),
            RankExpr::Var(v) => vec![*v],
            RankExpr::Binary(_, a, b) => {
                let mut vars = a.vars();
                vars.extend(b.vars());
                vars
            }
        }
    }

    /// Text of the expression, with loop variables under the names that `name` gives them.
    pub fn text(&self, name: &impl Fn(Var) -> String) -> String {
        self.text_in(name, 0)
    }

    fn text_in(&self, name: &impl Fn(Var) -> String, outer: u8) -> String {
        match self {
            RankExpr::Me => "me".into(),
            RankExpr::World => "world".into(),
            RankExpr::Const(value) => value.to_string(),
            RankExpr::Var(v) => name(*v),
            RankExpr::Binary(op, a, b) => {
                let (sign, level) = match op {
                    RankOp::Xor => ("^", 1),
                    RankOp::Add => ("+", 2),
                    RankOp::Sub => ("-", 2),
                    RankOp::Mul => ("*", 3),
                    RankOp::Div => ("/", 3),
                    RankOp::Rem => ("%", 3),
                };
                let text = format!(
                    "{} {sign} {}",
                    a.text_in(name, level),
                    b.text_in(name, level + 1)
                );
                if level < outer {
                    format!("({text})")
                } else {
                    text
                }
            }
        }
    }
}

impl From<&RankExpr> for RankExpr {
    fn from(expr: &RankExpr) -> Self {
        expr.clone()
    }
}

macro_rules! from_integer {
    ($($t:ty),*) => {$(
        impl From<$t> for RankExpr {
            fn from(value: $t) -> Self {
                RankExpr::Const(i64::from(value))
            }
        }
    )*};
}
from_integer!(i32, u32, i64);

macro_rules! operator {
    ($($trait:ident :: $method:ident = $op:ident),*) => {$(
        impl<T: Into<RankExpr>> $trait<T> for RankExpr {
            type Output = RankExpr;
            fn $method(self, other: T) -> RankExpr {
                RankExpr::Binary(RankOp::$op, Box::new(self), Box::new(other.into()))
            }
        }
        impl<T: Into<RankExpr>> $trait<T> for &RankExpr {
            type Output = RankExpr;
            fn $method(self, other: T) -> RankExpr {
                RankExpr::Binary(RankOp::$op, Box::new(self.clone()), Box::new(other.into()))
            }
        }
    )*};
}
operator!(
    Add::add = Add,
    Sub::sub = Sub,
    Mul::mul = Mul,
    Div::div = Div,
    Rem::rem = Rem,
    BitXor::bitxor = Xor
);

/// The condition of an `if` in a schedule: comparisons of rank expressions, joined.
#[derive(Clone, PartialEq, Debug)]
pub enum Cond {
    /// A comparison of two numbers.
    Compare(Comparison, RankExpr, RankExpr),
    /// Both hold.
    And(Box<Cond>, Box<Cond>),
    /// At least one holds.
    Or(Box<Cond>, Box<Cond>),
    /// Negation.
    Not(Box<Cond>),
}

/// The comparisons of [`Cond`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Comparison {
    /// `==`
    Eq,
    /// `!=`
    Ne,
    /// `<`
    Lt,
    /// `<=`
    Le,
    /// `>`
    Gt,
    /// `>=`
    Ge,
}

impl Comparison {
    /// Sign in Rust and in CUDA.
    pub const fn sign(self) -> &'static str {
        match self {
            Comparison::Eq => "==",
            Comparison::Ne => "!=",
            Comparison::Lt => "<",
            Comparison::Le => "<=",
            Comparison::Gt => ">",
            Comparison::Ge => ">=",
        }
    }
}

impl Cond {
    /// `a` compared with `b`.
    pub fn compare(comparison: Comparison, a: impl Into<RankExpr>, b: impl Into<RankExpr>) -> Cond {
        Cond::Compare(comparison, a.into(), b.into())
    }

    /// Both this and `other`.
    pub fn and(self, other: Cond) -> Cond {
        Cond::And(Box::new(self), Box::new(other))
    }

    /// This or `other`.
    pub fn or(self, other: Cond) -> Cond {
        Cond::Or(Box::new(self), Box::new(other))
    }

    /// The opposite.
    pub fn negate(self) -> Cond {
        Cond::Not(Box::new(self))
    }

    /// True if it holds at rank `me` of `world`.
    ///
    /// # Errors
    /// As [`RankExpr::eval`].
    pub fn eval(
        &self,
        me: u32,
        world: u32,
        var: &impl Fn(Var) -> Option<i64>,
    ) -> Result<bool, RankError> {
        Ok(match self {
            Cond::Compare(comparison, a, b) => {
                let (a, b) = (a.eval(me, world, var)?, b.eval(me, world, var)?);
                match comparison {
                    Comparison::Eq => a == b,
                    Comparison::Ne => a != b,
                    Comparison::Lt => a < b,
                    Comparison::Le => a <= b,
                    Comparison::Gt => a > b,
                    Comparison::Ge => a >= b,
                }
            }
            Cond::And(a, b) => a.eval(me, world, var)? && b.eval(me, world, var)?,
            Cond::Or(a, b) => a.eval(me, world, var)? || b.eval(me, world, var)?,
            Cond::Not(a) => !a.eval(me, world, var)?,
        })
    }

    /// The expressions it compares.
    pub fn exprs(&self) -> Vec<&RankExpr> {
        match self {
            Cond::Compare(_, a, b) => vec![a, b],
            Cond::And(a, b) | Cond::Or(a, b) => {
                let mut exprs = a.exprs();
                exprs.extend(b.exprs());
                exprs
            }
            Cond::Not(a) => a.exprs(),
        }
    }

    /// Text of the condition, with loop variables under the names that `name` gives them.
    pub fn text(&self, name: &impl Fn(Var) -> String) -> String {
        match self {
            Cond::Compare(comparison, a, b) => {
                format!("{} {} {}", a.text(name), comparison.sign(), b.text(name))
            }
            Cond::And(a, b) => format!("({} && {})", a.text(name), b.text(name)),
            Cond::Or(a, b) => format!("({} || {})", a.text(name), b.text(name)),
            // A conjunction brings its own parentheses.
            Cond::Not(a) if matches!(**a, Cond::And(..) | Cond::Or(..)) => {
                format!("!{}", a.text(name))
            }
            Cond::Not(a) => format!("!({})", a.text(name)),
        }
    }
}

impl fmt::Display for RankError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            RankError::DivisionByZero => "it divides by zero",
            RankError::Overflow => "it does not fit 64 bits",
            RankError::Unbound(_) => "it uses a loop variable outside its loop",
            RankError::Negative => "it is negative",
            RankError::Step => "a step is from 1 to 65536",
        })
    }
}
