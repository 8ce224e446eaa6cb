//! Scales among a kernel's tensors.

use super::Kernel;
use crate::block::ScaleBlock;
use crate::program::{TensorId, TensorKind};
use crate::rule::Rule;

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

    /// The plane of scales that stores make of a tensor: of an output, or of partial sums.
    pub(crate) fn made_of(&self, tensor: TensorId) -> Option<TensorId> {
        let made = |kind: TensorKind| !kind.is_scale() && kind.plane_of() == Some(tensor);
        let mut buffers = self.buffers.iter().zip(0..);
        let (_, at) = buffers.find(|(buffer, _)| made(buffer.kind))?;
        Some(TensorId(at))
    }

    /// Whether its tiles are partial sums that travel with scales.
    pub(crate) fn sends_scales_of(&self, tensor: TensorId) -> bool {
        self.buffers[tensor.index()].is_scratch() && self.made_of(tensor).is_some()
    }

    /// The rule by which stores make the scales of a plane.
    pub(crate) fn rule_of(&self, plane: TensorId) -> Option<Rule> {
        self.variant.rule_of(self.buffers[plane.index()].kind)
    }

    /// The tensor whose credits let others access that one: scales are lent, and come back, with their tensor.
    pub(crate) fn lent_with(&self, tensor: TensorId) -> TensorId {
        if let TensorKind::Scale {
            of, gathered: true, ..
        }
        | TensorKind::Scratch {
            scales_of: Some(of),
            ..
        } = self.buffers[tensor.index()].kind
        {
            of
        } else {
            tensor
        }
    }
}
