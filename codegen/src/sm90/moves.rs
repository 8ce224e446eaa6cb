//! The copies of an item of a role that moves data, each with what announces it.

use super::everywhere::goes_everywhere;
use super::leaves::{Around, Leaf, moved_blocks, moves_boxes, moves_scales};
use super::walk::Walk;
use crate::kernel::OpKind;

/// Part of an item that is announced together.
#[derive(Default)]
pub(super) struct Move<'l, 'a> {
    /// The copy of elements; `None`: scales alone.
    pub copy: Option<&'l Leaf<'a>>,
    /// The copies of scales of blocks, which boxes make too.
    pub blocks: Vec<&'l Leaf<'a>>,
    /// The copies of scales of rows.
    pub scales: Vec<&'l Leaf<'a>>,
    /// The signals after it, with what is around them alone.
    pub signals: Vec<Leaf<'a>>,
}

impl<'l, 'a> Move<'l, 'a> {
    /// The copies that boxes make.
    pub fn boxes(&self) -> impl Iterator<Item = &'l Leaf<'a>> {
        self.copy.into_iter().chain(self.blocks.iter().copied())
    }
}

/// The copies of an item.
pub(super) struct Moves<'l, 'a> {
    /// The loops over ranks and branches around all of them.
    pub around: Vec<Around>,
    pub all: Vec<Move<'l, 'a>>,
}

impl<'a> Moves<'_, 'a> {
    /// True if a batch may be announced after the next one was sent. Stores to every rank are not waited for: they are announced
    /// at once.
    pub fn may_lag(&self, walk: &Walk<'_, '_>) -> bool {
        let [one] = self.all.as_slice() else {
            return false;
        };
        let plain = |leaf: &Leaf<'_>| {
            leaf.around.is_empty()
                && matches!(&leaf.op.kind, OpKind::Signal { cells, amount: 1 } if walk.one_cell(cells))
        };
        let signals = one.signals.as_slice();
        let in_bulk = one.copy.is_some_and(|copy| !goes_everywhere(copy));
        in_bulk && self.around.is_empty() && matches!(signals, [signal] if plain(signal))
    }

    /// Waits before the loops around the copies, and those within.
    pub fn divided(&self, waits: Vec<Leaf<'a>>) -> (Vec<Leaf<'a>>, Vec<Leaf<'a>>) {
        let within = |leaf: &Leaf<'_>| leaf.around.starts_with(&self.around);
        let (within, before): (Vec<_>, Vec<_>) = match self.around.is_empty() {
            true => (Vec::new(), waits),
            false => waits.into_iter().partition(within),
        };
        let inner = within.into_iter().map(|leaf| Leaf {
            around: leaf.around[self.around.len()..].to_vec(),
            ..leaf
        });
        (before, inner.collect())
    }
}

impl Walk<'_, '_> {
    /// The copies of an item, each with the signals after it. Batches are signalled after their boxes, and fetched after all
    /// waits: one thread does an item that says otherwise, all of it in order.
    pub(super) fn moves<'l, 'a>(&mut self, leaves: &'l [Leaf<'a>]) -> Option<Moves<'l, 'a>> {
        let kernel = self.b.kernel;
        let is_box = |leaf: &&Leaf<'_>| moves_boxes(kernel, leaf.op);
        let around = leaves.iter().find(is_box)?.around.clone();
        let mut all: Vec<Move<'l, 'a>> = Vec::new();
        for leaf in leaves {
            match (&leaf.op.kind, all.last_mut()) {
                (OpKind::Copy { .. }, last) => {
                    // Scales go with the boxes that are announced with them.
                    let scales = moves_scales(kernel, leaf.op);
                    let blocks = moved_blocks(kernel, leaf.op).is_some();
                    let open = last.filter(|last| {
                        last.signals.is_empty() && (scales || blocks || last.copy.is_none())
                    });
                    let last = match open {
                        Some(last) => last,
                        None => {
                            all.push(Move::default());
                            all.last_mut()?
                        }
                    };
                    match (scales, blocks) {
                        (true, _) => last.scales.push(leaf),
                        (false, true) => last.blocks.push(leaf),
                        (false, false) => last.copy = Some(leaf),
                    }
                }
                (OpKind::Signal { .. }, Some(last)) => last.signals.push(Leaf {
                    around: leaf.around[around.len()..].to_vec(),
                    op: leaf.op,
                    slot_by_slot: leaf.slot_by_slot,
                    slab_by_slab: false,
                }),
                // Nothing else is in an item of a role that moves data, nor more than waits before its copies.
                (
                    OpKind::Signal { .. }
                    | OpKind::Wait { .. }
                    | OpKind::Dot { .. }
                    | OpKind::Reduce { .. }
                    | OpKind::Load { .. }
                    | OpKind::Store { .. }
                    | OpKind::ForRanks { .. }
                    | OpKind::If { .. },
                    _,
                ) => {}
            }
        }
        Some(Moves { around, all })
    }
}
