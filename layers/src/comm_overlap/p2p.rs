//! Products whose shards go from rank to rank.

use super::factor::Factor;
use super::shared::{Of, Operand, Shared, fits, with_bias};
use crate::fp8::Coded;
use crate::overlap::{Comm, Method, Parallel, Pass, Settings};
use crate::userbuffers::Initialize;
use counterflow::prelude::{bf16, e4m3};
use counterflow::rule::Fp8;
use counterflow::{Communicator, Error, Tensor, UserBuffer};
use std::sync::{Arc, Mutex, PoisonError};

/// TransformerEngine's `CommOverlapP2P`: a gather, or a sum over ranks, in shards of ranks. It has
/// an example at [`Operand`].
#[derive(Debug)]
pub struct CommOverlapP2P {
    shared: Shared,
    comm: Comm,
    /// Type and scale of the codes in the buffer. None: it has elements.
    codes: Mutex<Option<(Fp8, Tensor<f32>)>>,
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
        CommOverlapP2P::beside(rank, buffer_shape, comm_type, settings, 0)
    }

    /// As [`CommOverlapP2P::new`]; kernels leave so many SMs to others, as [`Initialize::ext_margin_sm`] says.
    ///
    /// # Errors
    /// As [`CommOverlapP2P::new`]. All SMs are refused by the operations.
    pub fn beside(
        rank: &Arc<Communicator>,
        buffer_shape: [usize; 2],
        comm_type: Comm,
        settings: &Settings,
        sm_margin: u32,
    ) -> Result<CommOverlapP2P, Error> {
        let product = match comm_type {
            Comm::AllGather => AG,
            Comm::ReduceScatter => RS,
        };
        let initialize = Initialize {
            ext_margin_sm: sm_margin,
            ..Initialize::new(buffer_shape, rank.world())
        };
        Ok(CommOverlapP2P {
            shared: Shared::new(rank, &initialize, settings, &[product])?,
            comm: comm_type,
            codes: Mutex::default(),
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

    /// Copies this rank's shard of so many rows over all ranks, or all of them, into the buffer: elements, or codes for
    /// [`CommOverlapP2P::split_overlap_ag`]. Codes take half of it, and have one scale, the same on every rank: it is read when
    /// a product is launched. The buffer has codes from then on, until elements are copied.
    ///
    /// # Errors
    /// [`Error::Usage`] for another number of rows, for more than the buffer has, and for codes in a communicator of sums, where
    /// nothing reads them.
    pub fn copy_into_buffer<'a>(
        &self,
        rows: usize,
        input: impl Into<Factor<'a>>,
        local_chunk: bool,
    ) -> Result<(), Error> {
        let (codes, to, scale) = match input.into() {
            Factor::Bf16(elements) => {
                self.shared.copy_into_buffer(rows, elements, local_chunk)?;
                self.has_now(None);
                return Ok(());
            }
            coded @ Factor::E4M3(of) => {
                coded.has_one_scale()?;
                (of.codes().clone(), Fp8::E4M3, of.scales())
            }
            coded @ Factor::E5M2(of) => {
                coded.has_one_scale()?;
                let codes = of.codes().reinterpret::<e4m3>(of.codes().shape())?;
                (codes, Fp8::E5M2, of.scales())
            }
        };
        if self.comm != Comm::AllGather {
            return Err(Error::Usage {
                what: format!("codes in the buffer of {}", self.comm),
                legal: "give codes to the product, or make a communicator of an all-gather".into(),
            });
        }
        let _turn = self.shared.userbuffers.turn();
        let (all, part) = self.shared.place(rows, codes.shape(), local_chunk)?;
        if !part.is_empty() {
            let [_, columns] = codes.shape();
            let all = all.reinterpret::<e4m3>([all.shape()[0], columns])?;
            all.rows(part)?.copy_from(&codes)?;
        }
        self.has_now(Some((to, scale.clone())));
        Ok(())
    }

    /// The buffer has these codes from now on, or elements.
    fn has_now(&self, codes: Option<(Fp8, Tensor<f32>)>) {
        *self.codes.lock().unwrap_or_else(PoisonError::into_inner) = codes;
    }

    /// Type and scale of the codes that the buffer has. None: it has elements.
    fn codes(&self) -> Option<(Fp8, Tensor<f32>)> {
        let codes = self.codes.lock().unwrap_or_else(PoisonError::into_inner);
        codes.clone()
    }

    /// The buffer with so many columns in a call of so many rows: this rank's shard, or all rows, to read elements or to write
    /// them. Take it again after codes were copied: what is written through an older one then is multiplied as codes.
    ///
    /// # Errors
    /// [`Error::Usage`] for more than it has, and while it has codes, which [`CommOverlapP2P::get_codes`] gives. It is of bf16
    /// again once `copy_into_buffer` was given elements.
    pub fn get_buffer(
        &self,
        rows: usize,
        columns: usize,
        local_chunk: bool,
    ) -> Result<UserBuffer<bf16>, Error> {
        match self.codes() {
            None => self.shared.get_buffer(rows, columns, local_chunk),
            Some((to, _)) => Err(Error::Usage {
                what: format!("the buffer as bf16, and it has codes of {to:?}"),
                legal: "take them by `get_codes`, or copy elements into the buffer first".into(),
            }),
        }
    }

    /// The codes in the buffer, a byte each, with so many columns in a call of so many rows: this rank's shard, or all rows, as they
    /// are after [`CommOverlapP2P::split_overlap_ag`]. Their type and scale are those of what was copied last.
    ///
    /// # Errors
    /// [`Error::Usage`] for more than it has, and while it has elements.
    pub fn get_codes(
        &self,
        rows: usize,
        columns: usize,
        local_chunk: bool,
    ) -> Result<UserBuffer<u8>, Error> {
        if self.codes().is_none() {
            return Err(Error::Usage {
                what: "codes of a buffer that has elements".into(),
                legal: "take them by `get_buffer`, or copy codes into the buffer first".into(),
            });
        }
        let all = self.shared.buffer(rows, columns)?;
        let all = all.reinterpret::<u8>([all.shape()[0], columns])?;
        all.rows(self.shared.part(rows, local_chunk))
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
        let codes = self.codes();
        if codes.is_some() && b_copy.is_some() {
            return Err(Error::Usage {
                what: "codes copied to a tensor of bf16".into(),
                legal: "leave out `b_copy`, and take the codes by `get_codes`".into(),
            });
        }
        let built = self.shared.whole(AG, codes.as_ref().map(|of| of.0), &w)?;
        let _turn = self.shared.userbuffers.turn();
        let all = self.shared.buffer(rows, k)?;
        let coded = codes.map(|(to, scale)| {
            let all = all.reinterpret::<e4m3>([all.shape()[0], k])?;
            Coded::all(to, &all, &scale)
        });
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

    /// As [`CommOverlapP2P::split_overlap_ag`], which waits for shards by counters already.
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

    /// `rs_output = reduce_scatter(x · w) + bias`, for this rank's shard of so many rows.
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
