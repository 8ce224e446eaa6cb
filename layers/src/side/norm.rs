//! Normalisation of rows on a rank.
#![allow(unsafe_code)]

use super::launch::{Kernels, THREADS};
use super::twin::{Norm, Normalization, SLABS, Statistics};
use counterflow::op::{Argument, Running};
use counterflow::prelude::bf16;
use counterflow::{Communicator, Error, Tensor};
use std::sync::Arc;

/// Bytes of shared memory of a CTA of `norm_backward`: two rows of x, dy and what is added, of so many columns.
const SHORT_SHARED: u32 = 2 * 3 * 2 * SHORT as u32;
/// Columns of the longest row of `norm_backward`.
const SHORT: usize = 8192;
/// The same of `norm_backward_long`, of which so much of each row is in shared memory: 16,384 columns.
const LONG_SHARED: u32 = 2 * SHORT_SHARED;

/// Lines that `normed.cuh` reads.
pub(super) fn norm_lines(norm: &Norm) -> String {
    let layer = u32::from(norm.kind == Normalization::LayerNorm);
    let one = if norm.zero_centered_gamma {
        "1.f"
    } else {
        "0.f"
    };
    let eps = norm.eps.to_bits();
    format!(
        "#define LAYER {layer}\n#define ONE {one}\n#define NORM_EPS __uint_as_float({eps:#010x}u)\n"
    )
}

/// The kernels of a norm: CUDA.
pub fn norm_text(norm: &Norm) -> String {
    let lines = norm_lines(norm);
    format!(
        "{lines}#define SHORT_SHARED {SHORT_SHARED}u\n#define LONG_SHARED {LONG_SHARED}u\n#include \"norm.cuh\"\n"
    )
}

/// A norm on a rank.
///
/// ```
/// use counterflow::{Communicator, prelude::bf16};
/// use counterflow_layers::{Norm, Normalization, side::NormKernels};
/// use std::sync::Arc;
///
/// let rank = Arc::new(Communicator::emulated(1)?.remove(0));
/// let norm = NormKernels::load(&rank, Norm::new(Normalization::RmsNorm))?;
/// let (x, gamma) = (rank.zeros::<bf16>([4, 16])?, rank.zeros::<bf16>([1, 16])?);
/// x.write(&[bf16::from_f32(2.0); 4 * 16])?;
/// gamma.write(&[bf16::ONE; 16])?;
/// let (mut y, mut statistics) = (rank.zeros::<bf16>([4, 16])?, rank.zeros::<f32>([4, 2])?);
/// norm.forward([4, 16], &x, (&gamma, None), &mut y, &mut statistics)?;
/// assert_eq!(y.read()?, [bf16::ONE; 4 * 16]);
/// # Ok::<(), counterflow::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct NormKernels {
    norm: Norm,
    kernels: Kernels,
}

/// A row's statistics are two numbers: mean, and one over the deviation.
fn statistics(of: &[f32]) -> Vec<Statistics> {
    let of = of.chunks_exact(2).map(|of| Statistics {
        mean: of[0],
        rstd: of[1],
    });
    of.collect()
}

impl NormKernels {
    /// Compiles and loads them.
    ///
    /// # Errors
    /// [`Error::Toolkit`] without a compiler; what the driver refuses.
    pub fn load(rank: &Arc<Communicator>, norm: Norm) -> Result<NormKernels, Error> {
        let names = [
            ("norm_forward", 0),
            ("norm_backward", SHORT_SHARED),
            ("norm_backward_long", LONG_SHARED),
            ("norm_add", 0),
        ];
        let kernels = Kernels::load_sharing(rank, &norm_text(&norm), &names)?;
        Ok(NormKernels { norm, kernels })
    }

    /// Normalisation that they compute.
    pub fn norm(&self) -> Norm {
        self.norm
    }

