//! Two branches as one: their common nodes stand once, and the condition is tested where they differ. So a product stands once
//! if two branches store it in two ways, and a warp that does the same in both tests nothing.

use crate::warp::{Node, Test};

/// Runs `then` where a test holds, and `otherwise` where not.
pub(super) fn either(test: &Test, mut then: Vec<Node>, mut otherwise: Vec<Node>) -> Vec<Node> {
    let pairs = then.iter().zip(&otherwise);
    let same = pairs.take_while(|(a, b)| a == b).count();
    let mut nodes: Vec<Node> = then.drain(..same).collect();
    otherwise.drain(..same);
    let pairs = then.iter().rev().zip(otherwise.iter().rev());
    let mut same = pairs.take_while(|(a, b)| a == b).count();
    // What a branch gives a name to, it has for itself.
    if then.iter().chain(&otherwise).any(names) {
        same = 0;
    }
    let after = then.split_off(then.len() - same);
    otherwise.truncate(otherwise.len() - same);
    match (then.first(), otherwise.first()) {
        // Loops that differ in what they do alone are one loop.
        (Some(one), Some(other)) if alike(one, other) => {
            let mut looped = one.clone();
            if let (Some(body), Some(inner)) = (looped.body_mut(), otherwise[0].body_mut()) {
                *body = either(test, std::mem::take(body), std::mem::take(inner));
            }
            nodes.push(looped);
            nodes.extend(either(test, then.split_off(1), otherwise.split_off(1)));
        }
        // What is said of the same in two ways: of a product, by the name of each branch's accumulator.
        _ if same_behind_notes(&then, &otherwise) => {
            nodes.extend([then.remove(0), otherwise.remove(0)]);
            nodes.extend(either(test, then, otherwise));
        }
        // What is only said needs no question.
        _ if then.iter().chain(&otherwise).all(is_note) => {
            nodes.extend(then);
            nodes.extend(otherwise);
        }
        _ => {
            let branches = [(test.clone(), then), (test.clone().negate(), otherwise)];
            let has_work = branches.into_iter().filter(|(_, body)| !body.is_empty());
            nodes.extend(has_work.map(|(test, body)| Node::If { test, body }));
        }
    }
    nodes.extend(after);
    nodes
}

/// True if both begin with a note, and go on alike.
fn same_behind_notes(one: &[Node], other: &[Node]) -> bool {
    let behind = |nodes: &[Node]| match nodes {
        [note, next, ..] if is_note(note) && !is_note(next) => Some(next.clone()),
        _ => None,
    };
    behind(one).is_some_and(|next| behind(other) == Some(next))
}

fn is_note(node: &Node) -> bool {
    matches!(node, Node::Note(_))
}

fn names(node: &Node) -> bool {
    matches!(node, Node::Let { .. } | Node::Accumulators)
}

/// True if two nodes are loops over the same.
fn alike(one: &Node, other: &Node) -> bool {
    let is_loop = matches!(
        one,
        Node::Items { .. } | Node::For { .. } | Node::Ranks { .. } | Node::Others { .. }
    );
    let bare = |node: &Node| {
        let mut node = node.clone();
        if let Some(body) = node.body_mut() {
            body.clear();
        }
        node
    };
    is_loop && bare(one) == bare(other)
}
