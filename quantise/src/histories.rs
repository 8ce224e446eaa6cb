//! Histories on a rank's GPU: alone, or many that end their steps together.

use crate::history::{Delayed, History};
use crate::launch::{self, NextStep};
use counterflow_codegen::rule::{Fp8, Scale};
use counterflow_runtime::op::{Caller, Part, Step};
use counterflow_runtime::{Communicator, Error, Pending, Tensor, UserBuffer};
use std::sync::Arc;

/// Memory of histories of one length, each of them in a row.
#[derive(Clone, Debug)]
pub(crate) struct Memory {
    /// Multiplier and stored scale.
    scales: Tensor<f32>,
    /// Of the current step.
    amaxes: Tensor<f32>,
    /// Amaxes of the steps before, the latest last.
    pasts: Tensor<f32>,
    /// Numbers that amaxes become.
    targets: Tensor<f32>,
}

impl Memory {
    /// For so many histories of that length, without amaxes. Scales are 1.
    pub fn new(rank: &Communicator, length: usize, most: usize) -> Result<Memory, Error> {
        Memory::with_amaxes(rank, length, rank.zeros([most, 1])?)
    }

    /// The same with amaxes in memory that there is.
    fn with_amaxes(
        rank: &Communicator,
        length: usize,
        amaxes: Tensor<f32>,
    ) -> Result<Memory, Error> {
        let (most, past) = (amaxes.len(), length - 1);
        let all = rank.zeros::<f32>([most * (3 + past), 1])?;
        let part = |first: usize, columns: usize| {
            let rows = all.rows(first * most..(first + columns) * most)?;
            rows.shaped([most, columns])
        };
        let memory = Memory {
            scales: part(0, 2)?,
            amaxes: amaxes.shaped([most, 1])?,
            targets: part(2, 1)?,
            pasts: part(3, past)?,
        };
        memory.scales.write(&vec![1.0; 2 * most])?;
        Ok(memory)
    }

    /// The history in that row, by a recipe of that length.
    pub fn history(&self, recipe: Delayed, row: usize) -> Result<DeviceHistory, Error> {
        let row = row..row + 1;
        let memory = Memory {
            scales: self.scales.rows(row.clone())?,
            amaxes: self.amaxes.rows(row.clone())?,
            pasts: self.pasts.rows(row.clone())?,
            targets: self.targets.rows(row)?,
        };
        memory.targets.write(&[recipe.target()])?;
        Ok(DeviceHistory { recipe, memory })
    }

    /// Ends the step of the first of these histories, by those recipes. `of_ranks` has a row of amaxes of each rank.
    #[allow(unsafe_code, reason = "a launch of a kernel of this crate's")]
    pub fn next_step<'a>(
        &'a mut self,
        step: Step<'a>,
        kernel: Option<&NextStep>,
        (recipes, of_ranks): (&[Delayed], Option<&'a UserBuffer<f32>>),
    ) -> Result<Pending, Error> {
        let (count, past) = (recipes.len(), self.pasts.shape()[1]);
        let part = |of_each: usize| Part::of::<f32>(count * of_each).by_elements();
        let step = step
            .part(part(2).written("scales"), &mut self.scales)
            .part(part(1).written("amaxes"), &mut self.amaxes)
            .part(part(past).written("amaxes before"), &mut self.pasts)
            .part(part(1).read("targets"), &self.targets);
        let (step, shape) = match of_ranks {
            None => (step, None),
            Some(all) => {
                let columns = all.shape().last().copied().unwrap_or(0);
                if columns < count {
                    return Err(Error::Usage {
                        what: format!("{columns} amaxes of each rank, for {count} histories"),
                        legal: "give one or more for each history".into(),
                    });
                }
                let rows = all.len() / columns.max(1);
                let part = Part::of::<f32>(all.len()).read("amaxes of ranks");
                (step.part(part, all), Some([rows, columns]))
            }
        };
        // SAFETY: the parts are the memory of so many histories, then the ranks' amaxes.
        unsafe { launch::next_step(step, kernel, recipes, shape) }
    }
}

