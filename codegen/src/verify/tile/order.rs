//! How many accesses precede each access of one launch at the tile level. The warp level must agree.
//!
//! Any two accesses of a checked plan to the same memory, one of them a write, are ordered. So the plan alone decides how
//! many accesses precede another one in each element, whoever makes them and however they are divided. The warps do what
//! the plan says only if each of their accesses finds that many.

use super::facts::{Access, At, Facts};
use super::happens::Happens;
use crate::kernel::Kernel;
use crate::plan::Plan;
use crate::program::TensorId;
use crate::shape::Extent;
use std::collections::HashMap;

/// Who accesses which memory, and how.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Accessor {
    /// The rank that does it.
    pub rank: u32,
    /// The index of its role.
    pub role: usize,
    /// Whether it writes, or adds.
    pub write: bool,
    /// The tensor.
    pub tensor: TensorId,
    /// Whose memory.
    pub home: u32,
    /// Which slot.
    pub slot: u32,
}

/// A rectangle of elements that every access covers whole or not at all.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Before {
    /// Its rows among all rows.
    pub rows: Extent,
    /// Its columns.
    pub columns: Extent,
    /// How many conflicting accesses precede the accessor's. If it makes several: before its first and before its last.
    pub accesses: (u32, u32),
}

/// What precedes each access of one launch of a plan without races.
pub(crate) fn before(kernel: &Kernel, plan: &Plan) -> HashMap<Accessor, Vec<Before>> {
    let facts = Facts::new(kernel, plan);
    let mut happens = Happens::new(&facts);
    let mut all: HashMap<Accessor, Vec<Before>> = HashMap::new();
    for area in facts.areas() {
        for block in facts.blocks_of(area) {
            let touches = facts.touches(block);
            let (rows, columns) = facts.rectangle(area, block);
            let mut here: HashMap<Accessor, (u32, u32)> = HashMap::new();
            for touch in touches {
                let conflicts = touches
                    .iter()
                    .filter(|other| other.at != touch.at && other.access.conflicts(touch.access));
                let is_before = |other: At| u32::from(happens.before(other, touch.at));
                let count: u32 = conflicts.map(|other| other.at).map(is_before).sum();
                let accessor = Accessor {
                    rank: facts.rank(touch.at.agent),
                    role: facts.role(touch.at.agent),
                    write: touch.access != Access::Read,
                    tensor: TensorId(area.buffer),
                    home: area.home.into(),
                    slot: area.slot.into(),
                };
                let (least, most) = here.entry(accessor).or_insert((count, count));
                (*least, *most) = (count.min(*least), count.max(*most));
            }
            for (accessor, accesses) in here {
                all.entry(accessor).or_default().push(Before {
                    rows,
                    columns,
                    accesses,
                });
            }
        }
    }
    all
}
