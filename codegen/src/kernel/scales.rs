//! Scales among a kernel's tensors.

use super::Kernel;
use crate::program::{ScaleBlock, TensorId, TensorKind};

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

    /// The operand whose scales of 1×128 ranks divide with its rows, if there is one.
    pub(crate) fn divides_lines(&self) -> Option<TensorId> {
        let operands = (0..self.buffers.len()).map(|at| TensorId(at as u16));
        let divided = |operand: &TensorId| {
            let line = matches!(self.block_scale(*operand), Some((_, ScaleBlock::Line)));
            line && self.is_chunked(self.buffers[operand.index()].rows)
        };
        operands.into_iter().find(divided)
    }
}

/// TMA begins at multiples of 16 bytes: four numbers of a line.
pub(crate) const LINE_BEGINS: u32 = 4;
