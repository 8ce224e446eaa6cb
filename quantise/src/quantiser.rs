//! Quantisers on a rank: launched in the order of its launches.

use crate::history::{Delayed, History};
use crate::job::{At, Job, Order, Steps};
use crate::kernels::{Recipe, Scaling};
use crate::launch::{self, BEFORE_CTAS, Kernels, MOST_CTAS};
use crate::plane::{Layout, RowsLast, SquarePadded};
use crate::rule::Scale;
use crate::twin::Pieces;
use counterflow_codegen::dtype::Dtype;
use counterflow_runtime::jit::Compiler;
use counterflow_runtime::op::{Argument, Caller, Input, Output, Part, Step};
use counterflow_runtime::{Communicator, Error, Pending, Tensor};
use float8::{F8E4M3, F8E5M2};
use half::{bf16, f16};

/// A recipe on a rank, for matrices up to a size. Emulated ranks run the twin.
///
/// ```
/// use counterflow_codegen::dtype::Dtype;
/// use counterflow_quantise::{Fp8, Pieces, Plane, Quantiser, Recipe, RowsLast, Rule, Scaling};
/// use counterflow_runtime::Communicator;
/// use float8::F8E4M3;
/// use half::bf16;
///
/// let rank = &Communicator::emulated(1)?[0];
/// let rule = Rule::transformer_engine(Fp8::E4M3).powers_of_two();
/// let recipe = Recipe::new(rule, Scaling::Current(Pieces::OneBy128), Dtype::Bf16).with_transposed();
/// let quantiser = Quantiser::build(rank, recipe, [8, 256])?;
///
/// let x = rank.zeros::<bf16>([8, 256])?;
/// x.write(&[bf16::from_f32(3.0); 8 * 256])?;
/// let (mut codes, mut scales) = (rank.zeros::<F8E4M3>([8, 256])?, rank.zeros::<f32>([2, 8])?);
/// let (mut turned, mut of_turned) = (rank.zeros::<F8E4M3>([256, 16])?, rank.zeros::<f32>([1, 256])?);
/// let changed = rank.zeros::<u32>([1])?; // not 0: nothing is done
/// let launch = quantiser.on(rank, [8, 256]).x(&x).codes(&mut codes).scales(&mut scales);
/// let launch = launch.transposed(&mut turned).transposed_scales(&mut of_turned);
/// launch.layout::<RowsLast>().skip(&changed).launch()?.wait()?;
/// let plane = Plane::<RowsLast>::from_memory([8, 256], scales.read()?).expect("its words");
/// assert_eq!((plane.at([7, 1]), codes.read()?[0].to_f32()), (1.0 / 128.0, 384.0));
/// # Ok::<(), counterflow_runtime::Error>(())
/// ```
///
/// A whole tensor can be measured first, its amax be reduced by a collective of the caller's, and cast then:
///
/// ```
/// # use counterflow_codegen::dtype::Dtype;
/// # use counterflow_quantise::{Fp8, Pieces, Quantiser, Recipe, Rule, Scaling};
/// # use counterflow_runtime::Communicator;
/// # use {float8::F8E5M2, half::bf16};
/// # let rank = &Communicator::emulated(1)?[0];
/// let recipe = Recipe::new(Rule::transformer_engine(Fp8::E5M2), Scaling::Current(Pieces::Whole), Dtype::Bf16);
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
    rank: &'r Communicator,
    recipe: Recipe,
    /// None: the rank is emulated.
    kernels: Option<Kernels>,
    most: [usize; 2],
    /// Of whole tensors the amax, the multiplier and the amaxes of CTAs; of rows the amaxes of rows and columns.
    state: Tensor<f32>,
}

