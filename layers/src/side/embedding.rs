//! An embedding on a rank.
#![allow(unsafe_code)]

use super::launch::{Kernels, THREADS};
use super::norm::eights;
use super::twin;
use counterflow::op::{Argument, Running};
use counterflow::prelude::bf16;
use counterflow::{Communicator, Error, Tensor};
use std::ops::Range;
use std::sync::Arc;

/// The kernels of an embedding: CUDA.
pub fn embedding_text() -> String {
    "#include \"embedding.cuh\"\n".into()
}

/// Rows of an embedding of which a rank has some, and their gradient.
///
/// ```
/// use counterflow::{Communicator, prelude::bf16};
/// use counterflow_layers::side::EmbeddingKernels;
/// use std::sync::Arc;
///
/// let rank = Arc::new(Communicator::emulated(1)?.remove(0));
/// let embedding = EmbeddingKernels::load(&rank)?;
/// let (ids, weights, mut y) = (rank.zeros::<u32>([2])?, rank.zeros::<bf16>([4, 8])?, rank.zeros::<bf16>([2, 8])?);
/// weights.write(&[bf16::ONE; 32])?;
/// embedding.forward(&ids, &weights, 0..4, 4, &mut y)?;
/// let mut gradient = rank.zeros::<f32>([4, 8])?;
/// embedding.backward(&ids, &y, 0..4, &mut gradient)?;
/// assert_eq!(gradient.read()?[0], 2.0); // both rows have the first id
/// # Ok::<(), counterflow::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct EmbeddingKernels(Kernels);

impl EmbeddingKernels {
    /// Compiles and loads them.
    ///
    /// # Errors
    /// [`Error::Toolkit`] without a compiler; what the driver refuses.
    pub fn load(rank: &Arc<Communicator>) -> Result<EmbeddingKernels, Error> {
        let names = ["embedding", "embedding_backward"];
        Kernels::load(rank, &embedding_text(), &names).map(EmbeddingKernels)
    }

    /// y, a row for each id. The weights have the ids `own` of so many: [`twin::embedding`].
    ///
    /// # Errors
    /// [`Error::Usage`] for columns that are no multiple of 8, and what [`Step::launch`](counterflow::op::Step::launch) refuses.
    pub fn forward(
        &self,
        ids: &Tensor<u32>,
        weights: &Tensor<bf16>,
        own: Range<usize>,
        vocabulary: usize,
        y: &mut Tensor<bf16>,
    ) -> Result<(), Error> {
        let [rows, columns] = y.shape();
        eights(columns)?;
        let call = self.0.call("embedding");
        let call = call.read::<u32>("ids", rows, ids);
        let call = call.read::<bf16>("weights", own.len() * columns, weights);
        let call = call.written::<bf16>("y", rows * columns, y);
        let call = call.number(rows * columns / 8).number(columns / 8);
        let call = call.number(own.start).number(own.len());
        let call = call.number(vocabulary);
        let twin = |running: &Running<'_>| {
            let ids: Vec<u32> = running.read(0, rows)?;
            let weights: Vec<bf16> = running.read(1, own.len() * columns)?;
            let mut y = vec![bf16::ZERO; rows * columns];
            twin::embedding(&ids, &weights, own.clone(), vocabulary, &mut y);
            running.write(2, &y)
        };
        // SAFETY: a thread for each eight of the output, which reads rows that the weights have; the parameters are the kernel's.
        unsafe { call.launch(rows * columns / 8, twin).map(drop) }
    }

    /// Adds the rows of the output's gradient to those of their ids.
    ///
    /// # Errors
    /// As [`EmbeddingKernels::forward`].
    pub fn backward<'a>(
        &'a self,
        ids: &'a Tensor<u32>,
        dy: impl Into<Argument<'a>>,
        own: Range<usize>,
        gradient: &'a mut Tensor<f32>,
    ) -> Result<(), Error> {
        let (rows, [_, columns]) = (ids.len(), gradient.shape());
        eights(columns)?;
        let (inputs, outputs) = (rows * columns, own.len() * columns);
        let call = self.0.call("embedding_backward");
        let call = call.read::<u32>("ids", rows, ids);
        let call = call.read::<bf16>("dy", inputs, dy);
        let call = call.written::<f32>("the gradient", outputs, gradient);
        let call = call.number(rows).number(columns / 8).number(own.start);
        let count = own.len();
        let twin = |running: &Running<'_>| {
            let ids: Vec<u32> = running.read(0, rows)?;
            let dy: Vec<bf16> = running.read(1, inputs)?;
            let mut gradient: Vec<f32> = running.read(2, outputs)?;
            twin::embedding_backward(&ids, &dy, own, &mut gradient);
            running.write(2, &gradient)
        };
        // SAFETY: a CTA for each row of the gradient, which stays inside of it.
        unsafe { call.launch(count * THREADS, twin).map(drop) }
    }
}
