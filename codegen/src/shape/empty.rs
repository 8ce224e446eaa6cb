//! Launches of no rows, which have nothing to do, and products of depth 0, whose sums are 0.

use super::{Geometry, Shape};
use crate::kernel::{Buffer, DimId, Kernel, OpKind, visit};
use crate::program::{Side, TensorKind};

impl Geometry {
    /// Whether a buffer has no elements, on any rank: an operand of a product of depth 0, or the scales of its blocks.
    pub fn is_empty(&self, buffer: &Buffer) -> bool {
        [buffer.rows, buffer.columns]
            .iter()
            .any(|dim| self.size(*dim) == 0)
    }
}

impl Shape {
    /// The first output, or tensor that ranks gather, that has something in a launch of no rows.
    pub fn beside_rows<'k>(&self, kernel: &'k Kernel) -> Option<&'k str> {
        let none = |dim: DimId| self.size(&kernel.dims[usize::from(dim.0)]) == 0;
        let has_more = |buffer: &&Buffer| {
            let gathered = buffer.kind == TensorKind::Gathered;
            let read = buffer.kind.is_input() && !gathered;
            // An amax is of an output that has them.
            let beside = buffer.is_scratch() || read || buffer.kind.is_number();
            !(beside || none(buffer.rows) || none(buffer.columns))
        };
        let found = kernel.buffers.iter().find(has_more);
        found.map(|buffer| &buffer.name[..])
    }
}

impl Kernel {
    /// Whether products multiply along that size, or it counts the blocks of one along which they do.
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

    /// Whether a launch may have 0 of that size: nothing but products is along it, no item is a part of it, and each rank has
    /// all of it by itself.
    pub(crate) fn may_be_empty(&self, dim: DimId) -> bool {
        let of = self.counted_by(dim);
        let along = |dims: [DimId; 2]| dims.contains(&dim) || dims.contains(&of);
        let divided = |side: Side| {
            let mut all = self.partitions.iter();
            all.any(|partition| partition.dim(side) == of)
        };
        let mut shared = self.buffers.iter().filter(|it| it.kind.symmetric());
        self.is_depth(of)
            && !Side::ALL.into_iter().any(divided)
            && !shared.any(|buffer| along([buffer.rows, buffer.columns]))
    }

    /// The size whose blocks it counts, or itself.
    fn counted_by(&self, dim: DimId) -> DimId {
        let Some(of) = &self.dims[usize::from(dim.0)].blocks else {
            return dim;
        };
        let named = self.dims.iter().position(|dim| dim.name == *of);
        named.map_or(dim, |at| DimId(at as u16))
    }
}
