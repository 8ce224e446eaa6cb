//! Quantisers on a rank, and the histories that they go on with.

use crate::histories::{DeviceHistory, Memory};
use crate::history::Delayed;
use crate::job::sizes;
use crate::kernels::{Recipe, Scaling};
use crate::launch::{BEFORE_CTAS, Kernels, MOST_CTAS};
use counterflow_codegen::dtype::Dtype;
use counterflow_codegen::encoding::{Granularity, ScaleBlock};
use counterflow_runtime::op::{Caller, Code, QuantTensor};
use counterflow_runtime::{Communicator, Error, Pending, Tensor};
use std::ops::Deref;
use std::sync::Arc;

/// A recipe on a rank, for matrices up to a size. Emulated ranks run the twin.
///
/// ```
/// use counterflow_codegen::dtype::Dtype;
/// use counterflow_quantise::{Fp8, Granularity, Plane, Quantiser, Recipe, RowsLast, ScaleRule, Scaling};
/// use counterflow_runtime::Communicator;
/// use float8::F8E4M3;
/// use half::bf16;
///
/// let rank = &Communicator::emulated(1)?[0];
/// let rule = ScaleRule::transformer_engine(Fp8::E4M3).powers_of_two();
/// let recipe = Recipe::new(rule, Scaling::Current(Granularity::BLOCK_1X128), Dtype::Bf16).with_transposed();
/// let quantiser = Quantiser::build(rank, recipe, [8, 256])?;
///
/// let x = rank.zeros::<bf16>([8, 256])?;
/// x.write(&[bf16::from_f32(3.0); 8 * 256])?;
/// let mut quantised = quantiser.zeros::<F8E4M3>([8, 256])?; // launches of products take it as it is
/// let mut transposed = quantiser.zeros::<F8E4M3>([256, 16])?; // 8 columns, padded to 16
/// let changed = rank.zeros::<u32>([1])?; // not 0: nothing is done
/// let launch = quantiser.on(rank, [8, 256]).x(&x).to(&mut quantised).transposed_to(&mut transposed);
/// launch.skip(&changed).launch()?.wait()?;
/// let scales = Plane::<RowsLast>::from_memory([8, 256], quantised.scales().read()?).expect("its words");
/// assert_eq!((scales.at([7, 1]), quantised.codes().read()?[0].to_f32()), (1.0 / 128.0, 384.0));
/// # Ok::<(), counterflow_runtime::Error>(())
/// ```
///
/// A whole tensor can be measured first, its amax be reduced by a collective of the caller's, and cast then:
///
/// ```
/// # use counterflow_codegen::dtype::Dtype;
/// # use counterflow_quantise::{Fp8, Granularity, Quantiser, Recipe, ScaleRule, Scaling};
/// # use counterflow_runtime::Communicator;
/// # use {float8::F8E5M2, half::bf16};
/// # let rank = &Communicator::emulated(1)?[0];
/// let recipe = Recipe::new(ScaleRule::transformer_engine(Fp8::E5M2), Scaling::Current(Granularity::PerTensor), Dtype::Bf16);
/// let quantiser = Quantiser::build(rank, recipe, [4, 16])?;
/// # let (x, mut codes, mut scale) = (rank.zeros::<bf16>([4, 16])?, rank.zeros::<F8E5M2>([4, 16])?, rank.zeros::<f32>([1])?);
/// quantiser.on(rank, [4, 16]).x(&x).measure()?;
/// quantiser.amax().write(&[57344.0 * 2.0])?; // of all ranks
/// quantiser.on(rank, [4, 16]).x(&x).codes(&mut codes).scales(&mut scale).cast()?.wait()?;
/// assert_eq!(scale.read()?, [2.0]);
/// # Ok::<(), counterflow_runtime::Error>(())
/// ```
#[derive(Debug)]
pub struct Quantiser<'r> {
    pub(crate) rank: Rank<'r>,
    pub(crate) recipe: Recipe,
    /// None: the rank is emulated.
    pub(crate) kernels: Option<Arc<Kernels>>,
    pub(crate) most: [usize; 2],
    /// Of whole tensors the amax, the multiplier, the stored scale if rows have it, and the amaxes of CTAs; of rows the
    /// amaxes of rows and columns.
    pub(crate) state: Tensor<f32>,
}

/// The rank of a quantiser.
#[derive(Debug)]
pub(crate) enum Rank<'r> {
    Lent(&'r Communicator),
    Shared(Arc<Communicator>),
}

impl Deref for Rank<'_> {
    type Target = Communicator;

    fn deref(&self) -> &Communicator {
        match self {
            Rank::Lent(rank) => rank,
            Rank::Shared(rank) => rank,
        }
    }
}

impl Quantiser<'static> {
    /// As [`Quantiser::build`], for a value that outlives the borrow of its rank: it keeps the communicator.
    ///
    /// ```
    /// # use counterflow_codegen::dtype::Dtype;
    /// # use counterflow_quantise::{Fp8, Granularity, Quantiser, Recipe, ScaleRule, Scaling};
    /// # use counterflow_runtime::{Communicator, Error};
    /// # use std::sync::Arc;
    /// struct Layer {
    ///     quantiser: Quantiser<'static>,
    /// }
    /// # fn layer() -> Result<Layer, Error> {
    /// # let recipe = Recipe::new(ScaleRule::deep_gemm(), Scaling::Current(Granularity::BLOCK_1X128), Dtype::Bf16);
    /// let rank = Arc::new(Communicator::emulated(1)?.remove(0));
    /// Ok(Layer { quantiser: Quantiser::shared(&rank, recipe, [8, 256])? })
    /// # }
    /// # layer()?;
    /// # Ok::<(), Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Quantiser::build`].
    pub fn shared(
        rank: &Arc<Communicator>,
        recipe: Recipe,
        most: [usize; 2],
    ) -> Result<Quantiser<'static>, Error> {
        Quantiser::of_rank(Rank::Shared(rank.clone()), recipe, most)
    }
}