/// Histories by one recipe, each of a tensor of its own. Their amaxes are one behind the other, so that ranks exchange all of them at once,
/// and one kernel makes the next scales of all.
///
/// ```
/// use counterflow_quantise::{Delayed, Fp8, Histories, Quantiser, Recipe, ScaleRule, Scaling};
/// # use counterflow_codegen::dtype::Dtype;
/// # use counterflow_runtime::Communicator;
/// # use {float8::F8E4M3, half::bf16};
/// # use std::sync::Arc;
///
/// let rank = Arc::new(Communicator::emulated(1)?.remove(0));
/// let mut histories = Histories::new(&rank, Delayed::transformer_engine(Fp8::E4M3), 2)?;
/// let recipe = Recipe::new(ScaleRule::transformer_engine(Fp8::E4M3), Scaling::Delayed, Dtype::Bf16);
/// let quantiser = Quantiser::build(&rank, recipe, [1, 16])?;
/// let mut of_x = histories.add(Fp8::E4M3)?.expect("the first of two");
/// let of_gradient = histories.add(Fp8::E5M2)?.expect("the second");
/// assert!(histories.add(Fp8::E4M3)?.is_none());
///
/// let (x, mut codes, mut scale) = (rank.zeros::<bf16>([1, 16])?, rank.zeros::<F8E4M3>([1, 16])?, rank.zeros::<f32>([1])?);
/// x.write(&[bf16::from_f32(7.0); 16])?;
/// let launch = quantiser.on(&*rank, [1, 16]).x(&x).codes(&mut codes).scales(&mut scale);
/// launch.history(&mut of_x).launch()?;
/// assert_eq!(histories.amaxes().read()?, [7.0, 0.0]);
/// histories.next_step(&*rank, None)?;
/// assert_eq!((of_x.scale()?.multiplier, of_gradient.scale()?.multiplier), (64.0, 1.0));
/// # Ok::<(), counterflow_runtime::Error>(())
/// ```
#[derive(Debug)]
pub struct Histories {
    rank: Arc<Communicator>,
    recipe: Delayed,
    /// None: the rank is emulated.
    kernel: Option<NextStep>,
    memory: Memory,
    most: usize,
    /// Of those that there are.
    recipes: Vec<Delayed>,
}

impl Histories {
    /// Room for so many, by a recipe whose type of codes does not count.
    ///
    /// # Errors
    /// [`Error::Usage`] for a recipe that remembers nothing; [`Error::Toolkit`] without a compiler; what the driver refuses.
    pub fn new(rank: &Arc<Communicator>, recipe: Delayed, most: usize) -> Result<Histories, Error> {
        let amaxes = rank.zeros([most.max(1), 1])?;
        Histories::with_amaxes(rank, recipe, amaxes.rows(0..most)?)
    }

    /// The same with amaxes in memory of the caller's, as many as there can be, which are 0.
    ///
    /// # Errors
    /// As [`Histories::new`].
    pub fn with_amaxes(
        rank: &Arc<Communicator>,
        recipe: Delayed,
        amaxes: Tensor<f32>,
    ) -> Result<Histories, Error> {
        let most = amaxes.len();
        if recipe.length == 0 || most == 0 {
            return Err(Error::Usage {
                what: format!("{most} histories of {} amaxes", recipe.length),
                legal: "make one or more, of one amax or more".into(),
            });
        }
        Ok(Histories {
            kernel: NextStep::load(rank)?,
            memory: Memory::with_amaxes(rank, recipe.length, amaxes)?,
            rank: rank.clone(),
            recipe,
            most,
            recipes: Vec::new(),
        })
    }

    /// The recipe of all of them.
    pub fn recipe(&self) -> Delayed {
        self.recipe
    }

