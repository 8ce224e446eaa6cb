//! The sum that an element holds: which terms, and each how often.
//!
//! A term is a product of one rank, an element of an input, a constant that is added, or the result of a function. It
//! belongs to the element's own row and column, so it records no position, and all elements of an item hold the same
//! sum. A value from another row or column is [`Term::Elsewhere`].
//!
//! `+`, `-` and casts keep count: every term has an integer multiplicity, through scratch, copies and rings. Any other
//! function of a complete sum makes a new term. A function of a part of a sum, or of sums that cancel out, makes a term
//! that is part of no sum. A function of constants makes a constant.
//!
//! A sum over ranks is *complete* if it holds every rank's products exactly once, and the same ones of every rank; if
//! nothing is multiplied, every rank's inputs. One rank adds a bias, residual or constant, once: when the sum is
//! complete, or as the rank that owns the rows. Those may be subtracted; a contribution may not. If every rank added
//! one to its part of the sum, it would be added once per rank.

mod expression;
mod promise;

pub(super) use promise::Wrong;

use crate::kernel::{Kernel, ValueId};
use crate::map::Map;
use crate::program::TensorId;
use std::rc::Rc;

/// Term of a sum.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Term {
    /// A rank's product of two tensors as they are in its memory, over all of K.
    Product {
        rank: u16,
        operands: (TensorId, TensorId),
    },
    /// An input as that rank holds it. For a gathered tensor, the rank that owns the rows.
    Input { rank: u16, tensor: TensorId },
    /// A constant that a rank adds.
    Constant { rank: u16 },
    /// The result of a function in a rank's expression: which part of which expression, of what.
    Function {
        rank: u16,
        value: ValueId,
        part: u16,
        of: SumId,
        kind: Of,
    },
    /// A bias, residual or constant that a rank without the rows adds to a part of a sum.
    Early(TermId),
    /// A value of other rows or columns than those it is stored to.
    Elsewhere,
    /// A value of an item whose rows or columns hold different sums.
    Uneven,
}

/// Argument of a function.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Of {
    /// Complete sums, perhaps with inputs.
    Whole,
    /// Inputs alone.
    Inputs,
    /// Part of a sum.
    Part,
}

impl Term {
    /// The rank it belongs to.
    pub fn rank(self) -> Option<u16> {
        match self {
            Term::Product { rank, .. }
            | Term::Input { rank, .. }
            | Term::Constant { rank }
            | Term::Function { rank, .. } => Some(rank),
            Term::Early(_) | Term::Elsewhere | Term::Uneven => None,
        }
    }

    /// Term without its rank.
    fn alike(self) -> Term {
        match self {
            Term::Product { operands, .. } => Term::Product { rank: 0, operands },
            Term::Input { tensor, .. } => Term::Input { rank: 0, tensor },
            Term::Constant { .. } => Term::Constant { rank: 0 },
            Term::Function {
                value, part, kind, ..
            } => Term::Function {
                rank: 0,
                value,
                part,
                of: NOTHING,
                kind,
            },
            Term::Early(_) | Term::Elsewhere | Term::Uneven => self,
        }
    }
}

/// An index into the terms of [`Sums`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub(super) struct TermId(u32);

/// An index into [`Sums`]. Equal sums have equal indices.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub(super) struct SumId(u32);

/// The sum of nothing.
pub(super) const NOTHING: SumId = SumId(0);

/// State of a sum: what an expression may do with it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Nothing,
    Inputs,
    Whole,
    Part,
}

struct Sum {
    /// Terms and how often, none of them zero times, by id.
    parts: Rc<[(TermId, i32)]>,
    /// Computed on first use.
    state: Option<State>,
}

/// Every sum that occurs, each once.
pub(super) struct Sums<'a> {
    kernel: &'a Kernel,
    everyone: u128,
    terms: Vec<Term>,
    term_ids: Map<Term, TermId>,
    sums: Vec<Sum>,
    sum_ids: Map<Rc<[(TermId, i32)]>, SumId>,
    added: Map<(SumId, SumId), SumId>,
}

impl<'a> Sums<'a> {
    /// Only the empty sum.
    pub fn new(kernel: &'a Kernel, world: u32) -> Self {
        let mut sums = Sums {
            kernel,
            everyone: (0..world).fold(0, |ranks, rank| ranks | 1 << rank),
            terms: Vec::new(),
            term_ids: Map::default(),
            sums: Vec::new(),
            sum_ids: Map::default(),
            added: Map::default(),
        };
        sums.sum(&[]);
        sums
    }

    fn id(&mut self, term: Term) -> TermId {
        if let Some(id) = self.term_ids.get(&term) {
            return *id;
        }
        let id = TermId(self.terms.len() as u32);
        self.terms.push(term);
        self.term_ids.insert(term, id);
        id
    }

