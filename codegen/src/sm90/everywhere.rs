//! Memory of every rank at once: what stands around its accesses. All lanes of a warp make them, by `multimem` instructions,
//! which are ordinary accesses at an address of their own.
//!
//! So a fence between the two addresses of the memory stands after every wait that guards such an access, and before every signal
//! that announces one; whoever reads or writes the memory at a rank's own address needs nothing more than otherwise.

use super::leaves::Leaf;
use crate::kernel::{Op, OpKind, visit_ops};
use crate::program::Home;
use crate::warp::{Lanes, Node, Warp};

/// Whether a copy or a store goes to every rank's memory.
pub(super) fn goes_everywhere(leaf: &Leaf<'_>) -> bool {
    is_everywhere(leaf.op) && !matches!(leaf.op.kind, OpKind::Reduce { .. })
}

/// Whether an item accesses every rank's memory at once.
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
