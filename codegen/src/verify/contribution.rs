//! Whose contributions a value holds, and what arithmetic does to them.
//!
//! A sum over ranks is the sum of one term of each rank. Adding terms of different ranks (and casting) keeps a sum a
//! sum. Any other function may be applied to a term by the rank that made it, and to the sum once it is complete; in
//! between it makes something that is no part of that sum any more.

use crate::value::{AccId, Binary, Value};

/// Whose contributions a block, an accumulator or a value holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Holds {
    /// Ranks whose term is in it.
    pub ranks: u128,
    /// Ranks whose term is in it more than once.
    pub twice: u128,
    /// Whether it is a function of what it holds, other than the sum.
    pub applied: bool,
    /// Whether such a function's result was added to something.
    pub mixed: bool,
}

/// What an accumulator of an item holds.
#[derive(Clone, Copy, Default)]
pub(super) struct AccHolds {
    /// Whether products were added to it: this rank's own term.
    pub dotted: bool,
    /// Whether it is an input tile: a residual beside a product, this rank's own term where there is none.
    pub input: bool,
    /// What was read from memory.
    pub memory: Holds,
}

/// What a part of an expression holds: this rank's own term, and what came from memory.
#[derive(Clone, Copy, Default)]
struct Part {
    own: bool,
    /// Whether the own term is a function of the product.
    own_applied: bool,
    memory: Holds,
}

impl Part {
    fn all(self, me: u32) -> Holds {
        if self.own {
            self.memory.plus(Holds {
                applied: self.own_applied,
                ..Holds::one(me)
            })
        } else {
            self.memory
        }
    }

    /// Two products of one rank are one term of it.
    fn plus(self, other: Part) -> Part {
        Part {
            own: self.own || other.own,
            own_applied: self.own_applied || other.own_applied,
            memory: self.memory.plus(other.memory),
        }
    }
}

impl Holds {
    /// That rank's term.
    pub fn one(rank: u32) -> Holds {
        Holds {
            ranks: 1 << rank,
            ..Holds::default()
        }
    }

    /// The sum of two.
    pub fn plus(self, other: Holds) -> Holds {
        let both = self.ranks != 0 && other.ranks != 0;
        Holds {
            ranks: self.ranks | other.ranks,
            twice: self.twice | other.twice | (self.ranks & other.ranks),
            applied: self.applied || other.applied,
            mixed: self.mixed || other.mixed || (both && (self.applied || other.applied)),
        }
    }
}

/// What an expression of rank `me` in a world of `everyone` holds.
pub(super) fn of_value(
    value: &Value,
    me: u32,
    everyone: u128,
    acc: &impl Fn(AccId) -> AccHolds,
) -> Holds {
    let beside_product = value.accs().into_iter().any(|id| acc(id).dotted);
    let of_acc = |id| {
        let AccHolds {
            dotted,
            input,
            memory,
        } = acc(id);
        Part {
            own: dotted || (input && !beside_product),
            own_applied: false,
            memory,
        }
    };
    part(value, me, everyone, &of_acc).all(me)
}

fn part(value: &Value, me: u32, everyone: u128, acc: &impl Fn(AccId) -> Part) -> Part {
    let of = |value: &Value| part(value, me, everyone, acc);
    let apply = |values: &[&Value]| {
        let parts: Vec<Part> = values.iter().map(|value| of(value)).collect();
        applied(&parts, me, everyone)
    };
    match value {
        Value::Acc(id) => acc(*id),
        Value::Arg(_) | Value::Const(_) => Part::default(),
        Value::Cast(_, a) => of(a),
        Value::Binary(Binary::Add, a, b) => of(a).plus(of(b)),
        Value::Unary(_, a) => apply(&[a]),
        Value::Binary(
            Binary::Sub | Binary::Mul | Binary::Div | Binary::Min | Binary::Max,
            a,
            b,
        ) => apply(&[a, b]),
        Value::Select(_, values) => apply(&values.iter().collect::<Vec<_>>()),
        Value::Call(_, values) => apply(&values.iter().collect::<Vec<_>>()),
    }
}

/// A function of several parts: of this rank's own terms a term, of complete sums a complete result. Anything else is
/// not a part of the sum any more.
fn applied(parts: &[Part], me: u32, everyone: u128) -> Part {
    let held: Vec<Holds> = parts
        .iter()
        .map(|part| part.all(me))
        .filter(|holds| holds.ranks != 0)
        .collect();
    if parts.iter().all(|part| part.memory.ranks == 0) {
        return Part {
            own: !held.is_empty(),
            own_applied: true,
            memory: Holds::default(),
        };
    }
    let memory = Holds {
        ranks: held.iter().fold(0, |ranks, holds| ranks | holds.ranks),
        twice: held.iter().fold(0, |ranks, holds| ranks | holds.twice),
        applied: true,
        mixed: held
            .iter()
            .any(|holds| holds.mixed || holds.ranks != everyone),
    };
    Part {
        memory,
        ..Part::default()
    }
}
