//! Questions about an op that several readers ask.

use super::{Op, OpKind};
use crate::program::PartitionId;
use crate::value::AccId;

impl OpKind {
    /// Ops that it encloses: the body of a loop, or both branches.
    pub fn bodies(&self) -> [&[Op]; 2] {
        match self {
            OpKind::ForRanks { body, .. } => [body, &[]],
            OpKind::If {
                then, otherwise, ..
            } => [then, otherwise],
            OpKind::Wait { .. }
            | OpKind::Signal { .. }
            | OpKind::Copy { .. }
            | OpKind::Dot { .. }
            | OpKind::Reduce { .. }
            | OpKind::Load { .. }
            | OpKind::Store { .. } => [&[], &[]],
        }
    }

    /// The slabs of K by which it waits, if it does.
    pub fn slabs(&self) -> Option<PartitionId> {
        if let OpKind::Wait { slabs, .. } = self {
            *slabs
        } else {
            None
        }
    }

    /// True if it multiplies, adds up, reads or stores tiles.
    pub fn computes(&self) -> bool {
        self.filled().is_some() || matches!(self, OpKind::Store { .. })
    }

    /// The accumulator that it fills or adds to.
    pub fn filled(&self) -> Option<AccId> {
        match self {
            OpKind::Dot { acc, .. } | OpKind::Reduce { acc, .. } | OpKind::Load { acc, .. } => {
                Some(*acc)
            }
            OpKind::Wait { .. }
            | OpKind::Signal { .. }
            | OpKind::Copy { .. }
            | OpKind::Store { .. }
            | OpKind::ForRanks { .. }
            | OpKind::If { .. } => None,
        }
    }
}
