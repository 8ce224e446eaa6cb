//! Products beside communication, and products that are summed in parts.

use super::factor::Factor;
use super::shared::{Of, Operand, Shared, fits};
use crate::overlap::{Comm, Method, Parallel, Pass, Settings};
use crate::step::{shape, size};
use crate::userbuffers::Initialize;
use counterflow::op::Argument;
use counterflow::prelude::bf16;
use counterflow::{Communicator, Error, Layout, Tensor, UserBuffer, schedules};
use std::sync::Arc;

/// TransformerEngine's `CommOverlap`: communication beside a product that does not need it, and products whose result is summed over
/// ranks in parts.
///
/// ```
/// use counterflow::{Communicator, Layout, prelude::bf16};
/// use counterflow_layers::overlap::{Comm, Settings};
/// use counterflow_layers::{CommOverlap, Destination};
/// use std::sync::Arc;
///
/// let rank = Arc::new(Communicator::emulated(1)?.remove(0));
/// rank.reserve(4 << 20)?;
/// let overlap = CommOverlap::new(&rank, [16, 32], &Settings { num_sm: Some(4), ..Settings::default() })?;
/// let (dy, x, mut dw) = (rank.zeros::<bf16>([8, 16])?, rank.zeros::<bf16>([8, 32])?, rank.zeros::<f32>([16, 32])?);
/// overlap.get_buffer(8, 32, false)?.write(&[bf16::ONE; 8 * 32])?; // an input's gradient, of each rank a term
/// let mut dx = rank.zeros::<bf16>([8, 32])?;
/// let grad = Destination::AddedTo(&mut dw);
/// overlap.bulk_overlap(8, [&dy, &x], Layout::Tn, grad, Comm::ReduceScatter, Some(&mut dx))?; // dw += dyᵀ · x beside it
/// assert_eq!(dx.read()?, [bf16::ONE; 8 * 32]);
/// # Ok::<(), counterflow::Error>(())
/// ```
#[derive(Debug)]
pub struct CommOverlap(Shared);

