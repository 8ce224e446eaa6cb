//! A launch of a quantiser: its memory, checked and put together.

use crate::histories::DeviceHistory;
use crate::job::{At, Job, Order, Steps, Words, fits};
use crate::kernels::{Recipe, Scaling};
use crate::launch;
use crate::plane::{Layout, RowsLast, SquarePadded};
use crate::quantiser::Quantiser;
use counterflow_codegen::dtype::Dtype;
use counterflow_codegen::encoding::Granularity;
use counterflow_runtime::op::{Argument, Caller, Input, Output, Part, ScaleUse, Step};
use counterflow_runtime::{Error, Pending};
use float8::{F8E4M3, F8E5M2};
use half::{bf16, f16};

impl Quantiser<'_> {
    /// A launch for a matrix of so many rows and columns, in the order of a stream, of the rank's launches, or in a graph.
    pub fn on<'a>(&'a self, caller: impl Into<Caller<'a>>, shape: [usize; 2]) -> Quantise<'a> {
        Quantise {
            quantiser: self,
            caller: caller.into(),
            shape,
            order: None,
            piece: None,
            given: Given::default(),
            history: None,
        }
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
    /// Meaning of the scales of a `QuantTensor`, and of the one for the transposed copy.
    uses: [Option<ScaleUse>; 2],
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
    piece: Option<usize>,
    given: Given<'a>,
    history: Option<&'a mut DeviceHistory>,
}

impl<'a> Quantise<'a> {
    /// The matrix: rows of the recipe's type, one after another. A row has a multiple of 16 elements.
    pub fn x(mut self, x: impl Input<'a>) -> Self {
        self.given.x = Some(x.into());
        self
    }

    /// Takes codes and scales: a `QuantTensor` with the recipe's type and granularity. Its scales lie as products
    /// read them, so launches take it as it is.
    pub fn to(mut self, quantised: impl Output<'a>) -> Self {
        let mut codes: Argument<'a> = quantised.into();
        if let Some((scales_are, scales)) = codes.take_scales() {
            self.given.uses[0] = Some(scales_are);
            self.given.scales = Some(scales);
        }
        self.given.codes = Some(codes);
        self
    }

    /// Takes codes and scales of the transposed copy: as [`Quantise::to`], of the shape that [`Quantise::transposed`]
    /// has. Recipes with one scale a tensor have one for both copies: they take the codes alone, by
    /// [`Quantise::transposed`].
    pub fn transposed_to(mut self, quantised: impl Output<'a>) -> Self {
        let mut codes: Argument<'a> = quantised.into();
        if let Some((scales_are, scales)) = codes.take_scales() {
            self.given.uses[1] = Some(scales_are);
            self.given.turned_scales = Some(scales);
        }
        self.given.turned = Some(codes);
        self
    }

    /// Takes the codes by themselves: a tensor or a user buffer of the same shape.
    pub fn codes(mut self, codes: impl Output<'a>) -> Self {
        self.given.codes = Some(codes.into());
        self
    }

    /// Takes memory for the scales, padding included: f32, as many as the layout has. Memory of rows and columns has a line
    /// in each row, as the layout has them; a vector has one line behind the other, and so has a slice of another library. Lines of 1×128 in
    /// [`RowsLast`] may be longer, and all that is behind the scales is zeroed: so the plane of a shard takes those of a rank
    /// that has fewer rows.
    ///
    /// ```
    /// # use counterflow_codegen::dtype::Dtype;
    /// # use counterflow_quantise::{Granularity, Quantiser, Recipe, ScaleRule, Scaling};
    /// # use counterflow_runtime::Communicator;
    /// # use {float8::F8E4M3, half::bf16};
    /// # let rank = &Communicator::emulated(1)?[0];
    /// # let recipe = Recipe::new(ScaleRule::deep_gemm(), Scaling::Current(Granularity::BLOCK_1X128), Dtype::Bf16);
    /// # let quantiser = Quantiser::build(rank, recipe, [3, 256])?;
    /// # let (x, mut codes) = (rank.zeros::<bf16>([3, 256])?, rank.zeros::<F8E4M3>([3, 256])?);
    /// let mut shard = rank.zeros::<f32>([2, 8])?; // of 8 rows
    /// # x.write(&[bf16::from_f32(448.0); 3 * 256])?;
    /// quantiser.on(rank, [3, 256]).x(&x).codes(&mut codes).scales(&mut shard).launch()?.wait()?;
    /// assert_eq!(shard.read()?[..], [[1.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0]; 2].concat());
    /// # Ok::<(), counterflow_runtime::Error>(())
    /// ```
    pub fn scales(mut self, scales: impl Output<'a>) -> Self {
        self.given.scales = Some(scales.into());
        self
    }

