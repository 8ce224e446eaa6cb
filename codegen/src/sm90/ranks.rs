//! Arithmetic over ranks as numbers of 32 bits: what a schedule compares, visits and names by rank.
//!
//! A rank expression may be negative on the way: `(me() - 1) % world()`. Sums, differences and products modulo 2^32 do not
//! mind. What is divided, or compared by size, is moved up first by as many worlds as keep it from being negative in any
//! world, which neither a remainder nor a comparison notices.

use super::walk::{Bound, Walk};
use crate::order::{RankOrder, RankTable, affine};
use crate::program::Var;
use crate::rank::{Comparison, Cond, RankExpr, RankOp};
use crate::warp::{Expr, Node, Op, OrderId, OrderTable, Test};

/// Ranks at most.
const MOST_RANKS: i64 = 128;
/// Orders that the host passes as tables, at most: of 128 bytes each.
const MOST_ORDERS: usize = 8;

/// A number of some worlds and a constant.
#[derive(Clone, Copy)]
struct Line {
    worlds: i64,
    more: i64,
}

impl Line {
    const fn of(worlds: i64, more: i64) -> Line {
        Line { worlds, more }
    }

    fn plus(self, other: Line) -> Line {
        Line::of(
            self.worlds.saturating_add(other.worlds),
            self.more.saturating_add(other.more),
        )
    }

    fn times(self, by: i64) -> Line {
        Line::of(self.worlds.saturating_mul(by), self.more.saturating_mul(by))
    }

    /// In a world of so many.
    fn at(self, world: i64) -> i64 {
        self.worlds.saturating_mul(world).saturating_add(self.more)
    }

    fn least(self) -> i64 {
        self.at(1).min(self.at(MOST_RANKS))
    }

    fn most(self) -> i64 {
        self.at(1).max(self.at(MOST_RANKS))
    }

    /// Number of worlds that make it no longer negative.
    fn lacks(self) -> i64 {
        if self.least() >= 0 {
            return 0;
        }
        self.worlds
            .min(0)
            .saturating_add(self.more.min(0))
            .saturating_neg()
    }
}

/// A number modulo 2^32, and what it is at least and at most.
#[derive(Clone)]
struct Number {
    is: Expr,
    least: Line,
    most: Line,
}

impl Number {
    fn new(is: Expr, least: Line, most: Line) -> Number {
        Number { is, least, most }
    }

    /// Expression with so many times `by` more.
    fn raised(self, times: i64, by: &Number) -> Expr {
        match u32::try_from(times) {
            Ok(0) | Err(_) => self.is,
            Ok(1) => self.is + by.is.clone(),
            Ok(times) => self.is + Expr::Const(times) * by.is.clone(),
        }
    }

    /// True if it, and whatever is added to compare it, has room in 31 bits.
    fn is_small(&self) -> bool {
        let small = -(1 << 30)..1 << 30;
        small.contains(&self.least.least()) && small.contains(&self.most.most())
    }
}

fn world() -> Number {
    Number::new(Expr::world(), Line::of(1, 0), Line::of(1, 0))
}

impl Walk<'_, '_> {
    /// A rank, a slot or whatever else an expression counts.
    pub fn rank(&mut self, expr: &RankExpr) -> Expr {
        self.number(expr).is
    }

    fn number(&mut self, expr: &RankExpr) -> Number {
        let number = match expr {
            RankExpr::Me => Number::new(Expr::me(), Line::of(0, 0), Line::of(1, -1)),
            RankExpr::World => world(),
            RankExpr::Const(value) => {
                let [size, negative] = [value.unsigned_abs(), u64::from(*value < 0)];
                let size = Expr::Const(u32::try_from(size).unwrap_or(u32::MAX));
                let is = match negative {
                    0 => size,
                    _ => Expr::Binary(Op::Sub, Expr::Const(0).into(), size.into()),
                };
                Number::new(is, Line::of(0, *value), Line::of(0, *value))
            }
            RankExpr::Var(var) => {
                let is = match self.scope.iter().rev().find(|(known, _)| known == var) {
                    Some((_, Bound::Rank(rank))) => rank.clone(),
                    Some((_, Bound::Item { .. })) | None => Expr::Const(0),
                };
                Number::new(is, Line::of(0, 0), Line::of(1, -1))
            }
            RankExpr::Binary(op, a, b) => {
                let (a, b) = (self.number(a), self.number(b));
                self.combined(*op, a, b)
            }
        };
        if !number.is_small() {
            self.refuse(
                "a number over ranks that has no room in 31 bits",
                "smaller factors",
            );
        }
        number
    }

