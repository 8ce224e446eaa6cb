//! Activations, and their gradients, that come out as FP8 codes.
#![allow(unsafe_code)]

use super::launch::{Call, Kernels, THREADS};
use super::twin::{self, Activation};
use counterflow::op::{Argument, Running};
use counterflow::prelude::{bf16, e4m3, e5m2};
use counterflow::quantise::{self, DeviceHistory, Matrix, Recipe, Scaling};
use counterflow::rule::Fp8;
use counterflow::{Communicator, Dtype, Error, Tensor};
use std::sync::Arc;

/// The kernels of activations whose results are quantised by a recipe: CUDA.
pub fn coded_elements_text(recipe: &Recipe) -> String {
    format!("{}#include \"coded_elements.cuh\"\n", recipe.rules())
}

/// Rows and columns of a CTA's tile.
const SIDE: usize = 128;

/// Activations on a rank that quantise what they give, both ways, in the same kernel: codes and scale are those of a quantiser of the
/// activation's output, bit for bit, and elements of 16 bits are never in memory. For delayed scaling.
///
/// ```
/// use counterflow::prelude::{bf16, e4m3};
/// use counterflow::quantise::{Delayed, Quantiser, Recipe, ScaleRule, Scaling};
/// use counterflow::{Communicator, Dtype, rule::Fp8};
/// use counterflow_layers::{Activation, side::CodedElementKernels};
/// use std::sync::Arc;
///
/// let rank = Arc::new(Communicator::emulated(1)?.remove(0));
/// let recipe = Recipe::new(ScaleRule::transformer_engine(Fp8::E4M3), Scaling::Delayed, Dtype::Bf16).with_transposed();
/// let elements = CodedElementKernels::load(&rank, recipe)?;
/// let quantiser = Quantiser::build(&rank, recipe, [2, 16])?;
/// let mut history = quantiser.history(Delayed::transformer_engine(Fp8::E4M3))?;
/// let x = rank.zeros::<bf16>([2, 32])?;
/// x.write(&[bf16::from_f32(2.0); 2 * 32])?;
/// let (mut codes, mut turned, mut scale) = (rank.zeros::<e4m3>([2, 16])?, rank.zeros::<e4m3>([16, 16])?, rank.zeros::<f32>([1])?);
/// elements.forward(Activation::SwiGlu, [2, 16], &x, (&mut codes, &mut turned, &mut scale), &mut history)?;
/// assert_eq!(codes.read()?[0].to_f32(), 3.5); // of 2 · silu(2), 3.52
/// assert_eq!(turned.read()?[..3], [codes.read()?[0], codes.read()?[0], e4m3::ZERO]);
/// # Ok::<(), counterflow::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct CodedElementKernels {
    recipe: Recipe,
    kernels: Kernels,
}

impl CodedElementKernels {
    /// True if there are kernels for a recipe: from bf16 by delayed scaling, with a transposed copy.
    pub fn has(recipe: &Recipe) -> bool {
        let Recipe {
            scaling,
            from,
            transposed,
            each_row,
            ..
        } = *recipe;
        scaling == Scaling::Delayed && from == Dtype::Bf16 && transposed && !each_row
    }

    /// Compiles and loads them.
    ///
    /// # Errors
    /// [`Error::Usage`] for a recipe without kernels ([`CodedElementKernels::has`]); [`Error::Toolkit`] without a compiler; what the driver
    /// refuses.
    pub fn load(rank: &Arc<Communicator>, recipe: Recipe) -> Result<CodedElementKernels, Error> {
        if !CodedElementKernels::has(&recipe) {
            return Err(Error::Usage {
                what: format!("an activation with {recipe}"),
                legal: "give delayed scaling of bf16 with a transposed copy; for others, compute and quantise one after the other".into(),
            });
        }
        let names = [
            "gelu_delayed",
            "gelu_backward_delayed",
            "swiglu_delayed",
            "swiglu_backward_delayed",
        ];
        let kernels = Kernels::load(rank, &coded_elements_text(&recipe), &names)?;
        Ok(CodedElementKernels { recipe, kernels })
    }

    /// Recipe by which they quantise.
    pub fn recipe(&self) -> &Recipe {
        &self.recipe
    }