    /// Takes the codes of the transposed copy: as many rows as the matrix has columns, each of as many codes as it
    /// has rows, padded to 16 with zeros.
    pub fn transposed(mut self, codes: impl Output<'a>) -> Self {
        self.given.turned = Some(codes.into());
        self
    }

    /// Makes the transposed copy in pieces of so many rows of the matrix, a multiple of 128 that divides its rows. Pieces of codes lie one
    /// behind the other, each the transposed copy of its rows; scales of 1×128 lie as those of the whole.
    ///
    /// ```
    /// # use counterflow_codegen::dtype::Dtype;
    /// # use counterflow_quantise::{Granularity, Quantiser, Recipe, ScaleRule, Scaling};
    /// # use counterflow_runtime::Communicator;
    /// # use {float8::F8E4M3, half::bf16};
    /// # let rank = &Communicator::emulated(1)?[0];
    /// # let recipe = Recipe::new(ScaleRule::deep_gemm(), Scaling::Current(Granularity::BLOCK_1X128), Dtype::Bf16);
    /// # let quantiser = Quantiser::build(rank, recipe.with_transposed(), [256, 16])?;
    /// let (x, mut codes) = (rank.zeros::<bf16>([256, 16])?, rank.zeros::<F8E4M3>([256, 16])?);
    /// x.rows(128..256)?.write(&[bf16::from_f32(448.0); 128 * 16])?;
    /// let mut pieces = rank.zeros::<F8E4M3>([2 * 16, 128])?; // of 16 rows each
    /// let (mut scales, mut of_pieces) = (rank.zeros::<f32>([1, 256])?, rank.zeros::<f32>([2, 16])?);
    /// let launch = quantiser.on(rank, [256, 16]).x(&x).codes(&mut codes).scales(&mut scales);
    /// launch.transposed(&mut pieces).transposed_scales(&mut of_pieces).pieces(128).launch()?.wait()?;
    /// let second = pieces.rows(16..32)?;
    /// assert!(second.read()?.iter().all(|code| code.to_f32() == 448.0));
    /// # Ok::<(), counterflow_runtime::Error>(())
    /// ```
    pub fn pieces(mut self, rows: usize) -> Self {
        self.piece = Some(rows);
        self
    }

    /// Takes the scales of the transposed copy. A whole tensor has the same scale, and needs no second.
    pub fn transposed_scales(mut self, scales: impl Output<'a>) -> Self {
        self.given.turned_scales = Some(scales.into());
        self
    }

