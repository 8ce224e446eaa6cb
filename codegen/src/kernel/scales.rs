//! Scales among a kernel's tensors.

use super::Kernel;
use crate::block::{BLOCK, ScaleBlock};
use crate::program::{Side, TensorId, TensorKind};
use crate::shape::Extent;
use crate::unroll::Span;

impl Kernel {
    /// Whether a tensor is a scale of an operand, which a product then stands for; that of an output is a number like others.
    pub(crate) fn scales_an_operand(&self, tensor: TensorId) -> bool {
        let kind = self.buffers[tensor.index()].kind;
        matches!(kind, TensorKind::Scale { of, .. } if self.buffers[of.index()].kind.is_input())
    }

    /// The scale of an operand's blocks, if it has one.
    pub(crate) fn block_scale(&self, operand: TensorId) -> Option<(TensorId, ScaleBlock)> {
        let is = |kind: TensorKind| matches!(kind, TensorKind::Scale { of, .. } if of == operand);
        let mut buffers = self.buffers.iter().zip(0..);
        let (buffer, at) = buffers.find(|(buffer, _)| is(buffer.kind))?;
        Some((TensorId(at), buffer.kind.blocks()?))
    }

    /// What a product reads of the scales of an operand's blocks, if they travel: nobody writes others.
    pub(crate) fn scales_read(&self, operand: &Span) -> Option<Span> {
        let (scale, block) = self.block_scale(operand.buffer)?;
        let kind = self.buffers[scale.index()].kind;
        let read = || span_of((scale, kind), block, (operand.rows, operand.columns.len()));
        kind.is_gathered().then(read).map(|span| Span {
            home: operand.home,
            ..span
        })
    }

    /// What chunks of rows are whole multiples of because of scales of blocks; 1 where there are none that ranks divide.
    pub(crate) fn chunk_of_scales(&self) -> u32 {
        let units = self.buffers.iter().filter_map(|buffer| {
            let TensorKind::Scale { of, .. } = buffer.kind else {
                return None;
            };
            let divided = self.is_chunked(self.buffers[of.index()].rows);
            let block = buffer.kind.blocks().filter(|_| divided)?;
            Some(block.chunk_unit())
        });
        units.max().unwrap_or(1)
    }

    /// The tensor whose credits let others access that one: scales are lent, and come back, with their tensor.
    pub(crate) fn lent_with(&self, tensor: TensorId) -> TensorId {
        if let TensorKind::Scale {
            of, gathered: true, ..
        } = self.buffers[tensor.index()].kind
        {
            of
        } else {
            tensor
        }
    }
}

/// What a scale of blocks has of so many rows and so much of K of its operand, in this rank's memory.
pub(crate) fn span_of(
    (scale, kind): (TensorId, TensorKind),
    block: ScaleBlock,
    (rows, depth): (Extent, u32),
) -> Span {
    let steps = Extent {
        start: 0,
        end: depth.div_ceil(BLOCK),
    };
    let rows = rows.in_blocks(block.rows());
    let (rows, columns) = match kind.operand_rows() {
        Some(Side::Columns) => (steps, rows),
        Some(Side::Rows) | None => (rows, steps),
    };
    Span {
        buffer: scale,
        home: 0,
        slot: 0,
        rows,
        columns,
    }
}
