//! Cross-entropy on a rank.
#![allow(unsafe_code)]

use super::launch::{Kernels, THREADS};
use super::norm::eights;
use super::twin;
use counterflow::op::{Argument, Running};
use counterflow::prelude::bf16;
use counterflow::{Communicator, Error, Tensor};
use std::sync::Arc;

/// Bytes of shared memory of a CTA that reads rows of logits ahead: two rows, or the first 57,344 columns of each.
const SHARED: u32 = 7 << 15;

/// The kernel of cross-entropy: CUDA.
pub fn loss_text() -> String {
    format!("#define SHARED {SHARED}u\n#include \"loss.cuh\"\n")
}

/// Cross-entropy on a rank that has all classes, and the two steps of it on one that has some:
/// [`VocabParallelCrossEntropy`](crate::VocabParallelCrossEntropy) has what is between them.
///
/// ```
/// use counterflow::{Communicator, prelude::bf16};
/// use counterflow_layers::side::LossKernels;
/// use std::sync::Arc;
///
/// let rank = Arc::new(Communicator::emulated(1)?.remove(0));
/// let loss = LossKernels::load(&rank)?;
/// let (logits, targets) = (rank.zeros::<bf16>([2, 8])?, rank.zeros::<u32>([2])?);
/// let (mut losses, mut gradient) = (rank.zeros::<f32>([2])?, rank.zeros::<bf16>([2, 8])?);
/// loss.cross_entropy(&logits, &targets, 0.5, &mut losses, &mut gradient)?; // of the mean of two rows
/// assert!(losses.read()?.iter().all(|loss| (loss - 8f32.ln()).abs() < 1e-6));
/// # Ok::<(), counterflow::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct LossKernels(Kernels);

impl LossKernels {
    /// Compiles and loads them.
    ///
    /// # Errors
    /// [`Error::Toolkit`] without a compiler; what the driver refuses.
    pub fn load(rank: &Arc<Communicator>) -> Result<LossKernels, Error> {
        let names = [
            ("cross_entropy", SHARED),
            ("cross_entropy_part", SHARED),
            ("cross_entropy_of_parts", 0),
        ];
        Kernels::load_sharing(rank, &loss_text(), &names).map(LossKernels)
    }

