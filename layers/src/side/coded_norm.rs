//! Normalisation of rows that come out as FP8 codes.
#![allow(unsafe_code)]

use super::launch::{Kernels, THREADS};
use super::norm::norm_lines;
use super::twin::{Norm, Statistics};
use counterflow::op::{Argument, Running};
use counterflow::prelude::{bf16, e4m3};
use counterflow::quantise::{DeviceHistory, Granularity, Matrix, Recipe, Scaling, twin};
use counterflow::rule::Fp8;
use counterflow::{Communicator, Dtype, Error, Tensor};
use std::sync::Arc;

/// The kernels of a norm whose rows are quantised by a recipe: CUDA.
pub fn coded_norm_text(norm: &Norm, recipe: &Recipe) -> String {
    let (norm, rule) = (norm_lines(norm), recipe.rules());
    format!("{norm}{rule}#include \"coded_norm.cuh\"\n")
}

/// A norm on a rank that quantises what it gives in the same kernel: codes and scales are those of a quantiser of the norm's output, bit for
/// bit, and rows of 16 bits are never in memory. For recipes whose scales need no amax of other rows.
///
/// ```
/// use counterflow::prelude::{bf16, e4m3};
/// use counterflow::quantise::{Granularity, Recipe, ScaleRule, Scaling};
/// use counterflow::{Communicator, Dtype, rule::Fp8};
/// use counterflow_layers::{Norm, Normalization, side::CodedNormKernels};
/// use std::sync::Arc;
///
/// let rank = Arc::new(Communicator::emulated(1)?.remove(0));
/// let blocks = Scaling::Current(Granularity::BLOCK_1X128);
/// let recipe = Recipe::new(ScaleRule::transformer_engine(Fp8::E4M3), blocks, Dtype::Bf16);
/// let norm = CodedNormKernels::load(&rank, Norm::new(Normalization::RmsNorm), recipe)?;
/// let (x, gamma) = (rank.zeros::<bf16>([4, 16])?, rank.zeros::<bf16>([1, 16])?);
/// x.write(&[bf16::from_f32(2.0); 4 * 16])?;
/// gamma.write(&[bf16::ONE; 16])?;
/// let (mut codes, mut scales) = (rank.zeros::<e4m3>([4, 16])?, rank.zeros::<f32>([1, 4])?);
/// let mut statistics = rank.zeros::<f32>([4, 2])?;
/// norm.in_blocks([4, 16], &x, (&gamma, None), &mut codes, (&mut scales, 4), &mut statistics)?;
/// assert_eq!(codes.read()?[0].to_f32() * scales.read()?[0], 1.0);
/// # Ok::<(), counterflow::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct CodedNormKernels {
    norm: Norm,
    recipe: Recipe,
    kernels: Kernels,
}

impl CodedNormKernels {
    /// True if there are kernels for a recipe: from bf16 to e4m3, by delayed scaling or with scales of 1×128, without a transposed copy.
    pub fn has(recipe: &Recipe) -> bool {
        let by_row = match recipe.scaling {
            Scaling::Delayed | Scaling::Current(Granularity::BLOCK_1X128) => true,
            Scaling::Current(
                Granularity::PerTensor | Granularity::PerRow | Granularity::Block(_),
            ) => false,
        };
        let plain = !recipe.transposed && !recipe.each_row;
        by_row && plain && recipe.from == Dtype::Bf16 && recipe.rule.to == Fp8::E4M3
    }

    /// Compiles and loads them.
    ///
    /// # Errors
    /// [`Error::Usage`] for a recipe without kernels ([`CodedNormKernels::has`]); [`Error::Toolkit`] without a compiler; what the driver
    /// refuses.
    pub fn load(
        rank: &Arc<Communicator>,
        norm: Norm,
        recipe: Recipe,
    ) -> Result<CodedNormKernels, Error> {
        if !CodedNormKernels::has(&recipe) {
            return Err(Error::Usage {
                what: format!("a norm with {recipe}"),
                legal: "give delayed scaling or scales of 1×128, of bf16 to e4m3; for others, norm and quantise one after the other".into(),
            });
        }
        let names = ["norm_delayed", "norm_one_by_128"];
        let kernels = Kernels::load(rank, &coded_norm_text(&norm, &recipe), &names)?;
        Ok(CodedNormKernels {
            norm,
            recipe,
            kernels,
        })
    }

