//! Stores that all lanes of a warp make, instead of TMA: to every rank's memory at once, and of parts of tiles.

use crate::warp::{Lanes, Node, Warp};

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

/// Makes the lanes of a warp meet after each fence between the two addresses, if all of them work. Such a fence stands behind
/// waits and before signals, which the first lane makes for all.
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
        matches!(node, Node::Store { .. }) && !node.by_lanes()
    })
}

/// True if all lanes store all that is stored there, and something is.
pub(super) fn stores_by_lanes(nodes: &[Node]) -> bool {
    let stores = |node: &Node| has(node, &|node| matches!(node, Node::Store { .. }));
    nodes.iter().any(stores) && !nodes.iter().any(stores_in_bulk)
}

fn has(node: &Node, wanted: &dyn Fn(&Node) -> bool) -> bool {
    let mut found = false;
    node.visit(&mut |node| found |= wanted(node));
    found
}

/// Drops commits of bulk groups, and waits for them, from loops in which all lanes make every store: ordinary accesses belong to
/// no group. A place is free once all lanes have read it, and the signal behind the stores releases them.
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
    match items && stores_by_lanes(body) {
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
