//! Scales among a kernel's tensors.

use super::Kernel;
use crate::encoding::rule::ScaleRule;
use crate::encoding::{Encoding, ScaleBlock};
use crate::program::{TensorId, Usage};

impl Kernel {
    /// True if a tensor is a scale of an operand, which a product then stands for; that of an output is a number like others.
    ///
    /// ```
    /// use counterflow_codegen::encoding::{ScaleBlock, Scales};
    /// use counterflow_codegen::{dtype::Dtype, lower::lower, program::TensorId, variant::Variant};
    /// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/example.rs")); }
    ///
    /// let (x, y) = (TensorId(0), TensorId(2));
    /// let fp8 = Variant::new(2).dtype(Dtype::E4M3).scales(Scales::Blocks1d2d);
    /// let kernel = lower(&example::ag_gemm(), &fp8)?;
    /// let (scale, block) = kernel.block_scale(x).expect("each block of x has a scale");
    /// assert_eq!(block, ScaleBlock::F32_1X128);
    /// assert!(kernel.scales_an_operand(scale) && !kernel.scales_a_hidden_layer(scale));
    /// // No store computes scales: neither of y, nor by a rule.
    /// assert_eq!((kernel.computed_scale_of(y), kernel.computed_scale_block(y)), (None, None));
    /// assert_eq!((kernel.rule(), kernel.rule_of(scale)), (None, None));
    /// # Ok::<(), counterflow_codegen::diag::Diagnostics>(())
    /// ```
    pub fn scales_an_operand(&self, tensor: TensorId) -> bool {
        let of = self.buffers[tensor.index()].usage.given_scale_of();
        of.is_some_and(|of| self.buffers[of.index()].usage.is_input())
    }

    /// Whether a tensor is the number of a hidden layer: a product that is divided by it is that of the layer's values.
    pub fn scales_a_hidden_layer(&self, tensor: TensorId) -> bool {
        let of = self.buffers[tensor.index()].usage.given_scale_of();
        of.is_some_and(|of| self.buffers[of.index()].is_scratch())
    }

    /// The scale of an operand's blocks, if it has one.
    pub fn block_scale(&self, operand: TensorId) -> Option<(TensorId, ScaleBlock)> {
        let scale = self.beside(|usage| usage.given_scale_of() == Some(operand))?;
        Some((scale, self.buffers[scale.index()].usage.blocks()?))
    }

    /// The plane of scales that stores make of a tensor: of an output, or of partial sums.
    pub fn computed_scale_of(&self, tensor: TensorId) -> Option<TensorId> {
        self.beside(|usage| usage.computed_scale_of() == Some(tensor))
    }

    /// The blocks of a tensor whose scales stores make.
    pub fn computed_scale_block(&self, tensor: TensorId) -> Option<ScaleBlock> {
        let scale = self.computed_scale_of(tensor)?;
        self.buffers[scale.index()].usage.blocks()
    }

    fn beside(&self, wanted: impl Fn(Usage) -> bool) -> Option<TensorId> {
        let at = (self.buffers.iter()).position(|buffer| wanted(buffer.usage))?;
        Some(TensorId(at as u16))
    }

    /// Encoding of a tensor's numbers.
    ///
    /// ```
    /// use counterflow_codegen::encoding::{Along, Encoding, Scales, Scaling};
    /// use counterflow_codegen::{dtype::Dtype, lower::lower, program::TensorId, variant::Variant};
    /// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/example.rs")); }
    ///
    /// let fp8 = Variant::new(2).dtype(Dtype::E4M3).scales(Scales::PerRow);
    /// let kernel = lower(&example::ag_gemm(), &fp8)?;
    /// let (scale, x) = (Some(Scaling::Given(Along::Rows)), kernel.encoding(TensorId(0)));
    /// assert_eq!(x, Encoding { element: Dtype::E4M3, scale, amax: false });
    /// assert_eq!(kernel.quantised_reduction(), None); // nothing is added up on its way
    /// # Ok::<(), counterflow_codegen::diag::Diagnostics>(())
    /// ```
    pub fn encoding(&self, tensor: TensorId) -> Encoding {
        let scale = self.beside(|usage| usage.scales_of() == Some(tensor));
        Encoding {
            element: self.buffers[tensor.index()].dtype,
            scale: scale.and_then(|scale| self.buffers[scale.index()].usage.scaling()),
            amax: self
                .beside(|usage| usage.amax_of() == Some(tensor))
                .is_some(),
        }
    }

    /// True if its tiles are partial sums that travel with scales.
    pub(crate) fn sends_scales_of(&self, tensor: TensorId) -> bool {
        self.buffers[tensor.index()].is_scratch() && self.computed_scale_of(tensor).is_some()
    }

    /// The rule by which stores make the scales of a plane.
    pub fn rule_of(&self, plane: TensorId) -> Option<ScaleRule> {
        self.buffers[plane.index()].usage.rule()
    }

    /// The rule by which stores compute scales, if they do: one for all.
    pub fn rule(&self) -> Option<ScaleRule> {
        (self.buffers.iter()).find_map(|buffer| buffer.usage.rule())
    }

    /// The rule by which partial sums travel in FP8, if they do.
    pub fn quantised_reduction(&self) -> Option<ScaleRule> {
        let mut scratch = self.buffers.iter().filter(|buffer| buffer.is_scratch());
        scratch.find_map(|buffer| buffer.usage.rule())
    }

    /// The tensor whose credits let others access that one: scales are lent, and come back, with their tensor.
    pub(crate) fn lent_with(&self, tensor: TensorId) -> TensorId {
        let usage = self.buffers[tensor.index()].usage;
        let of = usage.scales_of().filter(|_| usage.placement.symmetric);
        of.unwrap_or(tensor)
    }
}
