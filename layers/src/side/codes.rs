//! FP8 codes on their side, and the largest amax of ranks.
#![allow(unsafe_code)]

use super::launch::{Kernels, THREADS};
use super::twin;
use counterflow::op::{Argument, Running};
use counterflow::prelude::e4m3;
use counterflow::{Communicator, Error, Tensor, UserBuffer};
use std::sync::Arc;

/// The kernels of codes and amaxes: CUDA.
pub fn codes_text() -> String {
    "#include \"codes.cuh\"\n".into()
}

/// Rows and columns of codes of a CTA.
const SIDE: usize = 128;

/// Codes and amaxes on a rank.
///
/// ```
/// use counterflow::{Communicator, prelude::e4m3};
/// use counterflow_layers::side::CodeKernels;
/// use std::sync::Arc;
///
/// let rank = Arc::new(Communicator::emulated(1)?.remove(0));
/// let kernels = CodeKernels::load(&rank)?;
/// let (codes, mut turned) = (rank.zeros::<e4m3>([2, 16])?, rank.zeros::<e4m3>([16, 16])?);
/// codes.rows(1..2)?.write(&[e4m3::ONE; 16])?;
/// kernels.transpose([2, 16], &codes, &mut turned)?; // rows of 2 codes, padded to 16
/// assert_eq!(turned.rows(5..6)?.read()?[..3], [e4m3::ZERO, e4m3::ONE, e4m3::ZERO]);
/// # Ok::<(), counterflow::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct CodeKernels(Kernels);

impl CodeKernels {
    /// Compiles and loads them.
    ///
    /// # Errors
    /// [`Error::Toolkit`] without a compiler; what the driver refuses.
    pub fn load(rank: &Arc<Communicator>) -> Result<CodeKernels, Error> {
        let names = ["transpose_codes", "largest_of_ranks"];
        Kernels::load(rank, &codes_text(), &names).map(CodeKernels)
    }

    /// Codes of so many rows and columns with columns as rows, each padded with zeros to a multiple of 16: the bits that quantising the
    /// transposed matrix by the same one scale gives. Codes of e5m2 are given as e4m3
    /// ([`Tensor::reinterpret`](counterflow::Tensor::reinterpret)).
    ///
    /// # Errors
    /// [`Error::Usage`] for columns that are no multiple of 16, and what [`Step::launch`](counterflow::op::Step::launch) refuses.
    pub fn transpose<'a>(
        &'a self,
        [rows, columns]: [usize; 2],
        codes: impl Into<Argument<'a>>,
        to: &'a mut Tensor<e4m3>,
    ) -> Result<(), Error> {
        if !columns.is_multiple_of(16) {
            return Err(Error::Usage {
                what: format!("{columns} columns of codes"),
                legal: "give a multiple of 16".into(),
            });
        }
        let pitch = rows.next_multiple_of(16);
        let call = self.0.call("transpose_codes");
        let call = call.read::<e4m3>("codes", rows * columns, codes);
        let call = call.written::<e4m3>("transposed", pitch * columns, to);
        let across = columns.div_ceil(SIDE);
        let call = call.number(rows).number(columns).number(pitch);
        let twin = |running: &Running<'_>| {
            let codes: Vec<e4m3> = running.read(0, rows * columns)?;
            let codes: Vec<u8> = codes.iter().map(e4m3::to_bits).collect();
            let turned = twin::transposed(&codes, [rows, columns], pitch).into_iter();
            running.write(1, &turned.map(e4m3::from_bits).collect::<Vec<_>>())
        };
        let ctas = rows.div_ceil(SIDE) * across;
        // SAFETY: a CTA for each tile, which stays inside of both; the parameters are the kernel's.
        unsafe {
            let call = call.number(across);
            call.launch(ctas * THREADS, twin).map(drop)
        }
    }

    /// The largest of the ranks' amaxes: so many of the first in each row. NaN is not seen, as
    /// [`History::saw`](counterflow::quantise::History::saw) does not see it.
    ///
    /// # Errors
    /// What [`Step::launch`](counterflow::op::Step::launch) refuses.
    pub fn largest_of_ranks(
        &self,
        amaxes: usize,
        of_ranks: &UserBuffer<f32>,
        largest: &mut Tensor<f32>,
    ) -> Result<(), Error> {
        let [ranks, pitch] = [of_ranks.shape()[0], of_ranks.shape()[1]];
        let call = self.0.call("largest_of_ranks");
        let call = call.read::<f32>("amaxes of ranks", ranks * pitch, of_ranks);
        let call = call.written::<f32>("amaxes", amaxes, largest);
        let call = call.number(amaxes).number(ranks).number(pitch);
        let twin = |running: &Running<'_>| {
            let of_ranks: Vec<f32> = running.read(0, ranks * pitch)?;
            running.write(1, &twin::largest_of_ranks(&of_ranks, amaxes, pitch))
        };
        // SAFETY: a thread for each amax, of which each rank has as many in a row; the parameters are the kernel's.
        unsafe { call.launch(amaxes.min(pitch), twin).map(drop) }
    }
}
