//! Names of counters' cells. A compiler takes a name once in a block, and an item may wait for several cells of one counter.

use crate::warp::{Expr, Node};
use std::collections::BTreeMap;

/// Suffix of the name of a cell.
pub(super) const CELL: &str = "_cell";

/// Lets each name of a cell stand once in a list, and in each list within it: one that comes again with the same number is left out, and
/// one with another number gets another name. All other names stand once by how they are chosen.
pub(super) fn once_each(nodes: &mut Vec<Node>) {
    let mut known: BTreeMap<String, Expr> = BTreeMap::new();
    let mut called: BTreeMap<String, String> = BTreeMap::new();
    nodes.retain_mut(|node| {
        let Node::Let { name, value } = node else {
            follow(node, &called);
            return true;
        };
        if !name.ends_with(CELL) {
            return true;
        }
        let first = name.clone();
        while known.get(name).is_some_and(|other| other != value) {
            name.push('_');
        }
        called.insert(first, name.clone());
        known.insert(name.clone(), value.clone()).is_none()
    });
    nodes
        .iter_mut()
        .filter_map(Node::body_mut)
        .for_each(once_each);
}

/// Calls cells what they are called now.
fn follow(node: &mut Node, called: &BTreeMap<String, String>) {
    if let Node::CounterWait { cell, .. }
    | Node::CounterAdvance { cell, .. }
    | Node::CounterAdd { cell, .. }
    | Node::Defer { cell, .. } = node
        && let Expr::Var(name) = cell
        && let Some(now) = called.get(name)
    {
        name.clone_from(now);
    }
    let Some(body) = node.body_mut() else {
        return;
    };
    let mut within = called.clone();
    for node in body {
        if let Node::Let { name, .. } = node {
            within.remove(name);
        }
        follow(node, &within);
    }
}
