//! Fences around accesses of every rank's memory at once. All lanes of a warp make such an access, by a `multimem` instruction:
//! an ordinary access at an address of its own.
//!
//! So a fence between the two addresses of the memory stands after every wait that guards such an access, and before every signal
//! that announces one; whoever reads or writes the memory at a rank's own address needs nothing more than otherwise.

use super::builder::refuse;
use super::leaves::Leaf;
use crate::diag::Diagnostic;
use crate::kernel::{Kernel, Op, OpKind, visit, visit_ops};
use crate::program::{CounterId, Home, StoreMode, TensorId};
use std::collections::BTreeMap;

/// True if a copy or a store goes to every rank's memory.
pub(super) fn goes_everywhere(leaf: &Leaf<'_>) -> bool {
    is_everywhere(leaf.op) && !matches!(leaf.op.kind, OpKind::Reduce { .. })
}

/// True if an item accesses every rank's memory at once.
pub(super) fn moves_everywhere(item: &[Op]) -> bool {
    let mut found = false;
    visit_ops(item, &mut |op| found |= is_everywhere(op));
    found
}

fn is_everywhere(op: &Op) -> bool {
    match &op.kind {
        OpKind::Copy { dst: region, .. }
        | OpKind::Store { dst: region, .. }
        | OpKind::Reduce { from: region, .. } => region.home == Home::Everywhere,
        OpKind::Wait { .. }
        | OpKind::Signal { .. }
        | OpKind::Dot { .. }
        | OpKind::Load { .. }
        | OpKind::ForRanks { .. }
        | OpKind::If { .. } => false,
    }
}

/// Cells and elements that are added to both at every rank's address and at one rank's own: refused at the second statement.
///
/// PTX promises that overlapping atomic operations are whole (8.7.2), and does not say that an add by the switch is one of them: one
/// of two such adds might be lost. A fence orders what one rank does before it and after it, and nothing orders the adds of two
/// ranks. A copy engine may do both: it adds at each rank's own address, one rank after another.
pub(super) fn added_at_two_addresses(kernel: &Kernel) -> Vec<Diagnostic> {
    let mut known: BTreeMap<Added, bool> = BTreeMap::new();
    let mut found = Vec::new();
    for role in &kernel.roles {
        let in_turn = role.kind.sequential();
        visit(&role.body, &mut |op| {
            let (what, home) = match &op.kind {
                OpKind::Signal { cells, .. } => (Added::Cells(cells.counter), &cells.home),
                OpKind::Store {
                    dst,
                    mode: StoreMode::Add,
                    ..
                } => (Added::Elements(dst.buffer), &dst.home),
                OpKind::Store { .. }
                | OpKind::Copy { .. }
                | OpKind::Wait { .. }
                | OpKind::Dot { .. }
                | OpKind::Reduce { .. }
                | OpKind::Load { .. }
                | OpKind::ForRanks { .. }
                | OpKind::If { .. } => return,
            };
            let everywhere = *home == Home::Everywhere && !in_turn;
            if *known.entry(what).or_insert(everywhere) == everywhere {
                return;
            }
            let (name, hint) = match what {
                Added::Cells(counter) => (
                    &kernel.counters[counter.index()].name,
                    "a counter for each, or `.on(rank)` in a loop over ranks for both",
                ),
                Added::Elements(buffer) => (
                    &kernel.buffers[buffer.index()].name,
                    "`.on(rank)` in a loop over ranks for both, or every part by `.everywhere()`",
                ),
            };
            let message = format!("`{name}` is added to by `.everywhere()` and on one rank");
            found.push(refuse(Some(kernel.loc(op.id)), message, hint));
        });
    }
    found
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Added {
    Cells(CounterId),
    Elements(TensorId),
}
