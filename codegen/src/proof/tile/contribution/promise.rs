//! Promises that a tensor's type makes about the sums it holds.

use super::{Of, SumId, Sums, Term, TermId};
use crate::program::Usage;
use crate::undo::{Fix, undone};

/// Breach of the promise of a tensor's type by a sum.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Wrong {
    /// The sum holds a term that is part of no sum: [`Term::Elsewhere`], [`Term::Uneven`], or a function of a part.
    NoTerm(TermId),
    /// The sum holds a bias, residual or constant that was added to a part of the sum, or by several ranks.
    Added(TermId),
    /// The sum holds a term this many times.
    Times(TermId, i32),
    /// The sum holds a term of another rank than the one that sends it.
    Another(TermId),
    /// The sum lacks contributions of these ranks: this product or input, or all.
    Lacks(u128, Option<Term>),
}

impl Sums<'_> {
    /// Rejects a sum that is not complete over all ranks: every contribution once, and everything else once.
    pub fn complete(&self, sum: SumId) -> Result<(), Wrong> {
        let multiplies = self.multiplies(sum);
        // Equal terms and the ranks that have them, and whether there is a function of a complete sum.
        let mut known: Vec<(Term, TermId, u128)> = Vec::new();
        let mut subtracted: Vec<TermId> = Vec::new();
        let mut whole = false;
        for (id, times) in self.parts(sum) {
            let term = self.term(*id);
            match term {
                Term::Elsewhere | Term::Uneven => return Err(Wrong::NoTerm(*id)),
                Term::Function { kind: Of::Part, .. } => return Err(Wrong::NoTerm(*id)),
                Term::Early(_) => return Err(Wrong::Added(*id)),
                Term::Product { .. }
                | Term::Input { .. }
                | Term::Constant { .. }
                | Term::Function { .. } => {}
            }
            let beside = self.is_beside(term);
            whole |= matches!(term, Term::Function { .. }) && !beside;
            match *times {
                1 => {}
                -1 if beside => subtracted.push(*id),
                times => return Err(Wrong::Times(*id, times)),
            }
            let (like, rank) = (term.alike(), 1 << term.rank().unwrap_or(0));
            match known.iter_mut().find(|(known, ..)| *known == like) {
                Some((_, _, ranks)) => *ranks |= rank,
                None => known.push((like, *id, rank)),
            }
        }
        let is_own = |term: Term| match term {
            Term::Product { .. } => true,
            Term::Input { tensor, .. } => {
                let local = self.kernel.buffers[tensor.index()].usage == Usage::LOCAL;
                local && !multiplies && !whole
            }
            Term::Constant { .. }
            | Term::Function { .. }
            | Term::Early(_)
            | Term::Elsewhere
            | Term::Uneven => false,
        };
        // If nothing is multiplied, a term that only some ranks have may be a residual.
        let contributes =
            |term: Term, ranks: u128| is_own(term) && (multiplies || ranks == self.everyone);
        // A bias or residual may be subtracted, a contribution may not.
        for id in subtracted {
            let alike = self.term(id).alike();
            let all = known.iter().find(|(term, ..)| *term == alike);
            if all.is_some_and(|(term, _, ranks)| contributes(*term, *ranks)) {
                return Err(Wrong::Times(id, -1));
            }
        }
        let mut there = 0;
        let several = known.iter().filter(|(term, ..)| is_own(*term)).count() > 1;
        for (term, _, ranks) in &known {
            if contributes(*term, *ranks) {
                there |= ranks;
                if *ranks != self.everyone && !undone(Fix::Multiplicity) {
                    let which = several.then_some(*term);
                    return Err(Wrong::Lacks(self.everyone & !ranks, which));
                }
            }
        }
        for (term, id, ranks) in &known {
            if !contributes(*term, *ranks) && ranks.count_ones() > 1 {
                let function = matches!(term, Term::Function { .. });
                return Err(if there == 0 && function {
                    Wrong::NoTerm(*id)
                } else if there == 0 && !whole {
                    Wrong::Lacks(self.everyone & !ranks, None)
                } else {
                    Wrong::Added(*id)
                });
            }
        }
        let enough = there == self.everyone || (there == 0 && whole);
        let own = known.iter().filter(|(term, ..)| is_own(*term));
        let lacking = own.fold(self.everyone, |left, (_, _, ranks)| left & !ranks);
        enough.then_some(()).ok_or(Wrong::Lacks(lacking, None))
    }

    /// Rejects a sum with terms of other rows and columns than its own, or with products over less than all of K.
    pub fn in_place(&self, sum: SumId) -> Result<(), Wrong> {
        let astray = |id: TermId| matches!(self.term(id), Term::Elsewhere | Term::Uneven);
        let found = self.parts(sum).iter().find(|(id, _)| astray(*id));
        found.map_or(Ok(()), |(id, _)| Err(Wrong::NoTerm(*id)))
    }

    /// Rejects a sum that is not what that rank sends: in place, and all of it its own. What is gathered is
    /// everybody's.
    pub fn sent_by(&self, sum: SumId, sender: u16) -> Result<(), Wrong> {
        self.in_place(sum)?;
        let another = |id: TermId| {
            let mut term = self.term(id);
            if let Term::Early(of) = term {
                term = self.term(of);
            }
            let gathered = matches!(term, Term::Input { tensor, .. }
                if self.kernel.buffers[tensor.index()].usage.is_gathered());
            !gathered && term.rank() != Some(sender)
        };
        let found = self.parts(sum).iter().find(|(id, _)| another(*id));
        found
            .filter(|_| !undone(Fix::Provenance))
            .map_or(Ok(()), |(id, _)| Err(Wrong::Another(*id)))
    }

    /// Rejects a sum that one launch may not add to what its rank held before: every product once, and nothing else.
    pub fn accumulates(&self, sum: SumId) -> Result<(), Wrong> {
        let multiplies = self.multiplies(sum);
        for (id, times) in self.parts(sum) {
            let contributes = match self.term(*id) {
                Term::Elsewhere | Term::Uneven => return Err(Wrong::NoTerm(*id)),
                Term::Early(_) => return Err(Wrong::Added(*id)),
                Term::Product { .. } => true,
                Term::Function { kind, .. } => kind != Of::Inputs || !multiplies,
                Term::Input { tensor, .. } => {
                    !multiplies && !self.kernel.buffers[tensor.index()].usage.vector
                }
                Term::Constant { .. } => false,
            };
            if !contributes {
                return Err(Wrong::Added(*id));
            }
            if *times != 1 {
                return Err(Wrong::Times(*id, *times));
            }
        }
        Ok(())
    }
}
