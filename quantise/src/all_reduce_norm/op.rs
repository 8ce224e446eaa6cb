//! An op of an all-reduce with a norm on a rank, and how it is built.

use super::row::{self, MOST_COLUMNS};
use super::text::{Loaded, NAME, Text, each};
use crate::kernels::{Recipe, Scaling};
use counterflow_codegen::dtype::Dtype;
use counterflow_codegen::encoding::Granularity;
use counterflow_runtime::exchange::{Exchange, Kernel};
use counterflow_runtime::op::Workspace;
use counterflow_runtime::slots;
use counterflow_runtime::{Communicator, Error, Tensor};
use half::bf16;
use std::sync::Arc;

/// The sum over ranks of rows of bf16, with a residual added and each row normalised (RMSNorm), and quantised if asked: one
/// kernel on each rank, in one shot. Every rank sends its rows to every other, so it is for few rows: a step of decoding.
///
/// The sum is of f32, in the order of ranks, with the residual last. It is rounded once, to the new residual, which the
/// norm reads. So all ranks have the same bits, and a row has the same ones however many rows there are. FP8 codes and
/// scales are those that a [`Quantiser`](crate::Quantiser) makes of the rows in bf16. Every NaN is the same.
///
/// ```
/// use counterflow_quantise::AllReduceNorm;
/// use counterflow_runtime::Communicator;
/// use half::bf16;
///
/// let ranks = Communicator::emulated(2)?;
/// Communicator::each(&ranks, |rank| {
///     let norm = AllReduceNorm::of(rank).eps(1e-6).up_to(64, 256);
///     rank.reserve(norm.workspace()?.heap + (2 << 20))?;
///     let norm = norm.build()?;
///     let (x, gamma) = (rank.zeros::<bf16>([64, 256])?, rank.zeros::<bf16>([256])?);
///     let (mut residual, mut y) = (rank.zeros::<bf16>([64, 256])?, rank.zeros::<bf16>([64, 256])?);
///     x.fill(0x3f)?; // 0.746
///     gamma.write(&[bf16::from_f32(3.0); 256])?;
///     norm.on(rank).x(&x).residual(&mut residual).gamma(&gamma).y(&mut y).rows(5).launch()?.wait()?;
///     assert_eq!(residual.read()?[0].to_f32(), 2.0 * x.read()?[0].to_f32());
///     assert_eq!((y.read()?[0].to_f32(), y.read()?[5 * 256].to_f32()), (3.0, 0.0));
///     rank.barrier()
/// })?;
/// # Ok::<(), counterflow_runtime::Error>(())
/// ```
#[derive(Debug)]
pub struct AllReduceNorm {
    pub(super) exchange: Exchange,
    /// None: the rank is emulated.
    pub(super) kernel: Option<Arc<Loaded>>,
    pub(super) recipe: Option<Recipe>,
    pub(super) eps: f32,
    pub(super) most: [usize; 2],
    /// A word for each CTA that a launch may have: the number of launches so far.
    pub(super) launches: Tensor<u32>,
}

/// An [`AllReduceNorm`] that is being put together.
///
/// ```
/// use counterflow_codegen::dtype::Dtype;
/// use counterflow_quantise::{AllReduceNorm, AllReduceNormBuilder, Granularity, Recipe, ScaleRule, Scaling};
/// use counterflow_runtime::{Communicator, QuantTensor};
/// # use {float8::F8E4M3, half::bf16};
///
/// let rank = &Communicator::emulated(1)?[0];
/// let recipe = Recipe::new(ScaleRule::deep_gemm(), Scaling::Current(Granularity::BLOCK_1X128), Dtype::Bf16);
/// let norm: AllReduceNormBuilder = AllReduceNorm::of(rank).quantised(recipe);
/// let norm = norm.up_to(4, 256).build()?;
/// let (x, gamma) = (rank.zeros::<bf16>([4, 256])?, rank.zeros::<bf16>([256])?);
/// let mut residual = rank.zeros::<bf16>([4, 256])?;
/// let mut y = QuantTensor::new(rank.zeros::<F8E4M3>([4, 256])?, rank.zeros::<f32>([2, 4])?, Granularity::BLOCK_1X128)?;
/// # x.write(&[bf16::ONE; 4 * 256])?;
/// # gamma.write(&[bf16::ONE; 256])?;
/// norm.on(rank).x(&x).residual(&mut residual).gamma(&gamma).y(&mut y).launch()?.wait()?;
/// assert_eq!((y.codes().read()?[0].to_f32(), y.scales().read()?), (448.0, vec![1.0 / 448.0; 8]));
/// # Ok::<(), counterflow_runtime::Error>(())
/// ```
#[derive(Clone, Debug)]
#[must_use = "nothing is built before `build`"]
pub struct AllReduceNormBuilder<'r> {
    rank: &'r Communicator,
    recipe: Option<Recipe>,
    eps: f32,
    most: Option<[usize; 2]>,
}

