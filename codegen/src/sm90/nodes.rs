//! Nodes that several roles are made of.

use super::rings::STAGES;
use super::walk::Walk;
use crate::kernel::Region;
use crate::program::Var;
use crate::warp::{Expr, Node, Note, Phase, RingId, Slot, Unroll};

/// A note that no statement of the schedule asks for.
pub(super) fn why(words: &str) -> Node {
    Node::Note(Note {
        words: words.into(),
        loc: None,
    })
}

impl Walk<'_, '_> {
    /// Past the other consumer's next tile.
    pub(super) fn skip(&self) -> Node {
        Node::Skip {
            ring: STAGES,
            by: self.steps.clone(),
        }
    }

    /// The steps of a tile.
    pub(super) fn each_step(&self, unroll: Unroll, body: Vec<Node>) -> Node {
        count("step", self.steps.clone(), 1.into(), unroll, body)
    }
}

/// Side of an operand: its rows are the tile's rows or the tile's columns.
pub(super) enum Operand {
    Rows,
    Columns,
}

pub(super) fn side(region: &Region) -> Option<(Operand, Var)> {
    use crate::kernel::Axis;
    match region.rows {
        Axis::RowsOf(var) => Some((Operand::Rows, var)),
        Axis::ColumnsOf(var) => Some((Operand::Columns, var)),
        Axis::All => None,
    }
}

/// Releases a slot when its stores have read it.
pub(super) fn read(ring: RingId, slot: Slot) -> [Node; 2] {
    read_but(0, ring, slot)
}

/// The same when all but the latest `pending` groups of stores have.
pub(super) fn read_but(pending: u32, ring: RingId, slot: Slot) -> [Node; 2] {
    [
        Node::AwaitRead {
            pending: pending.into(),
        },
        Node::Arrive {
            barrier: ring.empty(),
            slot,
        },
    ]
}

/// Waits for each slot of a ring, one after the other, to be empty.
pub(super) fn all_empty(ring: RingId, slots: Expr) -> Node {
    let body = vec![
        Node::Await {
            barrier: ring.empty(),
            phase: Phase::PreviousPhase,
        },
        Node::Advance { ring, keep: false },
    ];
    count("i", slots, 1.into(), Unroll::Once, body)
}

pub(super) fn count(var: &str, to: Expr, by: Expr, unroll: Unroll, body: Vec<Node>) -> Node {
    Node::For {
        var: var.into(),
        from: 0.into(),
        to,
        by,
        unroll,
        body,
    }
}
