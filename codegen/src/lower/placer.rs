//! The state while statements are placed: what is known so far, and what names mean.

use super::choices::Choices;
use super::dims::Matched;
use super::mistake::mistake;
use crate::diag::Diagnostic;
use crate::kernel::{Role, RoleKind};
use crate::program::{Loc, PartitionId, Program, StoreMode, Var};
use crate::rank::RankExpr;
use crate::value::{AccId, ScalarFn, Value};
use std::collections::HashSet;

/// Way in which several `#[comm]` loops become roles.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Comm {
    /// One role, whose CTAs run one loop after another.
    Joined,
    /// One role for each loop.
    Apart,
}

/// The roles of a kernel with their tables.
pub(super) struct Placed {
    pub roles: Vec<Role>,
    pub values: Vec<Value>,
    pub locs: Vec<Loc>,
}

/// Meaning of a loop variable inside its loop.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Bound {
    Rank,
    Item(PartitionId),
}

pub(super) struct Placer<'a> {
    pub(super) program: &'a Program,
    pub(super) choices: &'a Choices<'a>,
    pub(super) matched: &'a Matched,
    pub(super) world: u32,
    pub(super) comm: Comm,
    pub(super) found: &'a mut Vec<Diagnostic>,
    pub(super) scope: Vec<(Var, Bound)>,
    /// Accumulators that something has been added to in the current item.
    pub(super) filled: HashSet<AccId>,
    /// Functions that values called so far.
    pub(super) functions: Vec<ScalarFn>,
    pub(super) signalled: Vec<Option<Loc>>,
    pub(super) waited: Vec<Option<Loc>>,
    pub(super) kind: RoleKind,
    pub(super) placed: Placed,
}

impl Placer<'_> {
    pub(super) fn rank_expr(&mut self, expr: &RankExpr, at: Loc) {
        for var in expr.vars() {
            match self.bound(var) {
                Some(Bound::Rank) => {}
                Some(Bound::Item(_)) => {
                    let name = self.name(var);
                    self.found.push(mistake(
                        at,
                        format!("`{name}` is an item where a rank is needed"),
                    ));
                }
                None => self.unbound(var, at),
            }
        }
    }

    pub(super) fn bound(&self, var: Var) -> Option<Bound> {
        self.scope
            .iter()
            .rev()
            .find(|(bound, _)| *bound == var)
            .map(|(_, bound)| *bound)
    }

    pub(super) fn name(&self, var: Var) -> String {
        self.program
            .vars
            .get(var.index())
            .map_or_else(|| "a loop variable".into(), |var| var.name.clone())
    }

    pub(super) fn unbound(&mut self, var: Var, at: Loc) {
        let name = self.name(var);
        self.found
            .push(mistake(at, format!("`{name}` is used outside its loop")));
    }

    /// The partition whose items `var` visits.
    pub(super) fn item(&mut self, var: Var, at: Loc) -> Option<PartitionId> {
        match self.bound(var) {
            Some(Bound::Item(partition)) => Some(partition),
            Some(Bound::Rank) => {
                let name = self.name(var);
                self.found.push(mistake(
                    at,
                    format!("`{name}` is a rank where an item is needed"),
                ));
                None
            }
            None => {
                self.unbound(var, at);
                None
            }
        }
    }
}

/// Use of a place of data by a statement.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Use {
    Read,
    /// Source of a copy.
    CopyFrom,
    /// Destination of a copy.
    Copy,
    /// Destination of a computed value.
    Store,
    /// Destination that a computed value is added to.
    Add,
}

impl Use {
    pub(super) fn of(mode: StoreMode) -> Use {
        match mode {
            StoreMode::Write => Use::Store,
            StoreMode::Add => Use::Add,
        }
    }
}
