//! Products whose chunks go from rank to rank.

use super::factor::Factor;
use super::shared::{Of, Operand, Shared, fits, with_bias};
use crate::overlap::{Comm, Method, Parallel, Pass, Settings};
use counterflow::prelude::bf16;
use counterflow::{Communicator, Error, Tensor, UserBuffer};
use std::sync::Arc;

/// TransformerEngine's `CommOverlapP2P`: a gather, or a sum over ranks, in chunks of ranks. It has
/// an example at [`Operand`].
#[derive(Debug)]
pub struct CommOverlapP2P {
    shared: Shared,
    comm: Comm,
}

const AG: Of = (Parallel::Column, Pass::Fprop, Method::RingExchange);
const RS: Of = (Parallel::Row, Pass::Fprop, Method::RingExchange);

impl CommOverlapP2P {
    /// A buffer for so many rows over all ranks and columns, both at most. Collective.
    ///
    /// The constructor's other arguments are settings: `num_sm` is `num_comm_sm`. Those that have nothing to act on are logged.
    ///
    /// # Errors
    /// [`Error::Usage`] for a method in the settings, and for settings that the communication cannot have; as
    /// [`Communicator::allocate`].
    pub fn new(
        rank: &Arc<Communicator>,
        buffer_shape: [usize; 2],
        comm_type: Comm,
        settings: &Settings,
    ) -> Result<CommOverlapP2P, Error> {
        let product = match comm_type {
            Comm::AllGather => AG,
            Comm::ReduceScatter => RS,
        };
        Ok(CommOverlapP2P {
            shared: Shared::new(rank, buffer_shape, settings, &[product])?,
            comm: comm_type,
        })
    }

    fn has(&self, comm: Comm) -> Result<(), Error> {
        match self.comm == comm {
            true => Ok(()),
            false => Err(Error::Usage {
                what: format!("{comm} by a communicator of {}", self.comm),
                legal: format!("make one of {comm}"),
            }),
        }
    }

    /// Settings that were given and have nothing to act on, each with the reason. They were logged once.
    pub fn notices(&self) -> &[(&'static str, &'static str)] {
        &self.shared.told
    }

    /// Copies this rank's chunk of so many rows over all ranks, or all of them, into the buffer. Codes take half of it, and have one scale,
    /// the same on every rank: it is read when a product is launched.
    ///
    /// # Errors
    /// [`Error::Usage`] for another number of rows, and for more than the buffer has.
    pub fn copy_into_buffer<'a>(
        &self,
        rows: usize,
        input: impl Into<Factor<'a>>,
        local_chunk: bool,
    ) -> Result<(), Error> {
        self.shared
            .copy_into_buffer(rows, input.into(), local_chunk)
    }

    /// The buffer with so many columns in a call of so many rows: this rank's chunk, or all rows.
    ///
    /// # Errors
    /// [`Error::Usage`] for more than it has.
    pub fn get_buffer(
        &self,
        rows: usize,
        columns: usize,
        local_chunk: bool,
    ) -> Result<UserBuffer<bf16>, Error> {
        self.shared.get_buffer(rows, columns, local_chunk)
    }

    /// `d = all_gather(buffer) · w + bias`. All rows are in the buffer then, and in `b_copy`, if there is one. Where the buffer has codes,
    /// so has the weight.
    ///
    /// # Errors
    /// [`Error::Usage`] for a communicator of sums, for codes beside elements or copied to them, and for tensors of another shape; what building and launching refuse.
    pub fn split_overlap_ag(
        &self,
        rows: usize,
        w: Operand<'_>,
        d: &mut Tensor<bf16>,
        b_copy: Option<&mut Tensor<bf16>>,
    ) -> Result<(), Error> {
        self.has(Comm::AllGather)?;
        self.shared.rows(rows)?;
        let [n, k] = w.sides()?;
        fits("d", d.shape(), [rows, n])?;
        if let Some(copy) = &b_copy {
            fits("b_copy", copy.shape(), [rows, k])?;
        }
        let codes = self.shared.codes();
        if codes.is_some() && b_copy.is_some() {
            return Err(Error::Usage {
                what: "codes copied to a tensor of bf16".into(),
                legal: "leave out `b_copy`, and take the codes out of `get_buffer`".into(),
            });
        }
        let built = self.shared.whole(AG, codes.as_ref().map(|of| of.0), &w)?;
        let _turn = self.shared.userbuffers.turn();
        let all = self.shared.buffer(rows, k)?;
        let coded = codes.map(|codes| self.shared.coded(rows, k, &codes));
        let coded = coded.transpose()?;
        let launch = built.op.on(&**self.shared.rank());
        let launch = match &coded {
            Some(coded) => launch.tensor("x", coded),
            None => launch.tensor("x", &all),
        };
        let launch = with_bias(launch.tensor("w", w.tensor), w.bias).tensor("y", d);
        launch.rows(rows).launch()?;
        match b_copy {
            Some(copy) => all.copy_to(copy),
            None => Ok(()),
        }
    }

    /// As [`CommOverlapP2P::split_overlap_ag`], which waits for chunks by counters already.
    ///
    /// # Errors
    /// As [`CommOverlapP2P::split_overlap_ag`].
    pub fn atomic_gemm_overlap_ag(
        &self,
        rows: usize,
        w: Operand<'_>,
        d: &mut Tensor<bf16>,
        b_copy: Option<&mut Tensor<bf16>>,
    ) -> Result<(), Error> {
        self.split_overlap_ag(rows, w, d, b_copy)
    }

    /// `rs_output = reduce_scatter(x · w) + bias`, for this rank's chunk of so many rows.
    ///
    /// # Errors
    /// [`Error::Usage`] for a communicator of gathers, and for tensors of another shape; what building and launching refuse.
    pub fn split_overlap_rs<'a>(
        &self,
        rows: usize,
        x: impl Into<Factor<'a>>,
        w: Operand<'_>,
        rs_output: &mut Tensor<bf16>,
    ) -> Result<(), Error> {
        self.has(Comm::ReduceScatter)?;
        self.shared.reduced(rows, x.into(), w, rs_output, RS)
    }

    /// As [`CommOverlapP2P::split_overlap_rs`], whose tiles signal by counters already.
    ///
    /// # Errors
    /// As [`CommOverlapP2P::split_overlap_rs`].
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