impl<'r> Quantiser<'r> {
    /// Compiles and loads what a recipe needs for up to so many rows and columns.
    ///
    /// # Errors
    /// [`Error::Usage`] for a type that is FP8 already, or an eps below 0; [`Error::Toolkit`] without a compiler; what the
    /// driver refuses.
    pub fn build(
        rank: &'r Communicator,
        recipe: Recipe,
        most: [usize; 2],
    ) -> Result<Quantiser<'r>, Error> {
        if recipe.from.is_fp8() || !(0.0..f32::INFINITY).contains(&recipe.rule.eps) {
            return Err(Error::Usage {
                what: format!("{recipe} with an eps of {}", recipe.rule.eps),
                legal: "quantise bf16, f16 or f32, with a finite eps of 0 or more".into(),
            });
        }
        sizes(most)?;
        let kernels = match rank.gpu().is_emulated() {
            true => None,
            false => Some(Kernels::load(
                rank.gpu().cuda()?,
                &Compiler::find()?,
                &recipe,
            )?),
        };
        let words = match recipe.scaling {
            Scaling::Current(Pieces::Whole) => BEFORE_CTAS + MOST_CTAS,
            Scaling::Current(Pieces::Rows) if recipe.transposed => most[0] + most[1],
            Scaling::Current(_) | Scaling::Delayed => 1,
        };
        Ok(Quantiser {
            rank,
            recipe,
            kernels,
            most,
            state: rank.zeros([words.max(1), 1])?,
        })
    }

    /// What it does.
    pub fn recipe(&self) -> &Recipe {
        &self.recipe
    }

    /// The amax that [`Quantise::measure`] left behind: one number, for a collective of the caller's.
    pub fn amax(&self) -> Tensor<f32> {
        let state = self.state.rows(0..1);
        state.unwrap_or_else(|_| self.state.clone())
    }

    /// A launch for a matrix of so many rows and columns, in the order of a stream, of the rank's launches, or in a graph.
    pub fn on<'a>(&'a self, caller: impl Into<Caller<'a>>, shape: [usize; 2]) -> Quantise<'a> {
        Quantise {
            quantiser: self,
            caller: caller.into(),
            shape,
            order: None,
            given: Given::default(),
            history: None,
        }
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
        let state = self.rank.zeros([2 + recipe.length, 1])?;
        state.rows(0..2)?.write(&[1.0, 1.0])?;
        Ok(DeviceHistory { recipe, state })
    }

    /// Ends a step of delayed scaling: the scale of the next one. To have it of all ranks, reduce [`DeviceHistory::amax`]
    /// before.
    ///
    /// # Errors
    /// As [`Quantise::launch`].
    #[allow(unsafe_code, reason = "a launch of kernels of this crate's")]
    pub fn next_step<'a>(
        &'a self,
        caller: impl Into<Caller<'a>>,
        history: &'a mut DeviceHistory,
    ) -> Result<Pending, Error> {
        let recipe = history.recipe;
        let part = Part::of::<f32>(2 + recipe.length).written("history");
        let step = self.rank.step(caller).part(part, &mut history.state);
        // SAFETY: the part is that recipe's state.
        unsafe { launch::next_step(step, self.kernels.as_ref(), recipe) }
    }
}

/// The amaxes of earlier steps, and the scale of the current one, on a rank's GPU: a graph that is replayed goes on with
/// them.
///
/// ```
/// use counterflow_codegen::dtype::Dtype;
/// use counterflow_quantise::{Delayed, DeviceHistory, Fp8, Quantiser, Recipe, Rule, Scaling};
/// # use counterflow_runtime::Communicator;
/// # use {float8::F8E4M3, half::bf16};
///
/// # let rank = &Communicator::emulated(1)?[0];
/// let recipe = Recipe::new(Rule::transformer_engine(Fp8::E4M3), Scaling::Delayed, Dtype::Bf16);
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
    recipe: Delayed,
    state: Tensor<f32>,
}

impl DeviceHistory {
    /// The amax of the current step: one number, for a collective of the caller's.
    pub fn amax(&self) -> Tensor<f32> {
        let amax = self.state.rows(2..3);
        amax.unwrap_or_else(|_| self.state.clone())
    }

    /// All of it, once what was launched before is done.
    ///
    /// # Errors
    /// What the kernels before ended with.
    pub fn read(&self) -> Result<History, Error> {
        let held = self.state.read()?;
        Ok(History::held(self.recipe, &held))
    }

    /// The scale of the current step.
    ///
    /// # Errors
    /// As [`DeviceHistory::read`].
    pub fn scale(&self) -> Result<Scale, Error> {
        self.read().map(|history| history.scale())
    }
}

/// Memory that a launch is given.
#[derive(Debug, Default)]
struct Given<'a> {
    x: Option<Argument<'a>>,
    codes: Option<Argument<'a>>,
    scales: Option<Argument<'a>>,
    turned: Option<Argument<'a>>,
    turned_scales: Option<Argument<'a>>,
    skip: Option<Argument<'a>>,
}

/// A launch that is being put together. Nothing is enqueued before its last call.
///
/// [`Quantiser`] has an example.
#[derive(Debug)]
#[must_use = "nothing is enqueued before `launch`"]
pub struct Quantise<'a> {
    quantiser: &'a Quantiser<'a>,
    caller: Caller<'a>,
    shape: [usize; 2],
    order: Option<Order>,
    given: Given<'a>,
    history: Option<&'a mut DeviceHistory>,
}