    /// y = norm(x) of so many rows and columns. `statistics` has 2 numbers for each row.
    ///
    /// # Errors
    /// [`Error::Usage`] for columns that are no multiple of 8, and what [`Step::launch`](counterflow::op::Step::launch) refuses.
    pub fn forward<'a>(
        &'a self,
        [rows, columns]: [usize; 2],
        x: impl Into<Argument<'a>>,
        (gamma, beta): (&'a Tensor<bf16>, Option<&'a Tensor<bf16>>),
        y: impl Into<Argument<'a>>,
        statistics: &'a mut Tensor<f32>,
    ) -> Result<(), Error> {
        eights(columns)?;
        let norm = self.norm;
        let call = self.kernels.call("norm_forward");
        let call = call.read::<bf16>("x", rows * columns, x);
        let call = call.read::<bf16>("γ", columns, gamma);
        let call = match beta {
            Some(beta) => call.read::<bf16>("β", columns, beta),
            None => call.absent(),
        };
        let has_beta = beta.is_some();
        let (to, of) = (2 + usize::from(has_beta), 3 + usize::from(has_beta));
        let call = call.written::<bf16>("y", rows * columns, y);
        let call = call.written::<f32>("statistics", 2 * rows, statistics);
        let twin = |running: &Running<'_>| {
            let x: Vec<bf16> = running.read(0, rows * columns)?;
            let gamma: Vec<bf16> = running.read(1, columns)?;
            let beta = has_beta.then(|| running.read(2, columns)).transpose()?;
            let (mut y, mut found) = (vec![bf16::ZERO; x.len()], Vec::with_capacity(2 * rows));
            for (x, y) in x.chunks_exact(columns).zip(y.chunks_exact_mut(columns)) {
                let Statistics { mean, rstd } = norm.forward(x, (&gamma, beta.as_deref()), y);
                found.extend([mean, rstd]);
            }
            running.write(to, &y)?;
            running.write(of, &found)
        };
        // SAFETY: a CTA for each row, which stays inside of it; the parameters are the kernel's.
        unsafe { call.number(columns).launch(rows * THREADS, twin).map(drop) }
    }

    /// The gradient of x, of that of y, plus what `residual` has, if it is there. Adds the gradients of γ and β over the rows. Without rows
    /// nothing changes.
    ///
    /// # Errors
    /// As [`NormKernels::forward`].
    pub fn backward<'a>(
        &'a self,
        [rows, columns]: [usize; 2],
        (x, dy): (&'a Tensor<bf16>, impl Into<Argument<'a>>),
        (gamma, of): (&'a Tensor<bf16>, &'a Tensor<f32>),
        residual: Option<&'a Tensor<bf16>>,
        dx: &'a mut Tensor<bf16>,
        (of_gamma, of_beta): (&'a mut Tensor<f32>, Option<&'a mut Tensor<f32>>),
    ) -> Result<(), Error> {
        eights(columns)?;
        if rows == 0 {
            return Ok(());
        }
        let norm = self.norm;
        let count = rows.min(SLABS);
        let mut slabs = self.kernels.lend([2 * count, columns])?;
        let call = self.kernels.call(match columns <= SHORT {
            true => "norm_backward",
            false => "norm_backward_long",
        });
        let call = call.read::<bf16>("x", rows * columns, x);
        let call = call.read::<bf16>("dy", rows * columns, dy);
        let call = call.read::<bf16>("γ", columns, gamma);
        let call = call.read::<f32>("statistics", 2 * rows, of);
        let call = match residual {
            Some(more) => call.read::<bf16>("residual", rows * columns, more),
            None => call.absent(),
        };
        let has_more = residual.is_some();
        let call = call.written::<bf16>("dx", rows * columns, dx);
        let call = call.written::<f32>("slabs", 2 * count * columns, &mut *slabs);
        let twin = |running: &Running<'_>| {
            let x: Vec<bf16> = running.read(0, rows * columns)?;
            let dy: Vec<bf16> = running.read(1, rows * columns)?;
            let gamma: Vec<bf16> = running.read(2, columns)?;
            let of = statistics(&running.read(3, 2 * rows)?);
            let more = has_more.then(|| running.read::<bf16>(4, rows * columns));
            let more = more.transpose()?;
            let mut dx = vec![bf16::ZERO; x.len()];
            for (row, of) in of.iter().enumerate() {
                let row = row * columns..(row + 1) * columns;
                let more = more.as_ref().map(|more| &more[row.clone()]);
                let (x, dy) = (&x[row.clone()], &dy[row.clone()]);
                norm.backward(x, dy, (&gamma, *of), more, &mut dx[row]);
            }
            let to = 4 + usize::from(has_more);
            running.write(to, &dx)?;
            running.write(to + 1, &Norm::slabs(&x, &dy, &of, columns))
        };
        let has_beta = of_beta.is_some();
        let call = call.number(rows).number(columns);
        let call = call.number(usize::from(has_beta));
        // SAFETY: a CTA for each slab, which stays inside of it and of its rows; the parameters are the kernel's.
        unsafe { call.launch_wide(count, SLABS, twin)? };

        let call = self.kernels.call("norm_add");
        let call = call.read::<f32>("slabs", 2 * count * columns, &*slabs);
        let call = call.written::<f32>("the gradient of γ", columns, of_gamma);
        let call = match of_beta {
            Some(of_beta) => call.written::<f32>("the gradient of β", columns, of_beta),
            None => call.absent(),
        };
        let twin = |running: &Running<'_>| {
            let slabs: Vec<f32> = running.read(0, 2 * count * columns)?;
            for part in 1..2 + usize::from(has_beta) {
                let mut gradient: Vec<f32> = running.read(part, columns)?;
                Norm::add(&slabs, part - 1, &mut gradient);
                running.write(part, &gradient)?;
            }
            Ok(())
        };
        let ctas = (1 + usize::from(has_beta)) * columns.div_ceil(32);
        let call = call.number(count).number(columns);
        // SAFETY: a CTA for each 32 columns of each gradient. It reads nothing before the launch before has ended.
        unsafe { call.launch_early(ctas, twin).map(drop) }
    }
}

/// Refuses rows that are no whole eights.
pub(crate) fn eights(columns: usize) -> Result<(), Error> {
    if columns > 0 && columns.is_multiple_of(8) {
        return Ok(());
    }
    Err(Error::Usage {
        what: format!("rows of {columns} elements"),
        legal: "give a multiple of 8: a row in memory is whole 16 bytes".into(),
    })
}
