//! Whose contributions a value holds, how much of K they are over, and what arithmetic does to them.
//!
//! A sum over ranks is the sum of one term of each rank. Adding terms of different ranks (and casting) keeps a sum a
//! sum. Any other function may be applied to a term by the rank that made it, and to the sum once it is complete; in
//! between it makes something that is no part of that sum any more.

use crate::program::TensorId;
use crate::shape::Extent;
use crate::value::{AccId, Binary, Value};

/// A product over a part of K: adjoining parts of one product add up to more of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Depth {
    /// What is multiplied.
    pub operands: (TensorId, TensorId),
    /// Over which elements of K.
    pub over: Extent,
    /// Of how many.
    pub all: u32,
}

impl Depth {
    /// Both, where they adjoin.
    fn joined(self, other: Depth) -> Option<Depth> {
        let (a, b) = if self.over.start <= other.over.start {
            (self, other)
        } else {
            (other, self)
        };
        let alike = (a.operands, a.all) == (b.operands, b.all) && a.over.end == b.over.start;
        let over = Extent {
            start: a.over.start,
            end: b.over.end,
        };
        alike.then_some(Depth { over, ..a })
    }

    /// All of K is no part.
    fn unless_whole(self) -> Option<Depth> {
        (self.over.len() < self.all).then_some(self)
    }
}

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
    /// The part of K that its only term is over; `None`: all.
    pub depth: Option<Depth>,
    /// Whether parts of K were added that do not adjoin, or to something else, or a function was applied to one.
    pub torn: bool,
}

/// What an accumulator of an item holds.
#[derive(Clone, Copy, Default)]
pub(super) struct AccHolds {
    /// Whether products were added to it: this rank's own term.
    pub dotted: bool,
    /// Whether it is an input tile: a residual beside a product, this rank's own term where there is none.
    pub input: bool,
    /// The part of K that the products are over; `None`: all.
    pub depth: Option<Depth>,
    /// What was read from memory.
    pub memory: Holds,
}

/// What a part of an expression holds: this rank's own term, and what came from memory.
#[derive(Clone, Copy, Default)]
struct Part {
    own: bool,
    /// Whether the own term is a function of the product.
    own_applied: bool,
    /// The part of K that the own term is over; `None`: all.
    own_depth: Option<Depth>,
    memory: Holds,
}

impl Part {
    fn all(self, me: u32) -> Holds {
        if self.own {
            self.memory.plus(Holds {
                applied: self.own_applied,
                depth: self.own_depth,
                ..Holds::one(me)
            })
        } else {
            self.memory
        }
    }

    /// Two products of one rank are one term of it; parts of products are none.
    fn plus(self, other: Part) -> Part {
        let mut memory = self.memory.plus(other.memory);
        let both = self.own && other.own;
        memory.torn |= both && (self.own_depth.is_some() || other.own_depth.is_some());
        Part {
            own: self.own || other.own,
            own_applied: self.own_applied || other.own_applied,
            own_depth: self.own_depth.or(other.own_depth),
            memory,
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
        let parted = both && (self.depth.is_some() || other.depth.is_some());
        if parted {
            return self.joined(other);
        }
        Holds {
            depth: self.depth.or(other.depth),
            torn: self.torn || other.torn,
            ranks: self.ranks | other.ranks,
            twice: self.twice | other.twice | (self.ranks & other.ranks),
            applied: self.applied || other.applied,
            mixed: self.mixed || other.mixed || (both && (self.applied || other.applied)),
        }
    }

    /// The sum of two parts of one rank's term.
    fn joined(self, other: Holds) -> Holds {
        let joined = match (self.depth, other.depth) {
            (Some(a), Some(b)) if self.ranks == other.ranks => a.joined(b),
            (Some(_), Some(_)) | (None, _) | (_, None) => None,
        };
        Holds {
            ranks: self.ranks | other.ranks,
            twice: self.twice | other.twice,
            applied: false,
            mixed: self.mixed || other.mixed,
            depth: joined.map_or(self.depth.or(other.depth), Depth::unless_whole),
            torn: self.torn || other.torn || self.applied || other.applied || joined.is_none(),
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
            depth,
            memory,
        } = acc(id);
        Part {
            own: dotted || (input && !beside_product),
            own_applied: false,
            own_depth: depth,
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
    let torn = held.iter().any(|holds| holds.torn || holds.depth.is_some());
    if parts.iter().all(|part| part.memory.ranks == 0) {
        return Part {
            own: !held.is_empty(),
            own_applied: true,
            own_depth: None,
            memory: Holds {
                torn,
                ..Holds::default()
            },
        };
    }
    let memory = Holds {
        ranks: held.iter().fold(0, |ranks, holds| ranks | holds.ranks),
        twice: held.iter().fold(0, |ranks, holds| ranks | holds.twice),
        applied: true,
        mixed: held
            .iter()
            .any(|holds| holds.mixed || holds.ranks != everyone),
        depth: None,
        torn,
    };
    Part {
        memory,
        ..Part::default()
    }
}