    fn combined(&mut self, op: RankOp, a: Number, b: Number) -> Number {
        let (least, most) = match op {
            RankOp::Add => (a.least.plus(b.least), a.most.plus(b.most)),
            RankOp::Sub => (
                a.least.plus(b.most.times(-1)),
                a.most.plus(b.least.times(-1)),
            ),
            RankOp::Mul => product(&a, &b),
            RankOp::Div => {
                let at_most = Line::of(0, a.most.most().max(0));
                (a.least_of_quotient(), at_most)
            }
            RankOp::Rem => (Line::of(0, 0), b.most.plus(Line::of(0, -1))),
            RankOp::Xor => {
                let most = [&a, &b].map(|side| side.most.most().clamp(0, 1 << 40));
                let bits = (most[0].max(most[1]) + 1)
                    .unsigned_abs()
                    .next_power_of_two();
                (Line::of(0, 0), Line::of(0, bits as i64 - 1))
            }
        };
        let is = match op {
            RankOp::Add => a.is + b.is,
            RankOp::Sub => a.is - b.is,
            RankOp::Mul => a.is * b.is,
            RankOp::Div | RankOp::Rem if b.least.least() < 0 => {
                self.refuse(
                    "a division by a rank expression that may be negative",
                    "a divisor that is not",
                );
                a.is
            }
            RankOp::Rem => {
                let times = a.lacks_of(&b);
                a.raised(times, &b) % b.is
            }
            RankOp::Div => {
                let times = a.lacks_of(&b);
                let less = u32::try_from(times).unwrap_or(0);
                a.raised(times, &b) / b.is - less
            }
            RankOp::Xor => {
                if [&a, &b].iter().any(|side| side.least.least() < 0) {
                    self.refuse(
                        "`^` of a rank expression that may be negative",
                        "`% world()` of it",
                    );
                }
                Expr::Binary(Op::Xor, Box::new(a.is), Box::new(b.is))
            }
        };
        Number::new(is, least, most)
    }

    /// Condition of an `if`.
    pub fn cond(&mut self, cond: &Cond) -> Test {
        match cond {
            Cond::Compare(comparison, a, b) => {
                let (a, b) = (self.number(a), self.number(b));
                let worlds = match comparison {
                    Comparison::Eq | Comparison::Ne => 0,
                    Comparison::Lt | Comparison::Le | Comparison::Gt | Comparison::Ge => {
                        a.least.lacks().max(b.least.lacks())
                    }
                };
                let [a, b] = [a, b].map(|side| side.raised(worlds, &world()));
                match comparison {
                    Comparison::Eq => Test::Equal(a, b),
                    Comparison::Ne => Test::Differ(a, b),
                    Comparison::Lt => Test::Less(a, b),
                    Comparison::Ge => Test::AtLeast(a, b),
                    Comparison::Gt => Test::Less(b, a),
                    Comparison::Le => Test::AtLeast(b, a),
                }
            }
            Cond::And(a, b) => Test::And(self.cond(a).into(), self.cond(b).into()),
            Cond::Or(a, b) => Test::Or(self.cond(a).into(), self.cond(b).into()),
            Cond::Not(a) => self.cond(a).negate(),
        }
    }

    /// A branch, if it has anything to do. What is named within it is its own.
    pub fn when(&mut self, test: Test, body: impl FnOnce(&mut Self) -> Vec<Node>) -> Option<Node> {
        let names = self.declared.len();
        let body = body(self);
        self.declared.truncate(names);
        (!body.is_empty()).then_some(Node::If { test, body })
    }

