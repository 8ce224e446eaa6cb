//! The attention of the heads that a rank has.

use crate::side::AttentionKernels;
use crate::side::twin::{AttentionShape, Mask};
use counterflow::prelude::bf16;
use counterflow::{Error, Tensor};
use std::fmt;

/// Attention of the heads that a rank has: [`AttentionKernels`], or kernels of the caller's.
///
/// Work is enqueued in the order of the rank's own stream. `qkv` has queries, keys and values side by side, as [`AttentionShape`] says,
/// already turned by their positions. `logs` has a number for each row and head, which `backward` gets again. A mask drops
/// probabilities; refuse it where that is not supported.
///
/// The memory that is written holds anything before: layers lend it to one call after another. Write every element, and do not add to what is
/// there. Debug builds fill it with NaN first, so that it shows.
pub trait CoreAttention: fmt::Debug + Send + Sync {
    /// Writes the output of every head to `out`, and all of `logs`. Both hold anything before.
    ///
    /// # Errors
    /// What it cannot do, and what launches refuse.
    fn forward(
        &self,
        of: &AttentionShape,
        qkv: &Tensor<bf16>,
        mask: Option<&Mask>,
        out: &mut Tensor<bf16>,
        logs: &mut Tensor<f32>,
    ) -> Result<(), Error>;

    /// Writes the gradients of queries, keys and values, of the output and its gradient, to all of `dqkv`. It holds anything before.
    ///
    /// # Errors
    /// As [`CoreAttention::forward`].
    fn backward(
        &self,
        of: &AttentionShape,
        qkv: &Tensor<bf16>,
        mask: Option<&Mask>,
        out_and_gradient: [&Tensor<bf16>; 2],
        logs: &Tensor<f32>,
        dqkv: &mut Tensor<bf16>,
    ) -> Result<(), Error>;
}

impl CoreAttention for AttentionKernels {
    fn forward(
        &self,
        of: &AttentionShape,
        qkv: &Tensor<bf16>,
        mask: Option<&Mask>,
        out: &mut Tensor<bf16>,
        logs: &mut Tensor<f32>,
    ) -> Result<(), Error> {
        self.forward(of, qkv, mask, out, logs)
    }

    fn backward(
        &self,
        of: &AttentionShape,
        qkv: &Tensor<bf16>,
        mask: Option<&Mask>,
        out_and_gradient: [&Tensor<bf16>; 2],
        logs: &Tensor<f32>,
        dqkv: &mut Tensor<bf16>,
    ) -> Result<(), Error> {
        self.backward(of, qkv, mask, out_and_gradient, logs, dqkv)
    }
}
