//! Memory of every rank at once: what stands around its accesses. All lanes of a warp make them, by `multimem` instructions,
//! which are ordinary accesses at an address of their own.
//!
//! So a fence between the two addresses of the memory stands after every wait that guards such an access, and before every signal
//! that announces one; whoever reads or writes the memory at a rank's own address needs nothing more than otherwise.

use super::builder::refuse;
use super::leaves::Leaf;
use crate::diag::Diagnostic;
use crate::kernel::{Kernel, Op, OpKind, visit, visit_ops};
use crate::program::{CounterId, Home, StoreMode, TensorId};
use crate::warp::{Lanes, Node, Warp};
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

/// A box's nodes. Where all lanes read it, TMA may write there next when they have met, and the first lane says so.
pub(super) fn after_lanes(body: Vec<Node>, everywhere: bool) -> Vec<Node> {
    let have_read = |node: &Node| match everywhere && matches!(node, Node::Store { .. }) {
        true => vec![Node::FenceShared, Node::SyncWarp],
        false => Vec::new(),
    };
    let with = |node: Node| {
        let after = have_read(&node);
        [vec![node], after].concat()
    };
    body.into_iter().flat_map(with).collect()
}

/// In a warp of which all lanes work, its first lane waits and signals for all of them: they meet after each fence between the
/// addresses, which stands behind waits and before signals.
pub(super) fn converge(warp: &mut Warp) {
    if warp.lanes() == Lanes::All {
        meet(&mut warp.body);
    }
}

fn meet(list: &mut Vec<Node>) {
    let nodes = std::mem::take(list);
    for mut node in nodes {
        if let Some(body) = node.body_mut() {
            meet(body);
        }
        let fence = node == Node::FenceAlias;
        list.push(node);
        if fence {
            list.push(Node::SyncWarp);
        }
    }
}

/// True if TMA stores something there, so that a group of stores is closed and waited for.
pub(super) fn stores_in_bulk(node: &Node) -> bool {
    has(node, &|node| {
        matches!(node, Node::Store { .. }) && !node.is_everywhere()
    })
}

/// True if all that is stored there goes to every rank, and something is.
pub(super) fn stores_everywhere(nodes: &[Node]) -> bool {
    let stores = |node: &Node| has(node, &|node| matches!(node, Node::Store { .. }));
    nodes.iter().any(stores) && !nodes.iter().any(stores_in_bulk)
}

fn has(node: &Node, wanted: &dyn Fn(&Node) -> bool) -> bool {
    let mut found = false;
    node.visit(&mut |node| found |= wanted(node));
    found
}

/// Drops what counts groups of bulk stores from loops over items whose stores all go to every rank: those are ordinary accesses,
/// of which no group knows. A place is free once all lanes have read it, and the signal behind the stores releases them.
///
/// A thread that sends boxes counts in one go, over all of its loops, the places that it still holds. So its groups stay where any
/// of its stores is in bulk.
pub(super) fn without_groups(nodes: &mut [Node]) {
    let counts = |node: &Node| has(node, &|node| matches!(node, Node::Release { .. }));
    let stay = nodes.iter().any(counts) && nodes.iter().any(stores_in_bulk);
    if !stay {
        nodes.iter_mut().for_each(of_items);
    }
}

fn of_items(node: &mut Node) {
    let items = matches!(node, Node::Items { .. });
    let Some(body) = node.body_mut() else {
        return;
    };
    match items && stores_everywhere(body) {
        true => drop_groups(body),
        false => body.iter_mut().for_each(of_items),
    }
}

fn drop_groups(list: &mut Vec<Node>) {
    let counts = |node: &Node| {
        matches!(
            node,
            Node::Commit | Node::AwaitRead { .. } | Node::AwaitStores { .. }
        )
    };
    list.retain(|node| !counts(node));
    for node in list {
        if let Node::Release { held, .. } = node {
            *held = 0.into();
        }
        if let Some(body) = node.body_mut() {
            drop_groups(body);
        }
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
