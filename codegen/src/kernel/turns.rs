//! In which order an item waits, loads and signals: statement by statement, as the warps of a CTA do it.
//!
//! The tile level unrolls an item in this order, and the kernel follows it. A kernel may load later, or signal later where
//! no wait follows. It never loads before a wait that stands before the load here, and never signals before what stands
//! before the signal. A sum that is made a subtile at a time, as one with this rank's own term is, loads later: all of its
//! slots are waited for before the first is loaded. Which sums are made so is the kernel's choice, and no schedule may build
//! on it.

use super::{Kernel, Op, OpKind, Region};
use crate::program::{CellIndex, CounterDim, Home, PartitionId, Pick};

/// Ops of an item that take their turn together.
pub(crate) enum Turn<'a> {
    /// An op by itself.
    One(&'a Op),
    /// A sum over slots, with the waits for the cells of these slots: each slot is waited for, then added, before the next
    /// slot is waited for.
    Slots {
        /// The waits that stand directly before the sum.
        waits: &'a [Op],
        /// The sum.
        sum: &'a Op,
        /// Slots that are loaded.
        slots: &'a Pick,
        /// True if this rank's own term is added in this rank's turn, which waits for nothing.
        own: bool,
    },
    /// Products, with the waits for the slabs of K that they read: each slab is waited for, then multiplied, before the next
    /// slab is waited for.
    Slabs {
        /// The waits that stand directly before the products.
        waits: &'a [Op],
        /// The products.
        dots: &'a [Op],
        /// Partition whose columns are the slabs.
        of: PartitionId,
    },
}

impl Kernel {
    /// The ops of an item, or of a loop or branch in it, in the order in which they take their turns.
    pub(crate) fn turns<'a>(&self, body: &'a [Op]) -> Vec<Turn<'a>> {
        let mut turns = Vec::with_capacity(body.len());
        let mut next = 0;
        while let Some(op) = body.get(next) {
            let index = next;
            if let Some((waits, dots, of)) = self.by_slab(&body[index..]) {
                next += waits.len() + dots.len();
                turns.push(Turn::Slabs { waits, dots, of });
                continue;
            }
            next += 1;
            let Some((slots, own)) = self.sums_slots(op) else {
                turns.push(Turn::One(op));
                continue;
            };
            let before = body[..index].iter().rev();
            let waits = before
                .take_while(|op| self.waits_for_each(op, slots))
                .count();
            turns.truncate(turns.len() - waits);
            turns.push(Turn::Slots {
                waits: &body[index - waits..index],
                sum: op,
                slots,
                own,
            });
        }
        turns
    }

    /// The waits and products that take turns slab by slab, if ops begin with some.
    fn by_slab<'a>(&self, body: &'a [Op]) -> Option<(&'a [Op], &'a [Op], PartitionId)> {
        let of = body.first()?.kind.slabs()?;
        let waits = body.iter().take_while(|op| op.kind.slabs().is_some());
        let count = waits.count();
        let (waits, behind) = body.split_at(count);
        let k = self.partitions[of.index()].columns;
        let multiplies = |op: &&Op| matches!(&op.kind, OpKind::Dot { a, .. } if self.buffers[a.buffer.index()].columns == k);
        let dots = &behind[..behind.iter().take_while(multiplies).count()];
        (!dots.is_empty()).then_some((waits, dots, of))
    }

    /// True if two partitions have the same slabs of columns.
    pub(crate) fn same_slabs(&self, one: PartitionId, other: PartitionId) -> bool {
        let slabs = |id: PartitionId| {
            let partition = &self.partitions[id.index()];
            (partition.columns, partition.column_block)
        };
        slabs(one) == slabs(other)
    }

    /// The slots that an op sums, if it sums a slot of each rank, and whether it adds this rank's own term among them.
    fn sums_slots<'a>(&self, op: &'a Op) -> Option<(&'a Pick, bool)> {
        let OpKind::Reduce { from, own, .. } = &op.kind else {
            return None;
        };
        let Region { home, slot, .. } = from;
        let each = self.buffers[from.buffer.index()].has_slot_for_each_rank();
        match slot {
            Some(slots @ (Pick::Others | Pick::All)) if each && *home != Home::Everywhere => {
                Some((slots, own.is_some()))
            }
            Some(Pick::Others | Pick::All | Pick::One(_)) | None => None,
        }
    }

    /// True if an op waits for the cells of each of these ranks, one rank after another.
    fn waits_for_each(&self, op: &Op, ranks: &Pick) -> bool {
        let OpKind::Wait { cells, .. } = &op.kind else {
            return false;
        };
        let dims = &self.counters[cells.counter.index()].dims;
        let axes = cells.index.iter().zip(dims);
        let mut by_rank =
            axes.filter(|(index, _)| matches!(index, CellIndex::Rank(pick) if pick == ranks));
        let only = (by_rank.next(), by_rank.next());
        matches!(only, (Some((_, CounterDim::World)), None))
    }
}
