//! Attention on a rank.
#![allow(unsafe_code)]

use super::launch::Kernels;
use super::twin::{self, AttentionShape, Mask};
use counterflow::op::Running;
use counterflow::prelude::bf16;
use counterflow::{Communicator, Error, Tensor};
use std::sync::Arc;

/// The kernels of attention: CUDA.
pub fn attention_text() -> String {
    "#include \"attention.cuh\"\n".into()
}

/// Attention on a rank with an online softmax, right first: each head of each row is one warp's. Give [`CoreAttention`] kernels of
/// your own where speed counts.
///
/// [`CoreAttention`]: crate::CoreAttention
///
/// ```
/// use counterflow::{Communicator, prelude::bf16};
/// use counterflow_layers::side::{AttentionKernels, twin::AttentionShape};
/// use std::sync::Arc;
///
/// let rank = Arc::new(Communicator::emulated(1)?.remove(0));
/// let attention = AttentionKernels::load(&rank)?;
/// let shape = AttentionShape { positions: 3, batch: 2, heads: 2, groups: 1, depth: 8, causal: true, scale: 0.35 };
/// let qkv = rank.zeros::<bf16>([shape.rows(), shape.columns()])?;
/// let (mut out, mut logs) = (rank.zeros::<bf16>([6, 16])?, rank.zeros::<f32>([6, 2])?);
/// attention.forward(&shape, &qkv, None, &mut out, &mut logs)?;
/// let mut dqkv = rank.zeros::<bf16>(qkv.shape())?;
/// attention.backward(&shape, &qkv, None, [&out, &out], &logs, &mut dqkv)?;
/// # Ok::<(), counterflow::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct AttentionKernels(Kernels);

/// Lanes that have a row of a head.
const LANES: usize = 32;

fn check(of: &AttentionShape) -> Result<(), Error> {
    let AttentionShape {
        heads,
        groups,
        depth,
        ..
    } = *of;
    let divides = groups > 0 && heads > 0 && heads.is_multiple_of(groups);
    if divides && (1..=256).contains(&depth) && of.columns().is_multiple_of(8) {
        return Ok(());
    }
    Err(Error::Usage {
        what: format!("attention of {heads} heads, {groups} of keys and values, of {depth} numbers"),
        legal: "give heads that are a multiple of those of keys, of 256 numbers at most, and rows of whole 16 bytes".into(),
    })
}

impl AttentionKernels {
    /// Compiles and loads them.
    ///
    /// # Errors
    /// [`Error::Toolkit`] without a compiler; what the driver refuses.
    pub fn load(rank: &Arc<Communicator>) -> Result<AttentionKernels, Error> {
        let names = ["attention_forward", "attention_queries", "attention_keys"];
        Kernels::load(rank, &attention_text(), &names).map(AttentionKernels)
    }