    /// A loop over ranks, if it has anything to do.
    pub fn ranks(
        &mut self,
        var: Var,
        order: &RankOrder,
        body: impl FnOnce(&mut Self) -> Vec<Node>,
    ) -> Option<Node> {
        let name = self.ident(var);
        let step = format!("{name}_step");
        let (count, rank) = match *order {
            RankOrder::FromMe {
                start,
                stride,
                skipped,
                ref but_last,
            } => {
                let at = affine(start, stride, Expr::me(), Expr::var(&step), Expr::world());
                let count = match (skipped, but_last.as_slice()) {
                    (0, []) => Expr::world(),
                    (1, []) => Expr::world() - 1,
                    // A small world may have fewer.
                    (skipped, more) => {
                        let all = RankExpr::from(i64::from(skipped).min(MOST_RANKS));
                        let all = more.iter().fold(all, |all, n| match all {
                            RankExpr::Const(0) => n.clone(),
                            some => some + n,
                        });
                        let all = self.rank(&all);
                        Expr::world() - Expr::Min(Expr::world().into(), all.into())
                    }
                };
                (count, at)
            }
            RankOrder::Ascending => (Expr::world(), Expr::var(&step)),
            RankOrder::Table(ref by) => {
                let order = self.order_table(&name, by);
                (Expr::world(), Expr::Ordered(order, Expr::var(&step).into()))
            }
        };
        self.scope.push((var, Bound::Rank(Expr::var(&name))));
        let names = self.declared.len();
        let body = body(self);
        self.declared.truncate(names);
        self.scope.pop();
        (!body.is_empty()).then_some(Node::Ranks {
            step,
            count,
            var: name,
            rank,
            body,
        })
    }

    /// The table of an order that has no expression.
    fn order_table(&mut self, var: &str, by: &RankTable) -> OrderId {
        let mut tables = self.b.orders.iter();
        if let Some(known) = tables.position(|table| table.by == *by) {
            return OrderId(known as u16);
        }
        if self.b.orders.len() == MOST_ORDERS {
            self.refuse(
                format!("more than {MOST_ORDERS} orders given as closures"),
                "orders by `ring`, `from_me`, `after_me`, `before_me`",
            );
            return OrderId(0);
        }
        let mut name = format!("{var}_order");
        while self.is_passed(&name) || self.b.orders.iter().any(|table| table.name == name) {
            name.push('_');
        }
        self.b.orders.push(OrderTable {
            name,
            by: by.clone(),
        });
        OrderId((self.b.orders.len() - 1) as u16)
    }

    /// True if the host passes something of that name.
    fn is_passed(&self, name: &str) -> bool {
        let kernel = self.b.kernel;
        let dims = kernel.dims.iter().map(|dim| dim.name.replace('.', "_"));
        let counters = kernel.counters.iter().map(|counter| counter.name.clone());
        let buffers = kernel.buffers.iter().map(|buffer| buffer.name.clone());
        dims.chain(counters)
            .chain(buffers)
            .any(|known| known == name)
    }
}

impl Number {
    /// Number of times that a divisor has to be added before it can be divided: a divisor is at least 1 wherever it
    /// divides.
    fn lacks_of(&self, by: &Number) -> i64 {
        if by.is == Expr::world() {
            self.least.lacks()
        } else {
            self.least.least().min(0).saturating_neg()
        }
    }

    fn least_of_quotient(&self) -> Line {
        Line::of(0, self.least.least().min(0))
    }
}

/// Least and largest value of a product.
fn product(a: &Number, b: &Number) -> (Line, Line) {
    let constant = |side: &Number| {
        let (least, most) = (side.least, side.most);
        (least.worlds == 0 && most.worlds == 0 && least.more == most.more).then_some(least.more)
    };
    for (factor, of) in [(constant(a), b), (constant(b), a)] {
        match factor {
            Some(factor @ 0..) => return (of.least.times(factor), of.most.times(factor)),
            Some(factor) => return (of.most.times(factor), of.least.times(factor)),
            None => {}
        }
    }
    let ends = [a.least.least(), a.most.most()];
    let others = [b.least.least(), b.most.most()];
    let all = ends
        .iter()
        .flat_map(|a| others.iter().map(|b| a.saturating_mul(*b)));
    let (least, most) = all.fold((i64::MAX, i64::MIN), |(least, most), at| {
        (least.min(at), most.max(at))
    });
    (Line::of(0, least), Line::of(0, most))
}