impl AllReduceNorm {
    /// One for a rank: with an eps of 1e-5, and bf16 as its result.
    pub fn of(rank: &Communicator) -> AllReduceNormBuilder<'_> {
        AllReduceNormBuilder {
            rank,
            recipe: None,
            eps: 1e-5,
            most: None,
        }
    }

    /// A row on the host, as kernels do it: the new residual, and the row normalised. `partials` are the ranks' rows, by rank.
    ///
    /// ```
    /// use counterflow_quantise::AllReduceNorm;
    /// use half::bf16;
    ///
    /// let [one, two] = [1.0, 2.0].map(|value| [bf16::from_f32(value); 8]);
    /// let [residual, y] = AllReduceNorm::row(&[&one, &two], &one, &two, 0.0);
    /// assert_eq!((residual[0].to_f32(), y[0].to_f32()), (4.0, 2.0));
    /// ```
    ///
    /// # Panics
    /// If a row is shorter than the residual, or has no multiple of 8 elements.
    pub fn row(
        partials: &[&[bf16]],
        residual: &[bf16],
        gamma: &[bf16],
        eps: f32,
    ) -> [Vec<bf16>; 2] {
        let columns = residual.len();
        assert!(columns.is_multiple_of(8), "a row of {columns} elements");
        let mut rows = partials.iter().chain([&gamma]);
        assert!(
            rows.all(|row| row.len() >= columns),
            "a row that is shorter"
        );
        row::row(partials, residual, gamma, eps)
    }
}

impl<'r> AllReduceNormBuilder<'r> {
    /// Sets what is added to the mean of squares.
    pub fn eps(mut self, eps: f32) -> Self {
        self.eps = eps;
        self
    }

    /// Quantises the result. Of [`Scaling::Delayed`] the codes are the result times one number that a launch is given, and the
    /// amax is measured if asked; current scales are of rows or of 1×128. One scale of the whole tensor's own amax is refused: it
    /// would need all rows before the first.
    pub fn quantised(mut self, recipe: Recipe) -> Self {
        self.recipe = Some(recipe);
        self
    }

    /// The largest launch: so many rows, and the elements of each.
    pub fn up_to(mut self, rows: usize, columns: usize) -> Self {
        self.most = Some([rows, columns]);
        self
    }

    /// The memory that it takes on each rank, to be reserved before it is built.
    ///
    /// # Errors
    /// [`Error::Usage`] and [`Error::TooLarge`] as [`AllReduceNormBuilder::build`].
    pub fn workspace(&self) -> Result<Workspace, Error> {
        let most = self.checked()?;
        Ok(self.kernel(most).workspace(self.rank.world()))
    }

    /// Compiles and loads it, and agrees with the other ranks. Collective, unless there is one rank.
    ///
    /// # Errors
    /// [`Error::Usage`] without [`AllReduceNormBuilder::up_to`], for rows that have no multiple of 8 elements, or of 16 in FP8,
    /// for an eps that is negative or not finite, and for a recipe that it cannot follow; [`Error::TooLarge`] for rows that no CTA
    /// holds, and where too little of the heap is reserved; [`Error::Mismatch`] if ranks build different ones;
    /// [`Error::Toolkit`] without a compiler; what the driver refuses.
    pub fn build(self) -> Result<AllReduceNorm, Error> {
        let checked = self.checked();
        let most = checked.map_err(|error| Exchange::refuse(self.rank, error))?;
        let Self {
            rank, recipe, eps, ..
        } = self;
        let load = || {
            let kernel = Loaded::load(rank, &self.text(most[1]))?.map(Arc::new);
            // A launch has no more CTAs than there are SMs.
            let launches = rank.zeros::<u32>([rank.gpu().sms() as usize])?;
            Ok((kernel, launches))
        };
        let (exchange, (kernel, launches)) = Exchange::build(rank, &self.kernel(most), load)?;
        Ok(AllReduceNorm {
            exchange,
            kernel,
            recipe,
            eps,
            most,
            launches,
        })
    }

