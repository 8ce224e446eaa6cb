//! Gathered outputs: the gathered tensors that a statement stores to.

use crate::model::{Param, Stmt, StmtKind, Top, Usage};
use crate::names;
use std::collections::HashSet;

/// Makes outputs of the gathered parameters that the body computes.
pub(super) fn mark(params: &mut [Param], body: &[Top]) {
    let mut stored = HashSet::new();
    for top in body {
        if let Top::Role(role) = top {
            note_stored(&role.body, &mut stored);
        }
    }
    for param in params {
        let computed = stored.contains(&names::text(&param.name));
        if param.usage == Usage::GATHERED && computed {
            param.usage = Usage::GATHERED_OUTPUT;
        }
    }
}

fn note_stored(stmts: &[Stmt], found: &mut HashSet<String>) {
    for stmt in stmts {
        match &stmt.kind {
            StmtKind::ForRanks { body, .. } | StmtKind::ForItems { body, .. } => {
                note_stored(body, found);
            }
            StmtKind::If {
                then, otherwise, ..
            } => {
                note_stored(then, found);
                note_stored(otherwise, found);
            }
            StmtKind::Store { dst, .. } => {
                found.insert(names::text(&dst.tensor));
            }
            StmtKind::Wait { .. }
            | StmtKind::Signal { .. }
            | StmtKind::Copy { .. }
            | StmtKind::Value(..)
            | StmtKind::Rank(..)
            | StmtKind::Accumulator(_)
            | StmtKind::Accumulate { .. } => {}
        }
    }
}