impl<'a> Quantise<'a> {
    /// The matrix: rows of the recipe's type, one after another. A row has a multiple of 16 elements.
    pub fn x(mut self, x: impl Input<'a>) -> Self {
        self.given.x = Some(x.into());
        self
    }

    /// Where the codes go: a tensor or a user buffer of the same shape.
    pub fn codes(mut self, codes: impl Output<'a>) -> Self {
        self.given.codes = Some(codes.into());
        self
    }

    /// Where the scales go, padding included: f32, as many as the layout has.
    pub fn scales(mut self, scales: impl Output<'a>) -> Self {
        self.given.scales = Some(scales.into());
        self
    }

    /// Where the transposed copy goes: as many rows as the matrix has columns, each of as many codes as it has rows, padded
    /// to 16 with zeros.
    pub fn transposed(mut self, codes: impl Output<'a>) -> Self {
        self.given.turned = Some(codes.into());
        self
    }

    /// Where the scales of the transposed copy go. A whole tensor has the same scale, and needs no second.
    pub fn transposed_scales(mut self, scales: impl Output<'a>) -> Self {
        self.given.turned_scales = Some(scales.into());
        self
    }

    /// How scales of blocks lie in memory. If it is not called: [`RowsLast`], or [`SquarePadded`].
    pub fn layout<L: Layout>(mut self) -> Self {
        self.order = Some(Order::of::<L>());
        self
    }

    /// A number of 32 bits in device memory: if it is not 0 by then, nothing is read or written.
    pub fn skip(mut self, flag: impl Input<'a>) -> Self {
        self.given.skip = Some(flag.into());
        self
    }

    /// The history that has the scale, and takes the amax: of delayed scaling alone.
    pub fn history(mut self, history: &'a mut DeviceHistory) -> Self {
        self.history = Some(history);
        self
    }

    /// Enqueues it and returns at once. On an emulated rank all of it is done when this returns, and no graph records it.
    ///
    /// # Errors
    /// [`Error::Usage`], before anything is enqueued, for memory that is absent or not asked for, of another type, too
    /// small, of another rank or GPU, or that overlaps; for a layout of other blocks; for a row that has no multiple of 16
    /// elements, and a matrix that is larger than the quantiser was built for.
    pub fn launch(self) -> Result<Pending, Error> {
        self.steps(Steps::All)
    }

    /// Enqueues the measuring of a whole tensor: [`Quantiser::amax`] has it then.
    ///
    /// # Errors
    /// As [`Quantise::launch`].
    pub fn measure(self) -> Result<Pending, Error> {
        self.steps(Steps::Measure)
    }

    /// Enqueues what comes after [`Quantise::measure`], with the amax that is there by then. No other launch of the
    /// quantiser may stand between them.
    ///
    /// # Errors
    /// As [`Quantise::launch`].
    pub fn cast(self) -> Result<Pending, Error> {
        self.steps(Steps::Cast)
    }

    #[allow(unsafe_code, reason = "a launch of kernels of this crate's")]
    fn steps(self, steps: Steps) -> Result<Pending, Error> {
        let Quantise {
            quantiser,
            caller,
            shape,
            order,
            given,
            history,
        } = self;
        let recipe = quantiser.recipe;
        let mut job = Job {
            recipe,
            shape,
            order: order.or(default_order(recipe.scaling)),
            steps,
            at: At::default(),
        };
        fits(&job, quantiser.most)?;
        let elements = shape[0] * shape[1];
        let mut state = match (recipe.scaling, history) {
            (Scaling::Delayed, Some(history)) => history.state.clone(),
            (Scaling::Delayed, None) => return Err(absent("history")),
            (Scaling::Current(_), None) => quantiser.state.clone(),
            (Scaling::Current(_), Some(_)) => return Err(surplus("history")),
        };
        let mut step = quantiser.rank.step(caller);
        let code = |elements| of(recipe.rule.to.dtype(), elements);
        let words = |shape| Part::of::<f32>(job.words(shape).padded.iter().product());
        let whole = matches!(
            recipe.scaling,
            Scaling::Current(Pieces::Whole) | Scaling::Delayed
        );
        let casts = steps != Steps::Measure;
        let turned = casts && recipe.transposed;
        let x = Some(of(recipe.from, elements).read("x"));
        let codes = casts.then(|| code(elements).written("codes"));
        let scales = casts.then(|| words(shape).written("scales"));
        let copy = turned.then(|| code(shape[1] * job.pitch()).written("transposed"));
        let of_copy =
            (turned && !whole).then(|| words(job.turned_shape()).written("transposed_scales"));
        let skip = (given.skip.is_some()).then(|| Part::of::<u32>(1).read("skip"));
        job.at = At {
            x: add(&mut step, x, given.x, "x")?.unwrap_or_default(),
            codes: add(&mut step, codes, given.codes, "codes")?.unwrap_or_default(),
            scales: add(&mut step, scales, given.scales, "scales")?,
            turned: add(&mut step, copy, given.turned, "transposed")?,
            turned_scales: add(&mut step, of_copy, given.turned_scales, "transposed_scales")?,
            skip: add(&mut step, skip, given.skip, "skip")?,
            state: Some(step.add(Part::of::<f32>(state.len()).written("state"), &mut state)),
        };
        // SAFETY: each part is as large as the job needs it, and written where it writes: see above.
        unsafe { launch::quantise(step, quantiser.kernels.as_ref(), &job) }
    }
}