/// Destination of the result of a product.
#[derive(Debug)]
pub enum Destination<'a> {
    /// A tensor that is written over.
    Written(&'a mut Tensor<bf16>),
    /// A tensor that is added to: `accumulate=True` with a gradient in f32, of a product in layout tn.
    AddedTo(&'a mut Tensor<f32>),
}

const GATHERS: Of = (Parallel::Column, Pass::Dgrad, Method::Bulk);
const SUMS: Of = (Parallel::Column, Pass::Wgrad, Method::Bulk);
const PIPELINED: Of = (Parallel::Row, Pass::Fprop, Method::Pipeline);

impl CommOverlap {
    /// A buffer for so many rows over all ranks and columns, both at most. Collective.
    ///
    /// The constructor's other arguments are settings: `num_sm` is `num_comm_sm`. Those that have nothing to act on are logged.
    ///
    /// # Errors
    /// [`Error::Usage`] for a method in the settings, and for settings that no operation can have; as [`Communicator::allocate`].
    pub fn new(
        rank: &Arc<Communicator>,
        buffer_shape: [usize; 2],
        settings: &Settings,
    ) -> Result<CommOverlap, Error> {
        CommOverlap::beside(rank, buffer_shape, settings, 0)
    }

    /// As [`CommOverlap::new`]; kernels leave so many SMs to others, as [`Initialize::ext_margin_sm`] says.
    ///
    /// # Errors
    /// As [`CommOverlap::new`]. All SMs are refused by the operations.
    pub fn beside(
        rank: &Arc<Communicator>,
        buffer_shape: [usize; 2],
        settings: &Settings,
        sm_margin: u32,
    ) -> Result<CommOverlap, Error> {
        let all = [GATHERS, SUMS, PIPELINED];
        let initialize = Initialize {
            ext_margin_sm: sm_margin,
            ..Initialize::new(buffer_shape, rank.world())
        };
        Shared::new(rank, &initialize, settings, &all).map(CommOverlap)
    }

    /// Settings that were given and have nothing to act on, each with the reason. They were logged once.
    pub fn notices(&self) -> &[(&'static str, &'static str)] {
        &self.0.told
    }

    /// Copies this rank's shard of so many rows over all ranks, or all of them, into the buffer. It has elements alone, since
    /// [`CommOverlap::bulk_overlap`] moves and adds bf16. So codes are refused by the compiler:
    ///
    /// ```compile_fail
    /// # use counterflow::{Error, QuantTensor, Tensor, prelude::e4m3};
    /// # use counterflow_layers::CommOverlap;
    /// fn wrong(overlap: &CommOverlap, codes: &QuantTensor<Tensor<e4m3>>) -> Result<(), Error> {
    ///     overlap.copy_into_buffer(16, codes, true)
    /// }
    /// ```
    ///
    /// # Errors
    /// [`Error::Usage`] for another number of rows, and for more than the buffer has.
    pub fn copy_into_buffer(
        &self,
        rows: usize,
        input: &Tensor<bf16>,
        local_chunk: bool,
    ) -> Result<(), Error> {
        self.0.copy_into_buffer(rows, input, local_chunk)
    }

    /// The buffer with so many columns in a call of so many rows: this rank's shard, or all rows.
    ///
    /// # Errors
    /// [`Error::Usage`] for more than it has.
    pub fn get_buffer(
        &self,
        rows: usize,
        columns: usize,
        local_chunk: bool,
    ) -> Result<UserBuffer<bf16>, Error> {
        self.0.get_buffer(rows, columns, local_chunk)
    }

    /// A product of two tensors beside communication of the buffer, which it does not need: a gather of so many rows, or their
    /// sum over ranks, of which this rank's shard goes to `rs_output`. The buffer has the columns of the product's second operand in
    /// layout tn, and of its result otherwise.
    ///
    /// # Errors
    /// [`Error::Usage`] for a sum without `rs_output`, a gather with one, a result that is added to in another layout than tn or beside
    /// a gather, and tensors of another shape; what building and launching refuse.
    pub fn bulk_overlap(
        &self,
        rows: usize,
        [a, b]: [&Tensor<bf16>; 2],
        layout: Layout,
        d: Destination<'_>,
        comm_type: Comm,
        rs_output: Option<&mut Tensor<bf16>>,
    ) -> Result<(), Error> {
        self.0.rows(rows)?;
        let [m, n, k] = product(a.shape(), b.shape(), layout)?;
        let moved = n;
        let rank = self.0.rank();
        let own = rank.shard(rank.rank(), rows).len();
        let refused = |what: &str, legal: &str| {
            let (what, legal) = (what.to_owned(), legal.to_owned());
            Err(Error::Usage { what, legal })
        };
        let (added, d): (bool, Argument<'_>) = match d {
            Destination::Written(d) => {
                fits("d", d.shape(), [m, n])?;
                (false, d.into())
            }
            Destination::AddedTo(d) => {
                fits("d", d.shape(), [m, n])?;
                (true, d.into())
            }
        };
        if added != (layout == Layout::Tn) {
            return refused(
                "a result that is added to, or the layout tn, without the other",
                "give `AddedTo` with Tn, as weights' gradients are, and `Written` with Nt and Nn",
            );
        }
        let _turn = self.0.userbuffers.turn();
        let all = self.0.buffer(rows, moved)?;
        let [most, _] = self.0.userbuffers.shape();
        match (comm_type, rs_output) {
            (Comm::AllGather, None) if !added => {
                let gemm = self.0.product(GATHERS)?;
                let sizes = shape(m, n, k);
                let sizes = sizes
                    .dim("z.rows", size(most))
                    .dim("z.columns", size(moved));
                let work = gemm.schedule().work();
                let built = self.0.op(work, layout, sizes, gemm.choices(), None)?;
                let launch = built.op.on(&**rank).tensor("x", a).tensor("w", b);
                let launch = launch.tensor("y", d).tensor("z", &all);
                launch.beside(rows).launch().map(drop)
            }
            (Comm::ReduceScatter, Some(rs_output)) => {
                fits("rs_output", rs_output.shape(), [own, moved])?;
                let gemm = self.0.product(SUMS)?;
                let sizes = shape(m, n, k);
                let sizes = sizes
                    .dim("g.rows", size(most))
                    .dim("g.columns", size(moved));
                let (work, names) = match added {
                    true => (gemm.schedule().work(), ["dy", "x", "grad"]),
                    false => (schedules::bulk_rs().into(), ["x", "w", "y"]),
                };
                let built = self.0.op(work, layout, sizes, gemm.choices(), None)?;
                let launch = built.op.on(&**rank).tensor(names[0], a).tensor(names[1], b);
                let launch = launch.tensor(names[2], d).tensor("g", &all);
                let launch = launch.tensor("r", rs_output).beside(rows);
                launch.launch().map(drop)
            }
            (Comm::AllGather, Some(_)) => refused(
                "a gather with an output of its own",
                "leave out `rs_output`: the buffer has all rows then",
            ),
            (Comm::AllGather, None) => refused(
                "a gather beside a result that is added to",
                "give a sum over ranks, or write the result over",
            ),
            (Comm::ReduceScatter, None) => refused(
                "a sum over ranks without its output",
                "give `rs_output`: this rank's shard of the rows",
            ),
        }
    }

    /// `rs_output = reduce_scatter(x · w) + bias`, for this rank's shard of so many rows.
    ///
    /// # Errors
    /// [`Error::Usage`] for tensors of another shape; what building and launching refuse.
    pub fn split_overlap_rs<'a>(
        &self,
        rows: usize,
        x: impl Into<Factor<'a>>,
        w: Operand<'_>,
        rs_output: &mut Tensor<bf16>,
    ) -> Result<(), Error> {
        self.0.reduced(rows, x.into(), w, rs_output, PIPELINED)
    }

    /// As [`CommOverlap::split_overlap_rs`], whose tiles signal by counters already.
    ///
    /// # Errors
    /// As [`CommOverlap::split_overlap_rs`].
    pub fn atomic_gemm_overlap_rs<'a>(
        &self,
        rows: usize,
        x: impl Into<Factor<'a>>,
        w: Operand<'_>,
        rs_output: &mut Tensor<bf16>,
    ) -> Result<(), Error> {
        self.split_overlap_rs(rows, x, w, rs_output)
    }
}

/// Rows, columns and depth of a product.
fn product(a: [usize; 2], b: [usize; 2], layout: Layout) -> Result<[usize; 3], Error> {
    let ([m, depth], [n, k]) = match layout {
        Layout::Nt => (a, b),
        Layout::Nn => (a, [b[1], b[0]]),
        Layout::Tn => ([a[1], a[0]], [b[1], b[0]]),
    };
    fits(
        "the second operand",
        b,
        match layout {
            Layout::Nt => [n, depth],
            Layout::Nn | Layout::Tn => [depth, n],
        },
    )?;
    Ok([m, n, k])
}
