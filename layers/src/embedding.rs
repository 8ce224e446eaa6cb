//! An embedding whose rows ranks divide.

use crate::linear::fits;
use crate::side::EmbeddingKernels;
use crate::step::{Built, Step, shape, together};
use crate::userbuffers::Userbuffers;
use counterflow::prelude::bf16;
use counterflow::{Error, Layout, Program, Tensor, schedules};
use std::ops::Range;

/// An embedding where each rank has a part of the vocabulary's rows, with sequence parallelism: Megatron's `VocabParallelEmbedding`, whose
/// output is scattered to the ranks' shards of the rows.
///
/// One rank has each row, so that the sum over ranks is exact. Gradients are added in f32, in the order of rows.
///
/// ```
/// use counterflow::{Communicator, prelude::bf16};
/// use counterflow_layers::{Initialize, Userbuffers, VocabParallelEmbedding};
/// use std::sync::Arc;
///
/// let rank = Arc::new(Communicator::emulated(1)?.remove(0));
/// rank.reserve(4 << 20)?;
/// let userbuffers = Userbuffers::initialize(&rank, &Initialize::new([16, 32], 1))?;
/// let embedding = VocabParallelEmbedding::new(&userbuffers, [64, 32])?;
/// let (ids, weight) = (rank.zeros::<u32>([7])?, rank.zeros::<bf16>(embedding.weight_shape())?);
/// let mut y = rank.zeros(embedding.output_shape(7))?;
/// embedding.forward(&ids, &weight, &mut y)?;
/// let mut gradient = rank.zeros::<f32>(embedding.weight_shape())?;
/// embedding.backward(&ids, &y, &mut gradient)?;
/// # Ok::<(), counterflow::Error>(())
/// ```
#[derive(Debug)]
pub struct VocabParallelEmbedding {
    userbuffers: Userbuffers,
    kernels: EmbeddingKernels,
    vocabulary: usize,
    columns: usize,
    /// A reduce-scatter of rows, and a gather of their gradient: of several ranks.
    moves: Option<[Built; 2]>,
}

impl VocabParallelEmbedding {
    /// Of so many rows over all ranks, and so many columns. Collective: every rank makes the same.
    ///
    /// # Errors
    /// [`Error::Usage`] for rows that ranks cannot divide, and for columns that are no multiple of 8 or that the buffers do not have;
    /// [`Error::Toolkit`] on a GPU without a compiler; as [`OpBuilder::build`](counterflow::OpBuilder::build).
    pub fn new(
        userbuffers: &Userbuffers,
        [vocabulary, columns]: [usize; 2],
    ) -> Result<Self, Error> {
        let rank = userbuffers.rank();
        let world = rank.world() as usize;
        if vocabulary == 0
            || !vocabulary.is_multiple_of(world)
            || u32::try_from(vocabulary).is_err()
        {
            return Err(Error::Usage {
                what: format!("a vocabulary of {vocabulary}, which {world} ranks divide"),
                legal: format!("pad it to a multiple of {world}, below 2^32"),
            });
        }
        let [rows, most] = userbuffers.shape();
        if columns > most {
            return Err(Error::Usage {
                what: format!("an embedding of {columns} columns, with buffers of {most}"),
                legal: "initialize the buffers with the largest hidden size that layers have"
                    .into(),
            });
        }
        crate::side::eights(columns)?;
        let build = |program: Program| {
            let step = Step::new(program, Layout::Nt, shape(rows, columns, columns));
            step.margin(userbuffers.sm_margin()).build(rank)
        };
        let moves = || {
            (world > 1).then(|| {
                Ok::<_, Error>([
                    build(schedules::reduce_scatter())?,
                    build(schedules::all_gather())?,
                ])
            })
        };
        together(rank, || {
            Ok(VocabParallelEmbedding {
                kernels: EmbeddingKernels::load(rank)?,
                userbuffers: userbuffers.clone(),
                vocabulary,
                columns,
                moves: moves().transpose()?,
            })
        })
    }