/// Adds memory that a launch needs, if there is a part for it. Else none may be given.
fn add<'a>(
    step: &mut Step<'a>,
    part: Option<Part>,
    memory: Option<Argument<'a>>,
    name: &str,
) -> Result<Option<usize>, Error> {
    match (part, memory) {
        (Some(part), Some(memory)) => Ok(Some(step.add(part, memory))),
        (Some(_), None) => Err(absent(name)),
        (None, Some(_)) => Err(surplus(name)),
        (None, None) => Ok(None),
    }
}

fn absent(name: &str) -> Error {
    Error::Usage {
        what: format!("a quantiser without {name}"),
        legal: format!("give {name}: this recipe has it"),
    }
}

fn surplus(name: &str) -> Error {
    Error::Usage {
        what: format!("a quantiser with {name}"),
        legal: format!("give no {name}: this recipe, or this call, has none"),
    }
}

/// So many elements of that type.
fn of(dtype: Dtype, elements: usize) -> Part {
    match dtype {
        Dtype::Bf16 => Part::of::<bf16>(elements),
        Dtype::F16 => Part::of::<f16>(elements),
        Dtype::F32 => Part::of::<f32>(elements),
        Dtype::E4M3 => Part::of::<F8E4M3>(elements),
        Dtype::E5M2 => Part::of::<F8E5M2>(elements),
    }
}

fn default_order(scaling: Scaling) -> Option<Order> {
    match scaling {
        Scaling::Current(Pieces::OneBy128) => Some(Order::of::<RowsLast>()),
        Scaling::Current(Pieces::Square) => Some(Order::of::<SquarePadded>()),
        Scaling::Current(Pieces::Whole | Pieces::Rows) | Scaling::Delayed => None,
    }
}

/// Rejects matrices that no quantiser takes.
fn sizes([rows, columns]: [usize; 2]) -> Result<(), Error> {
    let fits = rows < 1 << 31 && columns < 1 << 31;
    // CTAs are counted with 31 bits.
    if columns % 16 != 0 || !fits || rows.div_ceil(128) * columns.div_ceil(128) >= 1 << 31 {
        return Err(Error::Usage {
            what: format!("a quantiser for {rows} rows of {columns} elements"),
            legal: "a multiple of 16 elements in a row, as products of FP8 need".into(),
        });
    }
    Ok(())
}

/// Rejects a launch that its quantiser was not built for.
fn fits(job: &Job, most: [usize; 2]) -> Result<(), Error> {
    sizes(job.shape)?;
    let [rows, columns] = job.shape;
    if rows > most[0] || columns > most[1] {
        return Err(Error::Usage {
            what: format!("{rows} rows of {columns} elements"),
            legal: format!("{most:?} at most: build the quantiser for more"),
        });
    }
    let blocks = match job.recipe.scaling {
        Scaling::Current(Pieces::OneBy128) => Some(1),
        Scaling::Current(Pieces::Square) => Some(128),
        Scaling::Current(Pieces::Whole | Pieces::Rows) | Scaling::Delayed => None,
    };
    if job.order.map(|order| order.rows) != blocks {
        return Err(Error::Usage {
            what: format!("a layout of other blocks than those of {}", job.recipe),
            legal: "one of 1×128 or of 128×128, as the recipe has, and none for other scales"
                .into(),
        });
    }
    let whole = job.recipe.scaling == Scaling::Current(Pieces::Whole);
    if job.steps != Steps::All && !whole {
        return Err(Error::Usage {
            what: format!("{} in two steps", job.recipe),
            legal: "only one scale for a whole tensor is measured first".into(),
        });
    }
    Ok(())
}