    /// One more, without amaxes, for codes of that type. None: there is no room.
    ///
    /// # Errors
    /// What the driver refuses.
    pub fn add(&mut self, to: Fp8) -> Result<Option<DeviceHistory>, Error> {
        if self.recipes.len() == self.most {
            return Ok(None);
        }
        let recipe = Delayed { to, ..self.recipe };
        let history = self.memory.history(recipe, self.recipes.len())?;
        self.recipes.push(recipe);
        Ok(Some(history))
    }

    /// The amaxes of the current step: a row of one number for each that there is, in the order in which they were added.
    pub fn amaxes(&self) -> Tensor<f32> {
        let amaxes = &self.memory.amaxes;
        let row = amaxes.shaped([1, self.recipes.len()]);
        row.unwrap_or_else(|_| amaxes.clone())
    }

    /// Ends the step of all of them: the scales of the next one. With `of_ranks` each amax is the largest of all ranks': a row of each rank
    /// begins with what [`Histories::amaxes`] has there. Amaxes that are no number are not seen then.
    ///
    /// # Errors
    /// [`Error::Usage`] for rows with fewer numbers than there are histories; as [`Quantise::launch`](crate::Quantise::launch).
    pub fn next_step<'a>(
        &'a mut self,
        caller: impl Into<Caller<'a>>,
        of_ranks: Option<&'a UserBuffer<f32>>,
    ) -> Result<Pending, Error> {
        let (step, kernel) = (self.rank.step(caller), self.kernel.as_ref());
        self.memory
            .next_step(step, kernel, (&self.recipes, of_ranks))
    }
}

/// The amaxes of earlier steps, and the scale of the current one, on a rank's GPU: a graph that is replayed goes on with
/// them.
///
/// ```
/// use counterflow_codegen::dtype::Dtype;
/// use counterflow_quantise::{Delayed, DeviceHistory, Fp8, Quantiser, Recipe, ScaleRule, Scaling};
/// # use counterflow_runtime::Communicator;
/// # use {float8::F8E4M3, half::bf16};
///
/// # let rank = &Communicator::emulated(1)?[0];
/// let recipe = Recipe::new(ScaleRule::transformer_engine(Fp8::E4M3), Scaling::Delayed, Dtype::Bf16);
/// let quantiser = Quantiser::build(rank, recipe, [1, 16])?;
/// let mut history: DeviceHistory = quantiser.history(Delayed::transformer_engine(Fp8::E4M3))?;
/// let (x, mut codes, mut scale) = (rank.zeros::<bf16>([1, 16])?, rank.zeros::<F8E4M3>([1, 16])?, rank.zeros::<f32>([1])?);
/// x.write(&[bf16::from_f32(7.0); 16])?;
/// for expected in [1.0, 1.0 / 64.0] {
///     let launch = quantiser.on(rank, [1, 16]).x(&x).codes(&mut codes).scales(&mut scale);
///     launch.history(&mut history).launch()?;
///     quantiser.next_step(rank, &mut history)?; // `history.amax()` may be reduced over ranks before
///     assert_eq!(scale.read()?, [expected]);
/// }
/// assert_eq!(history.amax().read()?, [0.0]);
/// assert_eq!(history.read()?.scale().multiplier, 64.0);
/// # Ok::<(), counterflow_runtime::Error>(())
/// ```
#[derive(Debug)]
pub struct DeviceHistory {
    pub(crate) recipe: Delayed,
    pub(crate) memory: Memory,
}

impl DeviceHistory {
    /// The recipe by which its scales are made.
    pub fn recipe(&self) -> Delayed {
        self.recipe
    }

    /// The amax of the current step: one number, for a collective of the caller's, or for a product that measures what it
    /// computes. A product writes NaN where it computes one: the history keeps it, and makes its scales of its other amaxes.
    pub fn amax(&self) -> Tensor<f32> {
        self.memory.amaxes.clone()
    }