    /// Sets the memory layout of block scales. The default is [`RowsLast`], or [`SquarePadded`].
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
    /// small, of another rank or GPU, or that overlaps; for a layout of other blocks, and scales with lines of another length;
    /// for a row that has no multiple of 16 elements, and a matrix that is larger than the quantiser was built for.
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
            piece,
            given,
            history,
        } = self;
        let recipe = quantiser.recipe;
        let mut job = Job {
            recipe,
            shape,
            order: order.or(default_order(recipe.scaling)),
            lines: [None; 2],
            piece,
            steps,
            at: At::default(),
        };
        fits(&job, quantiser.most)?;
        for scales_are in given.uses.into_iter().flatten() {
            as_recipe(&recipe, scales_are)?;
            as_products_read(order, &recipe)?;
        }
        let elements = shape[0] * shape[1];
        if let Some(history) = &history
            && history.recipe.to != recipe.rule.to
        {
            let (of, to) = (history.recipe.to, recipe.rule.to);
            return Err(Error::Usage {
                what: format!("a history for {of:?} of a quantiser to {to:?}"),
                legal: "give a history that this quantiser made".into(),
            });
        }
        let (mut state, mut of_step) = match (recipe.scaling, history) {
            (Scaling::Delayed, Some(history)) => (history.scales(), Some(history.amax())),
            (Scaling::Delayed, None) => return Err(absent("history")),
            (Scaling::Current(_), None) => (quantiser.state.clone(), None),
            (Scaling::Current(_), Some(_)) => return Err(surplus("history")),
        };
        let mut step = quantiser.rank.step(caller);
        let code = |elements| of(recipe.rule.to.dtype(), elements);
        let own = given.scales.as_ref().and_then(Argument::shape);
        let of_copy = given.turned_scales.as_ref().and_then(Argument::shape);
        job.lines = [
            job.line("scales", job.plane(), own)?,
            job.line("transposed_scales", job.turned_plane(), of_copy)?,
        ];
        // Kernels write one scale at a time: a shard's may begin at any row of a plane.
        let words = |plane: Words| Part::of::<f32>(plane.len()).by_elements();
        let whole = matches!(
            recipe.scaling,
            Scaling::Current(Granularity::PerTensor) | Scaling::Delayed
        );
        if whole && given.uses[1].is_some() {
            return Err(Error::Usage {
                what: "scales for the transposed copy, which has the one scale of the tensor".into(),
                legal: "give its codes by `transposed(…)`; `QuantTensor::new(codes, scales.clone(), Granularity::PerTensor)` is the copy with that scale".into(),
            });
        }
        let casts = steps != Steps::Measure;
        let turned = casts && recipe.transposed;
        let x = Some(of(recipe.from, elements).read("x"));
        let codes = casts.then(|| code(elements).written("codes"));
        let scales = casts.then(|| words(job.plane()).written("scales"));
        let copy = turned.then(|| code(job.copied()).written("transposed"));
        let of_copy =
            (turned && !whole).then(|| words(job.turned_plane()).written("transposed_scales"));
        let skip = (given.skip.is_some()).then(|| Part::of::<u32>(1).read("skip"));
        let held = Part::of::<f32>(state.len()).by_elements();
        let held = match recipe.scaling {
            Scaling::Delayed => held.read("the scale of the history"),
            Scaling::Current(_) => held.written("state"),
        };
        job.at = At {
            x: add(&mut step, x, given.x, "x")?.unwrap_or_default(),
            codes: add(&mut step, codes, given.codes, "codes")?.unwrap_or_default(),
            scales: add(&mut step, scales, given.scales, "scales")?,
            turned: add(&mut step, copy, given.turned, "transposed")?,
            turned_scales: add(&mut step, of_copy, given.turned_scales, "transposed_scales")?,
            skip: add(&mut step, skip, given.skip, "skip")?,
            state: Some(step.add(held, &mut state)),
            amax: of_step
                .as_mut()
                .map(|amax| step.add(Part::of::<f32>(1).written("amax"), amax)),
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

/// Rejects a `QuantTensor` whose scales are of other elements than the recipe's.
fn as_recipe(recipe: &Recipe, scales_are: ScaleUse) -> Result<(), Error> {
    let wanted = ScaleUse::Dequantises(recipe.granularity());
    match scales_are == wanted {
        true => Ok(()),
        false => Err(Error::Usage {
            what: format!("a quantiser of {wanted}, to a tensor with {scales_are}"),
            legal: "give a `QuantTensor` of the recipe's granularity: `Quantiser::zeros` makes one"
                .into(),
        }),
    }
}

/// Rejects another layout of the scales in a `QuantTensor` than that which products read.
fn as_products_read(order: Option<Order>, recipe: &Recipe) -> Result<(), Error> {
    let (Some(asked), Some(read)) = (order, default_order(recipe.scaling)) else {
        return Ok(());
    };
    match asked.name == read.name {
        true => Ok(()),
        false => Err(Error::Usage {
            what: format!("scales in the layout {} in a `QuantTensor`", asked.name),
            legal: format!(
                "leave `layout` out: launches read {}; or give `codes` and `scales` by themselves",
                read.name
            ),
        }),
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
        Scaling::Current(Granularity::Block(block)) if block.is_1d() => {
            Some(Order::of::<RowsLast>())
        }
        Scaling::Current(Granularity::Block(_)) => Some(Order::of::<SquarePadded>()),
        Scaling::Current(Granularity::PerTensor | Granularity::PerRow) | Scaling::Delayed => None,
    }
}