    fn sum(&mut self, parts: &[(TermId, i32)]) -> SumId {
        if let Some(id) = self.sum_ids.get(parts) {
            return *id;
        }
        let parts: Rc<[(TermId, i32)]> = parts.into();
        let id = SumId(self.sums.len() as u32);
        self.sums.push(Sum {
            parts: parts.clone(),
            state: None,
        });
        self.sum_ids.insert(parts, id);
        id
    }

    /// A term.
    pub fn term(&self, id: TermId) -> Term {
        self.terms[id.0 as usize]
    }

    /// The terms of a sum, and how often each.
    pub fn parts(&self, sum: SumId) -> &[(TermId, i32)] {
        &self.sums[sum.0 as usize].parts
    }

    /// Sum of that term, once.
    pub fn one(&mut self, term: Term) -> SumId {
        let id = self.id(term);
        self.sum(&[(id, 1)])
    }

    /// The sum of two.
    pub fn plus(&mut self, a: SumId, b: SumId) -> SumId {
        if a == NOTHING || b == NOTHING {
            return a.max(b);
        }
        let key = (a.min(b), a.max(b));
        if let Some(known) = self.added.get(&key) {
            return *known;
        }
        let sum = self.merged(a, b, |a, b| a.saturating_add(b));
        self.added.insert(key, sum);
        sum
    }

    fn minus(&mut self, a: SumId, b: SumId) -> SumId {
        self.merged(a, b, |a, b| a.saturating_sub(b))
    }

    fn merged(&mut self, a: SumId, b: SumId, times: impl Fn(i32, i32) -> i32) -> SumId {
        let (a, b) = (self.parts(a), self.parts(b));
        let mut parts = Vec::with_capacity(a.len() + b.len());
        let (mut i, mut j) = (0, 0);
        while i < a.len() || j < b.len() {
            let next = |side: &[(TermId, i32)], at: usize| side.get(at).map(|part| part.0);
            let (left, right) = (next(a, i), next(b, j));
            // `None`, the end, comes after every term.
            let first = left.into_iter().chain(right).min();
            let (mut here, mut there) = (0, 0);
            if left == first {
                here = a[i].1;
                i += 1;
            }
            if right == first {
                there = b[j].1;
                j += 1;
            }
            let times = times(here, there);
            parts.extend(first.filter(|_| times != 0).map(|term| (term, times)));
        }
        self.sum(&parts)
    }

    /// True if a term may be added to contributions: it is made of inputs alone.
    fn is_beside(&self, term: Term) -> bool {
        match term {
            Term::Input { .. } | Term::Constant { .. } => true,
            Term::Function { kind, .. } => kind == Of::Inputs,
            Term::Product { .. } | Term::Early(_) | Term::Elsewhere | Term::Uneven => false,
        }
    }

    fn multiplies(&self, sum: SumId) -> bool {
        let product = |part: &(TermId, i32)| matches!(self.term(part.0), Term::Product { .. });
        self.parts(sum).iter().any(product)
    }

    fn state(&mut self, sum: SumId) -> State {
        if let Some(state) = self.sums[sum.0 as usize].state {
            return state;
        }
        let parts = self.parts(sum);
        let state = if parts.is_empty() {
            State::Nothing
        } else if self.complete(sum).is_ok() {
            State::Whole
        } else if parts.iter().all(|part| self.is_beside(self.term(part.0))) {
            State::Inputs
        } else {
            State::Part
        };
        self.sums[sum.0 as usize].state = Some(state);
        state
    }

    /// A sum as it is stored to rows of `owner`. Inputs and constants added to a part of a sum of products become early.
    pub fn stored(&mut self, sum: SumId, owner: Option<u32>) -> SumId {
        let alone = self.parts(sum).len() < 2;
        if alone || owner.is_none() || !self.multiplies(sum) || self.state(sum) != State::Part {
            return sum;
        }
        let mut parts = self.parts(sum).to_vec();
        for (id, _) in &mut parts {
            let term = self.term(*id);
            if self.is_beside(term) && term.rank().map(u32::from) != owner {
                *id = self.id(Term::Early(*id));
            }
        }
        parts.sort_unstable();
        self.sum(&parts)
    }

    /// Terms that a sum over ranks may not have. The statement that makes such a sum is reported.
    pub fn suspects(&self, sum: SumId) -> impl Iterator<Item = TermId> + '_ {
        let suspect = |(id, times): &(TermId, i32)| {
            *times != 1 || !matches!(self.term(*id), Term::Product { .. })
        };
        let suspects = self.parts(sum).iter().filter(move |part| suspect(part));
        suspects.map(|(id, _)| *id)
    }
}