    /// Multiplier of the current step's elements: one number, for a product that quantises its results
    /// ([`QuantTensor::output`](counterflow_runtime::QuantTensor::output)). With [`DeviceHistory::amax`] as the amax, which the product measures before it rounds, delayed
    /// scaling takes no pass of its own.
    ///
    /// ```
    /// use counterflow_codegen::dtype::Dtype;
    /// use counterflow_quantise::{Delayed, Fp8, Granularity, Quantiser, Recipe, ScaleRule, Scaling};
    /// use counterflow_runtime::QuantTensor;
    /// # use counterflow_codegen::builder::{GemmOptions, ScheduleBuilder};
    /// # use counterflow_runtime::Communicator;
    /// # use {float8::F8E4M3, half::bf16};
    ///
    /// # let rank = &Communicator::emulated(1)?[0];
    /// # let mut s = ScheduleBuilder::new("gemm");
    /// # let (x, w, y) = (s.local("x", Dtype::Bf16), s.local("w", Dtype::Bf16), s.out("y", Dtype::Bf16));
    /// # let tiles = s.tiles("tiles", y, (128, 128));
    /// # s.gemm(GemmOptions::default(), |s| s.for_items("t", tiles.all(), |s, t| {
    /// #     let product = s.dot(x.at(t), w.at(t));
    /// #     s.store(y.at(t), product);
    /// # }));
    /// # let gemm = s.finish();
    /// let op = rank.op(&gemm).output(Dtype::E4M3).amax().up_to(64, 64, 64).build()?; // y = x · wᵀ
    /// let recipe = Recipe::new(ScaleRule::transformer_engine(Fp8::E4M3), Scaling::Delayed, Dtype::Bf16);
    /// let quantiser = Quantiser::build(rank, recipe, [1, 16])?;
    /// let mut history = quantiser.history(Delayed::transformer_engine(Fp8::E4M3))?;
    /// # let (x, w) = (rank.zeros::<bf16>([64, 64])?, rank.zeros::<bf16>([64, 64])?);
    /// # let codes = rank.zeros::<F8E4M3>([64, 64])?;
    /// # x.write(&[bf16::ONE; 64 * 64])?;
    /// # w.write(&[bf16::ONE; 64 * 64])?;
    /// for (scale, code) in [(1.0, 64.0), (7.0, 448.0)] {
    ///     let mut y = QuantTensor::output(codes.clone(), history.multiplier())?.with_amax(history.amax())?;
    ///     op.on(rank).tensor("x", &x).tensor("w", &w).tensor("y", &mut y).launch()?;
    ///     assert_eq!(y.scales().read()?, [scale]);
    ///     // A product of them, before the next step.
    ///     let _x = QuantTensor::new(codes.clone(), history.stored(), Granularity::PerTensor)?;
    ///     quantiser.next_step(rank, &mut history)?;
    ///     assert_eq!(codes.read()?[0].to_f32(), code);
    /// }
    /// # Ok::<(), counterflow_runtime::Error>(())
    /// ```
    pub fn multiplier(&self) -> Tensor<f32> {
        self.number(0)
    }

    /// Factor of the products of the current step's codes: one number.
    pub fn stored(&self) -> Tensor<f32> {
        self.number(1)
    }

    /// Multiplier and stored scale.
    pub(crate) fn scales(&self) -> Tensor<f32> {
        self.memory.scales.clone()
    }

    fn number(&self, at: usize) -> Tensor<f32> {
        let scales = &self.memory.scales;
        let number = scales.shaped([2, 1]).and_then(|both| both.rows(at..at + 1));
        number.unwrap_or_else(|_| scales.clone())
    }

    /// All of it, once what was launched before is done.
    ///
    /// # Errors
    /// What the kernels before ended with.
    pub fn read(&self) -> Result<History, Error> {
        let (scale, amax) = (self.memory.scales.read()?, self.memory.amaxes.read()?);
        let scale = Scale {
            multiplier: scale[0],
            stored: scale[1],
        };
        let before = self.memory.pasts.read()?;
        Ok(History::held(self.recipe, scale, amax[0], &before))
    }

    /// The scale of the current step.
    ///
    /// # Errors
    /// As [`DeviceHistory::read`].
    pub fn scale(&self) -> Result<Scale, Error> {
        self.read().map(|history| history.scale())
    }
}