    /// Normalisation that they compute.
    pub fn norm(&self) -> Norm {
        self.norm
    }

    /// Recipe by which they quantise.
    pub fn recipe(&self) -> &Recipe {
        &self.recipe
    }

    /// Codes of norm(x) by the history's scale, which is written to `scale`; the history sees the amax. `statistics` has 2 numbers for each
    /// row.
    ///
    /// # Errors
    /// [`Error::Usage`] for a recipe of blocks, no rows, and columns that are no multiple of 16; what
    /// [`Step::launch`](counterflow::op::Step::launch) refuses.
    pub fn delayed<'a>(
        &self,
        shape: [usize; 2],
        x: impl Into<Argument<'a>>,
        affine: (&'a Tensor<bf16>, Option<&'a Tensor<bf16>>),
        (codes, scale): (impl Into<Argument<'a>>, &'a mut Tensor<f32>),
        history: &mut DeviceHistory,
        statistics: &'a mut Tensor<f32>,
    ) -> Result<(), Error> {
        let to = (codes, None, scale);
        self.delayed_twice(shape, x, affine, to, history, statistics)
    }

    /// The same codes to a second memory, too.
    pub(crate) fn delayed_twice<'a>(
        &self,
        shape: [usize; 2],
        x: impl Into<Argument<'a>>,
        affine: (&'a Tensor<bf16>, Option<&'a Tensor<bf16>>),
        (codes, kept, scale): (
            impl Into<Argument<'a>>,
            Option<&'a mut Tensor<e4m3>>,
            &'a mut Tensor<f32>,
        ),
        history: &mut DeviceHistory,
        statistics: &'a mut Tensor<f32>,
    ) -> Result<(), Error> {
        let [rows, columns] = self.fits(shape, Scaling::Delayed)?;
        let (x, codes): (Argument<'_>, Argument<'_>) = (x.into(), codes.into());
        let [by, stored, mut amax] = [history.multiplier(), history.stored(), history.amax()];
        let (gamma, beta) = affine;
        let call = self.kernels.call("norm_delayed");
        let call = call.read::<bf16>("x", rows * columns, x);
        let call = call.read::<bf16>("γ", columns, gamma);
        let call = match beta {
            Some(beta) => call.read::<bf16>("β", columns, beta),
            None => call.absent(),
        };
        let call = call.read::<f32>("multiplier", 1, &by);
        let call = call.read::<f32>("stored scale", 1, &stored);
        let call = call.written::<e4m3>("codes", rows * columns, codes);
        let call = call.written::<f32>("scale", 1, scale);
        let call = call.written::<f32>("amax", 1, &mut amax);
        let call = call.written::<f32>("statistics", 2 * rows, statistics);
        let is_kept = kept.is_some();
        let call = match kept {
            Some(kept) => call.written::<e4m3>("kept codes", rows * columns, kept),
            None => call.absent(),
        };
        let to = 2 + usize::from(beta.is_some());
        let twin = |running: &Running<'_>| {
            let (y, found) = self.rows(running, shape, beta.is_some())?;
            let one = |part| Ok::<f32, Error>(running.read::<f32>(part, 1)?[0]);
            let y = Matrix::new(&y, shape, Dtype::Bf16);
            let codes = twin::cast(&y, self.recipe.rule.to, one(to)?);
            if is_kept {
                write_codes(running, to + 6, codes.clone())?;
            }
            write_codes(running, to + 2, codes)?;
            running.write(to + 3, &[one(to + 1)?])?;
            let amax = twin::amax(&y, &self.recipe.rule);
            running.write(to + 4, &[one(to + 4)?.max(amax)])?;
            running.write(to + 5, &found)
        };
        // SAFETY: a CTA for each row, which stays inside of it; the parameters are the kernel's.
        unsafe { call.number(columns).launch(rows * THREADS, twin).map(drop) }
    }

    /// Codes of norm(x) with a scale for each 128 columns of a row. Scales of 128 columns lie behind each other, in lines of so many numbers,
    /// and those behind the rows are 0: a plane as products read it.
    ///
    /// # Errors
    /// [`Error::Usage`] for another recipe, no rows, lines that are shorter than the rows, and columns that are no multiple of 16; what
    /// [`Step::launch`](counterflow::op::Step::launch) refuses.
    pub fn in_blocks<'a>(
        &self,
        shape: [usize; 2],
        x: impl Into<Argument<'a>>,
        affine: (&'a Tensor<bf16>, Option<&'a Tensor<bf16>>),
        codes: impl Into<Argument<'a>>,
        (scales, line): (impl Into<Argument<'a>>, usize),
        statistics: &'a mut Tensor<f32>,
    ) -> Result<(), Error> {
        let blocks = Scaling::Current(Granularity::BLOCK_1X128);
        let [rows, columns] = self.fits(shape, blocks)?;
        if line < rows {
            return Err(Error::Usage {
                what: format!("lines of {line} scales for {rows} rows"),
                legal: "give lines of as many as there are rows, or more".into(),
            });
        }
        let held = columns.div_ceil(128) * line;
        let (x, codes): (Argument<'_>, Argument<'_>) = (x.into(), codes.into());
        let scales: Argument<'_> = scales.into();
        let (gamma, beta) = affine;
        let call = self.kernels.call("norm_one_by_128");
        let call = call.read::<bf16>("x", rows * columns, x);
        let call = call.read::<bf16>("γ", columns, gamma);
        let call = match beta {
            Some(beta) => call.read::<bf16>("β", columns, beta),
            None => call.absent(),
        };
        let call = call.written::<e4m3>("codes", rows * columns, codes);
        let call = call.written_by_elements::<f32>("scales", held, scales);
        let call = call.written::<f32>("statistics", 2 * rows, statistics);
        let to = 2 + usize::from(beta.is_some());
        let twin = |running: &Running<'_>| {
            let (y, found) = self.rows(running, shape, beta.is_some())?;
            let y = Matrix::new(&y, shape, Dtype::Bf16);
            let coded = twin::quantise(&y, &self.recipe.rule, Granularity::BLOCK_1X128);
            write_codes(running, to, coded.codes)?;
            let mut plane = vec![0f32; held];
            let across = columns.div_ceil(128);
            for (at, scale) in coded.scales.into_iter().enumerate() {
                plane[at % across * line + at / across] = scale;
            }
            running.write(to + 1, &plane)?;
            running.write(to + 2, &found)
        };
        let call = call.number(columns).number(rows).number(line);
        // SAFETY: as in `delayed`; the last row's CTA writes the scales behind it, up to the last line's end.
        unsafe { call.launch(rows * THREADS, twin).map(drop) }
    }

    fn fits(&self, [rows, columns]: [usize; 2], scaling: Scaling) -> Result<[usize; 2], Error> {
        let refused = |what: String, legal: &str| {
            let legal = legal.to_owned();
            Err(Error::Usage { what, legal })
        };
        if self.recipe.scaling != scaling {
            let what = format!("{} of a norm with {}", scaling.name(), self.recipe);
            return refused(what, "load one of that recipe");
        }
        if rows == 0 || columns == 0 || !columns.is_multiple_of(16) {
            let what = format!("{rows} rows of {columns} codes");
            return refused(what, "give a row or more, of a multiple of 16");
        }
        Ok([rows, columns])
    }

    /// What the norm gives, and its statistics.
    fn rows(
        &self,
        running: &Running<'_>,
        [rows, columns]: [usize; 2],
        has_beta: bool,
    ) -> Result<(Vec<f32>, Vec<f32>), Error> {
        let x: Vec<bf16> = running.read(0, rows * columns)?;
        let gamma: Vec<bf16> = running.read(1, columns)?;
        let beta = has_beta.then(|| running.read(2, columns)).transpose()?;
        let (mut all, mut found) = (Vec::with_capacity(x.len()), Vec::with_capacity(2 * rows));
        let mut y = vec![bf16::ZERO; columns];
        for x in x.chunks_exact(columns) {
            let affine = (&gamma[..], beta.as_deref());
            let Statistics { mean, rstd } = self.norm.forward(x, affine, &mut y);
            found.extend([mean, rstd]);
            all.extend(y.iter().map(|y| y.to_f32()));
        }
        Ok((all, found))
    }
}

fn write_codes(running: &Running<'_>, to: usize, codes: Vec<u8>) -> Result<(), Error> {
    let codes: Vec<e4m3> = codes.into_iter().map(e4m3::from_bits).collect();
    running.write(to, &codes)
}