    /// Codes of activation(x), of so many rows and columns, by the history's scale, which is written to `scale`; and their transposed copy,
    /// whose rows are padded with zeros to a multiple of 16. The history sees the amax.
    ///
    /// # Errors
    /// [`Error::Usage`] for no rows, columns that are no multiple of 16, and a history of another type; what
    /// [`Step::launch`](counterflow::op::Step::launch) refuses.
    pub fn forward<'a>(
        &'a self,
        activation: Activation,
        [rows, columns]: [usize; 2],
        x: &'a Tensor<bf16>,
        to: To<'a, impl Into<Argument<'a>>, impl Into<Argument<'a>>>,
        history: &mut DeviceHistory,
    ) -> Result<(), Error> {
        let (outputs, inputs) = (rows * columns, activation.inputs(rows * columns));
        let call = self.kernels.call(match activation {
            Activation::Gelu => "gelu_delayed",
            Activation::SwiGlu => "swiglu_delayed",
        });
        let call = call.read::<bf16>("x", inputs, x);
        let make = |running: &Running<'_>| {
            let x: Vec<bf16> = running.read(0, inputs)?;
            let mut y = vec![bf16::ZERO; outputs];
            activation.forward(&x, columns, &mut y);
            Ok(y)
        };
        self.cast((call, 1), [rows, columns, 1], to, history, make)
    }

    /// The same of the gradient of x, of x and that of the output, which has so many rows and columns. Codes are of x's shape.
    ///
    /// # Errors
    /// As [`CodedElementKernels::forward`].
    pub fn backward<'a>(
        &'a self,
        activation: Activation,
        [rows, columns]: [usize; 2],
        [x, dy]: [&'a Tensor<bf16>; 2],
        to: To<'a, impl Into<Argument<'a>>, impl Into<Argument<'a>>>,
        history: &mut DeviceHistory,
    ) -> Result<(), Error> {
        let (outputs, inputs) = (rows * columns, activation.inputs(rows * columns));
        let (kernel, halves) = match activation {
            Activation::Gelu => ("gelu_backward_delayed", 1),
            Activation::SwiGlu => ("swiglu_backward_delayed", 2),
        };
        let call = self.kernels.call(kernel);
        let call = call.read::<bf16>("x", inputs, x);
        let call = call.read::<bf16>("dy", outputs, dy);
        let make = |running: &Running<'_>| {
            let x: Vec<bf16> = running.read(0, inputs)?;
            let dy: Vec<bf16> = running.read(1, outputs)?;
            let mut dx = vec![bf16::ZERO; inputs];
            activation.backward(&x, &dy, columns, &mut dx);
            Ok(dx)
        };
        self.cast((call, 2), [rows, columns, halves], to, history, make)
    }

    /// Enqueues a kernel with so many inputs, whose results are matrices of so many columns side by side. `make` is its twin, without the
    /// codes.
    fn cast<'a>(
        &self,
        (call, inputs): (Call<'a>, usize),
        [rows, columns, halves]: [usize; 3],
        (codes, turned, scale): To<'a, impl Into<Argument<'a>>, impl Into<Argument<'a>>>,
        history: &mut DeviceHistory,
        make: impl FnOnce(&Running<'_>) -> Result<Vec<bf16>, Error>,
    ) -> Result<(), Error> {
        if rows == 0 || columns == 0 || !columns.is_multiple_of(16) {
            return Err(Error::Usage {
                what: format!("{rows} rows of {columns} codes"),
                legal: "give a row or more, of a multiple of 16".into(),
            });
        }
        let rule = self.recipe.rule;
        if history.recipe().to != rule.to {
            return Err(Error::Usage {
                what: format!(
                    "a history for {:?} of codes of {:?}",
                    history.recipe().to,
                    rule.to
                ),
                legal: "give a history of the recipe that the kernels were loaded for".into(),
            });
        }
        let [by, stored, mut amax] = [history.multiplier(), history.stored(), history.amax()];
        let (width, pitch) = (columns * halves, rows.next_multiple_of(16));
        // The call's memory is borrowed for less time than what it was given before.
        let call: Call<'_> = call;
        let call = call.read::<f32>("multiplier", 1, &by);
        let call = call.read::<f32>("stored scale", 1, &stored);
        let (codes, turned): (Argument<'_>, Argument<'_>) = (codes.into(), turned.into());
        let (each, on_side) = (rows * width, width * pitch);
        let call = match rule.to {
            Fp8::E4M3 => call.written::<e4m3>("codes", each, codes).written::<e4m3>(
                "transposed",
                on_side,
                turned,
            ),
            Fp8::E5M2 => call.written::<e5m2>("codes", each, codes).written::<e5m2>(
                "transposed",
                on_side,
                turned,
            ),
        };
        let call = call.written::<f32>("scale", 1, scale);
        let call = call.written::<f32>("amax", 1, &mut amax);
        let call = call.number(rows).number(columns).number(pitch);
        let twin = |running: &Running<'_>| {
            let made: Vec<f32> = make(running)?.into_iter().map(bf16::to_f32).collect();
            let made = Matrix::new(&made, [rows, width], Dtype::Bf16);
            let one = |part| Ok::<f32, Error>(running.read::<f32>(part, 1)?[0]);
            let codes = quantise::twin::cast(&made, rule.to, one(inputs)?);
            let turned = twin::transposed(&codes, [rows, width], pitch);
            for (part, codes) in [(inputs + 2, codes), (inputs + 3, turned)] {
                let codes = codes.into_iter();
                match rule.to {
                    Fp8::E4M3 => {
                        running.write(part, &codes.map(e4m3::from_bits).collect::<Vec<_>>())?
                    }
                    Fp8::E5M2 => {
                        running.write(part, &codes.map(e5m2::from_bits).collect::<Vec<_>>())?
                    }
                }
            }
            running.write(inputs + 4, &[one(inputs + 1)?])?;
            let amax = quantise::twin::amax(&made, &rule);
            running.write(inputs + 5, &[one(inputs + 5)?.max(amax)])
        };
        let ctas = rows.div_ceil(SIDE) * columns.div_ceil(SIDE) * halves;
        // SAFETY: a CTA for each tile of each half, which stays inside of it; the parameters are the kernel's.
        unsafe { call.launch(ctas * THREADS, twin).map(drop) }
    }
}

/// Codes, their transposed copy and their one scale.
type To<'a, C, T> = (C, T, &'a mut Tensor<f32>);
