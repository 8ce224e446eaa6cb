//! Stages that are filled, and released once they were read.

use super::rings::STAGES;
use crate::warp::{Expr, Node, Phase, Slot};

/// A stage with those loads of so many bytes.
pub(super) fn filled(bytes: Expr, loads: Vec<Node>) -> Vec<Node> {
    [vec![empty()], expected(bytes, loads)].concat()
}

/// Waits until a stage is empty.
pub(super) const fn empty() -> Node {
    Node::Await {
        barrier: STAGES.empty(),
        phase: Phase::PreviousPhase,
    }
}

/// Loads of so many bytes into an empty stage.
pub(super) fn expected(bytes: Expr, loads: Vec<Node>) -> Vec<Node> {
    let mut nodes = vec![Node::Expect {
        barrier: STAGES.full(),
        bytes,
    }];
    nodes.extend(loads);
    nodes.push(Node::Advance {
        ring: STAGES,
        keep: false,
    });
    nodes
}

/// Sums of every rank's copies in an empty stage: all lanes write them by ordinary stores, which no bytes complete. What they
/// read may be written again, at its ranks' own addresses, by whoever knows of the arrival.
pub(super) fn summed(sums: Vec<Node>) -> Vec<Node> {
    let full = [
        Node::FenceAlias,
        Node::Arrive {
            barrier: STAGES.full(),
            slot: Slot::Current,
        },
        Node::Advance {
            ring: STAGES,
            keep: false,
        },
    ];
    sums.into_iter().chain(full).collect()
}

/// Releases a stage that was read. These were ordinary reads; the next write to it is TMA's.
pub(super) const fn released() -> [Node; 4] {
    [
        Node::FenceShared,
        Node::SyncWarp,
        Node::Arrive {
            barrier: STAGES.empty(),
            slot: Slot::Current,
        },
        Node::Advance {
            ring: STAGES,
            keep: false,
        },
    ]
}

/// How a tile of an operand comes into a stage.
pub(super) struct Staged {
    /// Once a tile: how much of it exists.
    pub sizes: Vec<Node>,
    /// How many bytes come.
    pub bytes: Expr,
    /// The loads of a step.
    pub loads: Vec<Node>,
}

/// Loads of a step of some operands.
pub(super) fn loads(staged: &[Staged]) -> Vec<Node> {
    staged.iter().flat_map(|it| it.loads.clone()).collect()
}

/// The smaller of two numbers.
pub(super) fn least(a: Expr, b: Expr) -> Expr {
    Expr::Min(a.into(), b.into())
}