    /// The text that the JIT compiles, for rows of so many elements, for tests that compile it ahead.
    #[doc(hidden)]
    pub fn text(&self, columns: usize) -> String {
        let text = Text {
            world: self.rank.world() as usize,
            eps: self.eps,
            recipe: self.recipe,
            columns,
        };
        text.to_string()
    }

    /// All headers of the text.
    #[doc(hidden)]
    pub fn headers() -> Vec<(&'static str, &'static str)> {
        super::text::headers()
    }

    fn kernel(&self, [rows, columns]: [usize; 2]) -> Kernel<'static> {
        let recipe = self.recipe.map(|recipe| recipe.to_string());
        Kernel {
            name: NAME,
            about: format!(
                "{rows} rows of {columns}, eps {:e}, {}{}",
                self.eps,
                recipe.as_deref().unwrap_or("bf16"),
                self.recipe.map_or(String::new(), |recipe| format!(
                    ", eps of amaxes {:e}",
                    recipe.rule.eps
                )),
            ),
            bytes: slots::bytes(self.rank.world(), each(rows, columns)),
        }
    }

    /// The largest launch, if it can be built.
    fn checked(&self) -> Result<[usize; 2], Error> {
        let usage = |what: String, legal: &str| {
            Err(Error::Usage {
                what,
                legal: legal.into(),
            })
        };
        let Some([rows, columns]) = self.most else {
            return usage(
                format!("{NAME} without a largest launch"),
                "call `up_to(rows, columns)`",
            );
        };
        let multiple = if self.recipe.is_some() { 16 } else { 8 };
        if columns == 0 || !columns.is_multiple_of(multiple) {
            return usage(
                format!("{NAME} of rows of {columns} elements"),
                "give rows of a multiple of 8 elements, or of 16 if they are quantised",
            );
        }
        if rows == 0 || rows >= 1 << 31 {
            return usage(
                format!("{NAME} for up to {rows} rows"),
                "1 to 2^31 - 1 rows",
            );
        }
        if !(0.0..f32::INFINITY).contains(&self.eps) {
            return usage(
                format!("{NAME} with an eps of {}", self.eps),
                "a finite eps of 0 or more",
            );
        }
        if columns > MOST_COLUMNS {
            return Err(Error::TooLarge {
                what: format!("{NAME} of rows of {columns} elements: a CTA holds {MOST_COLUMNS}"),
                help: "sum and normalise longer rows by two kernels: `all_reduce`, then a norm"
                    .into(),
            });
        }
        if let Some(recipe) = &self.recipe {
            followed(recipe)?;
        }
        Ok([rows, columns])
    }
}

/// Rejects recipes that this kernel cannot follow.
fn followed(recipe: &Recipe) -> Result<(), Error> {
    let refused = |legal: &str| {
        Err(Error::Usage {
            what: format!("{NAME} quantised as {recipe}"),
            legal: legal.into(),
        })
    };
    if recipe.from != Dtype::Bf16 {
        return refused("a recipe that quantises bf16");
    }
    if recipe.transposed || recipe.each_row {
        return refused("a recipe without a transposed copy, and without one scale in each row");
    }
    if !(0.0..f32::INFINITY).contains(&recipe.rule.eps) {
        return refused("a rule with a finite eps of 0 or more");
    }
    match recipe.scaling {
        Scaling::Delayed | Scaling::Current(Granularity::PerRow | Granularity::BLOCK_1X128) => {
            Ok(())
        }
        Scaling::Current(Granularity::PerTensor) => refused(
            "`Scaling::Delayed` with the number of the step before, or a scale for each row or 1×128: the amax of all rows is not known while the first are written",
        ),
        Scaling::Current(Granularity::Block(_)) => {
            refused("`Scaling::Delayed`, or a scale for each row or 1×128")
        }
    }
}