    /// The output of every head, and for the backward pass a number for each row and head. A mask drops probabilities: its elements are
    /// those of batch, heads, queries and keys, of which the last varies fastest.
    ///
    /// # Errors
    /// [`Error::Usage`] for sizes that cannot be, and what [`Step::launch`](counterflow::op::Step::launch) refuses.
    pub fn forward(
        &self,
        of: &AttentionShape,
        qkv: &Tensor<bf16>,
        mask: Option<&Mask>,
        out: &mut Tensor<bf16>,
        logs: &mut Tensor<f32>,
    ) -> Result<(), Error> {
        check(of)?;
        let [inputs, outputs, each] = sizes(of);
        let call = self.0.call("attention_forward");
        let call = call.read::<bf16>("qkv", inputs, qkv);
        let call = call.written::<bf16>("the output", outputs, out);
        let call = call.written::<f32>("logs", each, logs);
        let call = call.bytes(&bytes(of)).bytes(&drop_bytes(mask));
        let twin = |running: &Running<'_>| {
            let qkv: Vec<bf16> = running.read(0, inputs)?;
            let (mut out, mut logs) = (vec![bf16::ZERO; outputs], vec![0f32; each]);
            twin::attention(of, &qkv, mask, &mut out, &mut logs);
            running.write(1, &out)?;
            running.write(2, &logs)
        };
        // SAFETY: a warp for each head of each row; the parameters are the kernel's.
        unsafe { call.launch(each * LANES, twin).map(drop) }
    }

    /// The gradients of queries, keys and values, of the output and its gradient.
    ///
    /// # Errors
    /// As [`AttentionKernels::forward`].
    pub fn backward(
        &self,
        of: &AttentionShape,
        qkv: &Tensor<bf16>,
        mask: Option<&Mask>,
        [out, dout]: [&Tensor<bf16>; 2],
        logs: &Tensor<f32>,
        dqkv: &mut Tensor<bf16>,
    ) -> Result<(), Error> {
        check(of)?;
        let [inputs, outputs, each] = sizes(of);
        if each == 0 {
            return Ok(());
        }
        let mut deltas = self.0.lend([1, each])?;
        let call = self.0.call("attention_queries");
        let call = call.read::<bf16>("qkv", inputs, qkv);
        let call = call.read::<bf16>("the output", outputs, out);
        let call = call.read::<bf16>("its gradient", outputs, dout);
        let call = call.read::<f32>("logs", each, logs);
        let call = call.written::<f32>("deltas", each, &mut *deltas);
        let call = call.written::<bf16>("the gradient of qkv", inputs, &mut *dqkv);
        let call = call.bytes(&bytes(of)).bytes(&drop_bytes(mask));
        let twin = |running: &Running<'_>| {
            let qkv: Vec<bf16> = running.read(0, inputs)?;
            let out: Vec<bf16> = running.read(1, outputs)?;
            let dout: Vec<bf16> = running.read(2, outputs)?;
            let logs: Vec<f32> = running.read(3, each)?;
            let mut dqkv = vec![bf16::ZERO; inputs];
            twin::attention_backward(of, &qkv, mask, [&out, &dout], &logs, &mut dqkv);
            running.write(5, &dqkv)
        };
        // SAFETY: as in `forward`.
        unsafe { call.launch(each * LANES, twin)? };

        let call = self.0.call("attention_keys");
        let call = call.read::<bf16>("qkv", inputs, qkv);
        let call = call.read::<bf16>("its gradient", outputs, dout);
        let call = call.read::<f32>("logs", each, logs);
        let call = call.read::<f32>("deltas", each, &*deltas);
        let call = call.written::<bf16>("the gradient of qkv", inputs, dqkv);
        let call = call.bytes(&bytes(of)).bytes(&drop_bytes(mask));
        let threads = of.rows() * of.groups * LANES;
        // The twin has done both.
        // SAFETY: as in `forward`.
        unsafe { call.launch(threads, |_| Ok(())).map(drop) }
    }
}

/// Elements of queries, keys and values; of the output; rows and heads.
fn sizes(of: &AttentionShape) -> [usize; 3] {
    let rows = of.rows();
    [rows * of.columns(), rows * of.outputs(), rows * of.heads]
}

/// The sizes as the kernels have them.
fn bytes(of: &AttentionShape) -> Vec<u8> {
    let numbers = [of.positions, of.batch, of.heads, of.groups, of.depth];
    let numbers = numbers.map(|number| u32::try_from(number).unwrap_or(u32::MAX).to_le_bytes());
    let rest = [u32::from(of.causal).to_le_bytes(), of.scale.to_le_bytes()];
    [numbers.as_flattened(), rest.as_flattened()].concat()
}

/// A mask as the kernels have it, padded to the size of their struct.
fn drop_bytes(mask: Option<&Mask>) -> Vec<u8> {
    let wide = mask.map_or([0; 2], |mask| [mask.seed, mask.offset]);
    let below = mask.map_or(0, |mask| mask.below);
    let kept = mask.map_or(1.0, Mask::scale);
    let narrow = [below, u32::from(mask.is_some()), kept.to_bits(), 0].map(u32::to_le_bytes);
    let wide = wide.map(u64::to_le_bytes);
    [wide.as_flattened(), narrow.as_flattened()].concat()
}
