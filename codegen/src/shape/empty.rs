//! Launches of no rows, which have nothing to do, and products of depth 0, whose sums are 0.

use super::{Geometry, Shape};
use crate::kernel::{Buffer, DimId, Kernel, OpKind, Partition, visit};

impl Geometry {
    /// True if a buffer has no elements, on any rank: an operand of a product of depth 0, or the scales of its blocks.
    pub(crate) fn is_empty(&self, buffer: &Buffer) -> bool {
        let mut sides = [buffer.rows, buffer.columns].into_iter();
        sides.any(|dim| self.size(dim) == 0)
    }
}

impl Shape {
    /// The first output, or tensor that ranks gather, that has something in a launch of no rows: `m` of this shape is 0.
    pub fn beside_rows<'k>(&self, kernel: &'k Kernel) -> Option<&'k str> {
        let none = |dim: DimId| self.size(&kernel.dims[usize::from(dim.0)]) == 0;
        let has_more = |buffer: &&Buffer| {
            let gathered = buffer.usage.is_gathered() && buffer.usage.plane.is_none();
            let read = buffer.usage.is_input() && !gathered;
            // An amax is of an output that has them.
            let beside = buffer.is_scratch() || read || buffer.usage.is_number();
            !(beside || none(buffer.rows) || none(buffer.columns))
        };
        let found = kernel.buffers.iter().find(has_more);
        found.map(|buffer| &buffer.name[..])
    }
}

impl Kernel {
    /// True if products multiply along that size, or it counts the blocks of one along which they do.
    pub(crate) fn is_depth(&self, dim: DimId) -> bool {
        let dim = self.counted_by(dim);
        let mut found = false;
        for role in &self.roles {
            visit(&role.body, &mut |op| {
                if let OpKind::Dot { a, .. } = &op.kind {
                    found |= self.buffers[a.buffer.index()].columns == dim;
                }
            });
        }
        found
    }

    /// True if a launch may have 0 of that size: products are along it, no item is a part of it, and all that is along it each
    /// rank is given by itself. What is moved or stored would be along it at its other end.
    pub(crate) fn may_be_empty(&self, dim: DimId) -> bool {
        let of = self.counted_by(dim);
        let given = |buffer: &Buffer| buffer.usage.is_input() && !buffer.usage.placement.symmetric;
        let along = |buffer: &&Buffer| {
            let mut sides = [buffer.rows, buffer.columns].into_iter();
            sides.any(|side| self.counted_by(side) == of)
        };
        let divides = |partition: &Partition| [partition.rows, partition.columns].contains(&of);
        self.is_depth(of)
            && !self.partitions.iter().any(divides)
            && self.buffers.iter().filter(along).all(given)
    }
}