    /// The shape of this rank's part: rows of the vocabulary by columns. Rank r has those from r times that number on.
    pub fn weight_shape(&self) -> [usize; 2] {
        [self.own().len(), self.columns]
    }

    /// The shape of this rank's output, and of its gradient, in a call of so many ids.
    pub fn output_shape(&self, rows: usize) -> [usize; 2] {
        let rank = self.userbuffers.rank();
        [rank.shard(rank.rank(), rows).len(), self.columns]
    }

    /// The ids that this rank has.
    fn own(&self) -> Range<usize> {
        let rank = self.userbuffers.rank();
        let each = self.vocabulary / rank.world() as usize;
        let first = each * rank.rank() as usize;
        first..first + each
    }

    fn checks(&self, ids: &Tensor<u32>, rows: &Tensor<bf16>, what: &str) -> Result<(), Error> {
        let [most, _] = self.userbuffers.shape();
        if ids.len() > most {
            return Err(Error::Usage {
                what: format!("{} ids, with buffers for {most} rows", ids.len()),
                legal: "initialize the buffers for the most rows that there are".into(),
            });
        }
        fits(what, rows.shape(), self.output_shape(ids.len()))
    }

    /// Enqueues this rank's shard of the rows of all ids. An id that no rank has becomes NaN. Collective: every rank gives the same ids.
    ///
    /// # Errors
    /// [`Error::Usage`], before anything is enqueued, for tensors of another shape and for more ids than the buffers have rows; what a
    /// launch refuses.
    pub fn forward(
        &self,
        ids: &Tensor<u32>,
        weight: &Tensor<bf16>,
        y: &mut Tensor<bf16>,
    ) -> Result<(), Error> {
        self.checks(ids, y, "y")?;
        fits("the weight", weight.shape(), self.weight_shape())?;
        let (rank, rows) = (self.userbuffers.rank(), ids.len());
        let _turn = self.userbuffers.turn();
        let kernels = &self.kernels;
        match &self.moves {
            _ if rows == 0 => Ok(()),
            None => kernels.forward(ids, weight, self.own(), self.vocabulary, y),
            Some([sum, _]) => {
                let [most, _] = self.userbuffers.shape();
                let mut partial = self
                    .userbuffers
                    .lend([rows, self.columns], most * self.columns)?;
                kernels.forward(ids, weight, self.own(), self.vocabulary, &mut partial)?;
                let launch = sum.op.on(&**rank).tensor("g", &*partial);
                launch.tensor("y", y).rows(rows).launch().map(drop)
            }
        }
    }

    /// Enqueues the gradient of this rank's rows of the vocabulary, of this rank's shard of the output's gradient: it is added.
    ///
    /// # Errors
    /// As [`VocabParallelEmbedding::forward`].
    pub fn backward(
        &self,
        ids: &Tensor<u32>,
        dy: &Tensor<bf16>,
        gradient: &mut Tensor<f32>,
    ) -> Result<(), Error> {
        self.checks(ids, dy, "dy")?;
        fits("the gradient", gradient.shape(), self.weight_shape())?;
        let (rank, rows) = (self.userbuffers.rank(), ids.len());
        let _turn = self.userbuffers.turn();
        match &self.moves {
            _ if rows == 0 => Ok(()),
            None => self.kernels.backward(ids, dy, self.own(), gradient),
            Some([_, gather]) => {
                let whole = rows.next_multiple_of(rank.world() as usize);
                let all = self.userbuffers.gathered([whole, self.columns])?;
                let own = rank.shard(rank.rank(), rows);
                if !own.is_empty() {
                    all.rows(own)?.copy_from(dy)?;
                }
                let launch = gather.op.on(&**rank).tensor("x", &all);
                launch.rows(rows).launch()?;
                self.kernels.backward(ids, &all, self.own(), gradient)
            }
        }
    }
}