impl<'r> Quantiser<'r> {
    /// Compiles and loads what a recipe needs for up to so many rows and columns.
    ///
    /// # Errors
    /// [`Error::Usage`] for a type that is FP8 already, an eps below 0, blocks that are not among [`ScaleBlock::ALL`], or several scales of which each would be in each row;
    /// [`Error::Toolkit`] without a compiler; what the driver refuses.
    pub fn build(
        rank: &'r Communicator,
        recipe: Recipe,
        most: [usize; 2],
    ) -> Result<Quantiser<'r>, Error> {
        Quantiser::of_rank(Rank::Lent(rank), recipe, most)
    }

    fn of_rank(rank: Rank<'r>, recipe: Recipe, most: [usize; 2]) -> Result<Quantiser<'r>, Error> {
        if recipe.from.is_fp8() || !(0.0..f32::INFINITY).contains(&recipe.rule.eps) {
            return Err(Error::Usage {
                what: format!("{recipe} with an eps of {}", recipe.rule.eps),
                legal: "quantise bf16, f16 or f32, with a finite eps of 0 or more".into(),
            });
        }
        if let Scaling::Current(Granularity::Block(block)) = recipe.scaling
            && !ScaleBlock::ALL.contains(&block)
        {
            let all = ScaleBlock::ALL.map(|block| block.to_string());
            return Err(Error::Usage {
                what: format!("scales of {block}"),
                legal: format!("a quantiser makes scales of {}", all.join(" or ")),
            });
        }
        let one = matches!(
            recipe.scaling,
            Scaling::Current(Granularity::PerTensor) | Scaling::Delayed
        );
        if recipe.each_row && !one {
            return Err(Error::Usage {
                what: recipe.to_string(),
                legal: "only the one scale of a whole tensor is written to each row".into(),
            });
        }
        sizes(most)?;
        let kernels = Kernels::load(&rank, &recipe)?.map(Arc::new);
        let words = match recipe.scaling {
            Scaling::Current(Granularity::PerTensor) => BEFORE_CTAS + MOST_CTAS,
            Scaling::Current(Granularity::PerRow) if recipe.transposed => most[0] + most[1],
            Scaling::Current(_) | Scaling::Delayed => 1,
        };
        Ok(Quantiser {
            state: rank.zeros([words.max(1), 1])?,
            rank,
            recipe,
            kernels,
            most,
        })
    }

    /// Codes and scales of zeros for a matrix of that shape: for [`Quantise::to`](crate::Quantise::to), and then for launches.
    ///
    /// # Errors
    /// [`Error::Usage`] for codes of another type than the recipe's; when the GPU's memory is full.
    pub fn zeros<T: Code>(&self, shape: [usize; 2]) -> Result<QuantTensor<Tensor<T>>, Error> {
        let to = self.recipe.rule.to.dtype();
        if T::TENSOR != Some(to) {
            return Err(Error::Usage {
                what: format!(
                    "codes of {} of a quantiser to {to}",
                    T::TENSOR.map_or("another type", Dtype::name)
                ),
                legal: "name the type that its rule is of".into(),
            });
        }
        let granularity = self.recipe.granularity();
        let scales = self.rank.zeros(granularity.scales(shape))?;
        QuantTensor::new(self.rank.zeros(shape)?, scales, granularity)
    }

    /// Recipe that it follows.
    pub fn recipe(&self) -> &Recipe {
        &self.recipe
    }

    /// The amax that [`Quantise::measure`](crate::Quantise::measure) left behind: one number, for a collective of the caller's.
    pub fn amax(&self) -> Tensor<f32> {
        let state = self.state.rows(0..1);
        state.unwrap_or_else(|_| self.state.clone())
    }

    /// A history without amaxes, whose scale is 1, for delayed scaling.
    ///
    /// # Errors
    /// [`Error::Usage`] if it would remember nothing; what the driver refuses.
    pub fn history(&self, recipe: Delayed) -> Result<DeviceHistory, Error> {
        if recipe.length == 0 || recipe.to != self.recipe.rule.to {
            return Err(Error::Usage {
                what: format!("a history of {} amaxes for {:?}", recipe.length, recipe.to),
                legal: format!("one amax or more, for {:?}", self.recipe.rule.to),
            });
        }
        let memory = Memory::new(&self.rank, recipe.length, 1)?;
        memory.history(recipe, 0)
    }

    /// Ends a step of delayed scaling: the scale of the next one. To have it of all ranks, reduce [`DeviceHistory::amax`]
    /// before.
    ///
    /// # Errors
    /// As [`Quantise::launch`](crate::Quantise::launch).
    pub fn next_step<'a>(
        &'a self,
        caller: impl Into<Caller<'a>>,
        history: &'a mut DeviceHistory,
    ) -> Result<Pending, Error> {
        let (recipe, kernels) = (history.recipe, self.kernels.as_ref());
        let kernel = kernels.map(|kernels| kernels.next_step());
        let step = self.rank.step(caller);
        history.memory.next_step(step, kernel, (&[recipe], None))
    }
}
