//! Cross-entropy of classes that ranks divide.

use crate::linear::fits;
use crate::side::LossKernels;
use crate::step::{Built, Step, shape, together};
use counterflow::prelude::bf16;
use counterflow::{Communicator, Dtype, Error, Layout, Tensor, UserBuffer, schedules};
use std::sync::{Arc, Mutex, PoisonError};

/// Numbers that a rank tells of a row: 16 bytes.
const NUMBERS: usize = 4;

/// Cross-entropy where each rank has a part of the classes of all rows: what a column-parallel output head gives. Megatron's
/// `vocab_parallel_cross_entropy`, with its gradient.
///
/// Ranks exchange four numbers a row, once: the largest logit, the sum of exponentials and the target's logit. No rank ever has another's
/// logits. Parts are added in the order of ranks, so that every rank has the same losses, and each run the same bits.
///
/// ```
/// use counterflow::{Communicator, prelude::bf16};
/// use counterflow_layers::VocabParallelCrossEntropy;
/// use std::sync::Arc;
///
/// let rank = Arc::new(Communicator::emulated(1)?.remove(0));
/// rank.reserve(VocabParallelCrossEntropy::heap_bytes(2, 1) + (2 << 20))?;
/// let cross_entropy = VocabParallelCrossEntropy::new(&rank, 2)?; // rows at most
/// let (logits, targets) = (rank.zeros::<bf16>([2, 8])?, rank.zeros::<u32>([2])?);
/// let (mut losses, mut gradient) = (rank.zeros::<f32>([2])?, rank.zeros::<bf16>([2, 8])?);
/// cross_entropy.of(&logits, &targets, 0.5, &mut losses, &mut gradient)?; // of the mean of two rows
/// assert!(losses.read()?.iter().all(|loss| (loss - 8f32.ln()).abs() < 1e-6));
/// # Ok::<(), counterflow::Error>(())
/// ```
#[derive(Debug)]
pub struct VocabParallelCrossEntropy {
    rank: Arc<Communicator>,
    kernels: LossKernels,
    /// Parts that all ranks tell of all rows. Held while a call is enqueued.
    parts: Mutex<UserBuffer<f32>>,
    gather: Built,
    rows: usize,
}

impl VocabParallelCrossEntropy {
    /// Bytes of the heap that it takes on each rank, beside its op's counters.
    pub fn heap_bytes(rows: usize, world: u32) -> u64 {
        (rows * NUMBERS * size_of::<f32>()) as u64 * u64::from(world.max(1))
    }

    /// For so many rows at most. Collective: every rank makes the same.
    ///
    /// # Errors
    /// [`Error::Usage`] for no rows; [`Error::Toolkit`] on a GPU without a compiler; as [`Communicator::allocate`].
    pub fn new(rank: &Arc<Communicator>, rows: usize) -> Result<Self, Error> {
        VocabParallelCrossEntropy::beside(rank, rows, 0)
    }

    /// As [`VocabParallelCrossEntropy::new`]; the exchange, which waits for peers, leaves so many SMs to others, as
    /// [`Initialize::ext_margin_sm`](crate::Initialize::ext_margin_sm) says.
    ///
    /// # Errors
    /// As [`VocabParallelCrossEntropy::new`]; [`Error::Usage`] for all SMs.
    pub fn beside(rank: &Arc<Communicator>, rows: usize, sm_margin: u32) -> Result<Self, Error> {
        if rows == 0 {
            return Err(Error::Usage {
                what: "cross-entropy of no rows".into(),
                legal: "give the most rows of any call".into(),
            });
        }
        let all = rows * rank.world() as usize;
        let sizes = shape(all, NUMBERS, NUMBERS);
        let gather = Step::new(schedules::all_gather(), Layout::Nt, sizes);
        let gather = gather.margin(sm_margin).of(Dtype::F32);
        together(rank, || {
            Ok(VocabParallelCrossEntropy {
                kernels: LossKernels::load(rank)?,
                gather: gather.build(rank)?,
                parts: Mutex::new(rank.allocate("parts of cross-entropy", [all, NUMBERS])?),
                rank: rank.clone(),
                rows,
            })
        })
    }

    /// Enqueues the loss of each row, the same on every rank, and the gradient of this rank's logits times `scale`.
    ///
    /// `logits`: this rank's columns of all rows; rank r has the classes from r times that number on. `targets`: a class of all ranks'
    /// for each row. One of [`twin::IGNORED`](crate::side::twin::IGNORED) has neither loss nor gradient; one that is no class makes both
    /// NaN. Collective: every rank gives as many rows, the same targets, and as many columns.
    ///
    /// # Errors
    /// [`Error::Usage`], before anything is enqueued, for tensors of another shape, more rows than it was made for, and columns that are
    /// no multiple of 8; what a launch refuses.
    pub fn of(
        &self,
        logits: &Tensor<bf16>,
        targets: &Tensor<u32>,
        scale: f32,
        losses: &mut Tensor<f32>,
        gradient: &mut Tensor<bf16>,
    ) -> Result<(), Error> {
        let [rows, columns] = logits.shape();
        if rows > self.rows {
            return Err(Error::Usage {
                what: format!("cross-entropy of {rows} rows, made for {}", self.rows),
                legal: "make it for the most rows that there are".into(),
            });
        }
        crate::side::eights(columns)?;
        fits("targets", [1, targets.len()], [1, rows])?;
        fits("losses", [1, losses.len()], [1, rows])?;
        fits("the gradient", gradient.shape(), logits.shape())?;
        let (me, world) = (self.rank.rank() as usize, self.rank.world() as usize);
        if (columns * world) as u64 >= u64::from(crate::side::twin::IGNORED) {
            return Err(Error::Usage {
                what: format!("{columns} classes on each of {world} ranks"),
                legal: "give fewer than 2^32 - 1 in all".into(),
            });
        }
        if rows == 0 {
            return Ok(());
        }
        let parts = self.parts.lock().unwrap_or_else(PoisonError::into_inner);
        let all = parts.shaped([rows * world, NUMBERS])?;
        let first = me * columns;
        let mut own = all.rows(me * rows..(me + 1) * rows)?;
        self.kernels.part(logits, targets, first, &mut own)?;
        if world > 1 {
            let launch = self.gather.op.on(&*self.rank).tensor("x", &all);
            launch.rows(rows * world).launch()?;
        }
        let (to, sizes) = ((losses, gradient), [first, world]);
        self.kernels
            .of_parts(logits, targets, sizes, &all, scale, to)
    }
}