    /// The loss of each row of logits, and its gradient times `scale`. A target of [`twin::IGNORED`] has neither; one that is no class
    /// makes both NaN.
    ///
    /// # Errors
    /// [`Error::Usage`] for columns that are no multiple of 8, and what [`Step::launch`](counterflow::op::Step::launch) refuses.
    pub fn cross_entropy(
        &self,
        logits: &Tensor<bf16>,
        targets: &Tensor<u32>,
        scale: f32,
        losses: &mut Tensor<f32>,
        gradient: &mut Tensor<bf16>,
    ) -> Result<(), Error> {
        let [rows, columns] = logits.shape();
        eights(columns)?;
        let call = self.0.call("cross_entropy");
        let call = call.read::<bf16>("logits", rows * columns, logits);
        let call = call.read::<u32>("targets", rows, targets);
        let call = call.written::<f32>("losses", rows, losses);
        let call = call.written::<bf16>("the gradient", rows * columns, gradient);
        let call = call.number(rows).number(columns);
        let call = call.bytes(&scale.to_le_bytes());
        let twin = |running: &Running<'_>| {
            let x: Vec<bf16> = running.read(0, rows * columns)?;
            let targets: Vec<u32> = running.read(1, rows)?;
            let mut dx = vec![bf16::ZERO; x.len()];
            let each = x.chunks_exact(columns).zip(dx.chunks_exact_mut(columns));
            let each = each.zip(targets);
            let losses = each.map(|((x, dx), target)| twin::cross_entropy(x, target, scale, dx));
            running.write(2, &losses.collect::<Vec<f32>>())?;
            running.write(3, &dx)
        };
        // SAFETY: CTAs stay inside of the rows; the parameters are the kernel's.
        unsafe { call.launch_wide(rows, self.0.sms(), twin).map(drop) }
    }

    /// Computes the part of each row that this rank has, which has the classes from `first` on:
    /// [`twin::cross_entropy_part`], four numbers a row.
    ///
    /// # Errors
    /// As [`LossKernels::cross_entropy`].
    pub fn part<'a>(
        &'a self,
        logits: &'a Tensor<bf16>,
        targets: &'a Tensor<u32>,
        first: usize,
        parts: impl Into<Argument<'a>>,
    ) -> Result<(), Error> {
        let [rows, columns] = logits.shape();
        eights(columns)?;
        let call = self.0.call("cross_entropy_part");
        let call = call.read::<bf16>("logits", rows * columns, logits);
        let call = call.read::<u32>("targets", rows, targets);
        let call = call.written::<f32>("parts", 4 * rows, parts);
        let call = call.number(rows).number(columns).number(first);
        let twin = |running: &Running<'_>| {
            let x: Vec<bf16> = running.read(0, rows * columns)?;
            let targets: Vec<u32> = running.read(1, rows)?;
            let each = x.chunks_exact(columns).zip(targets);
            let parts = each.flat_map(|(x, target)| {
                let target = (target as usize).checked_sub(first);
                let own = target.filter(|target| *target < columns);
                twin::cross_entropy_part(x, own.is_some(), own.unwrap_or(0))
            });
            running.write(2, &parts.collect::<Vec<f32>>())
        };
        // SAFETY: CTAs stay inside of the rows; the parameters are the kernel's.
        unsafe { call.launch_wide(rows, self.0.sms(), twin).map(drop) }
    }

    /// The loss of each row, and the gradient of this rank's logits times `scale`, of all ranks' parts: those of the first rank's rows,
    /// then the second's, and so on.
    ///
    /// # Errors
    /// As [`LossKernels::cross_entropy`].
    pub fn of_parts<'a>(
        &'a self,
        logits: &'a Tensor<bf16>,
        targets: &'a Tensor<u32>,
        [first, ranks]: [usize; 2],
        parts: impl Into<Argument<'a>>,
        scale: f32,
        (losses, gradient): (&'a mut Tensor<f32>, &'a mut Tensor<bf16>),
    ) -> Result<(), Error> {
        let [rows, columns] = logits.shape();
        eights(columns)?;
        let call = self.0.call("cross_entropy_of_parts");
        let call = call.read::<bf16>("logits", rows * columns, logits);
        let call = call.read::<u32>("targets", rows, targets);
        let call = call.read::<f32>("parts", 4 * rows * ranks, parts);
        let call = call.written::<f32>("losses", rows, losses);
        let call = call.written::<bf16>("the gradient", rows * columns, gradient);
        let call = call.number(columns).number(first).number(ranks);
        let classes = ranks * columns;
        let call = call.number(classes).bytes(&scale.to_le_bytes());
        let twin = |running: &Running<'_>| {
            let x: Vec<bf16> = running.read(0, rows * columns)?;
            let targets: Vec<u32> = running.read(1, rows)?;
            let parts: Vec<f32> = running.read(2, 4 * rows * ranks)?;
            let parts = parts.as_chunks::<4>().0;
            let mut dx = vec![bf16::ZERO; x.len()];
            let each = x.chunks_exact(columns).zip(dx.chunks_exact_mut(columns));
            let each = each.zip(targets).enumerate();
            let losses = each.map(|(row, ((x, dx), target))| {
                let own: Vec<[f32; 4]> = parts.iter().skip(row).step_by(rows).copied().collect();
                twin::cross_entropy_of_parts(x, target, (first, classes), &own, scale, dx)
            });
            running.write(3, &losses.collect::<Vec<f32>>())?;
            running.write(4, &dx)
        };
        // SAFETY: a CTA for each row, which stays inside of it; the parameters are the kernel's.
        unsafe { call.launch(rows * THREADS, twin).map(drop) }
    }
}
