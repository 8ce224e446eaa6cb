//! What both classes have: the buffers, the settings, the ops that were built.

use super::factor::{Factor, coded};
use crate::overlap::{Gemm, GemmName, Method, Parallel, Pass, Settings};
use crate::schedules as ours;
use crate::step::{Built, CodedStep, Latest, Step, Work, shape};
use crate::userbuffers::{Initialize, Userbuffers};
use counterflow::op::Argument;
use counterflow::prelude::bf16;
use counterflow::rule::Fp8;
use counterflow::{Communicator, Error, Layout, Setting, Tensor, UserBuffer, schedules};
use std::ops::Range;
use std::sync::Arc;
use tracing::warn;

/// The weight of a product, with the bias that goes to its result.
///
/// ```
/// use counterflow::{Communicator, Error, Layout, prelude::bf16};
/// use counterflow_layers::overlap::{Comm, Settings};
/// use counterflow_layers::{CommOverlapP2P, Operand};
/// use std::sync::Arc;
///
/// fn of_rank(rank: &Arc<Communicator>) -> Result<(), Error> {
///     let (rows, columns, outputs) = (12, 16, 32); // rows over all ranks
///     rank.reserve(8 << 20)?;
///     let settings = Settings { use_ce: Some(false), num_sm: Some(2), ..Settings::default() };
///     let overlap = CommOverlapP2P::new(rank, [rows, columns], Comm::AllGather, &settings)?;
///     let x = rank.zeros::<bf16>([rank.shard(rank.rank(), rows).len(), columns])?; // this rank's shard
///     let (w, mut y) = (rank.zeros::<bf16>([outputs, columns])?, rank.zeros::<bf16>([rows, outputs])?);
///     overlap.copy_into_buffer(rows, &x, true)?;
///     let w = Operand { tensor: (&w).into(), bias: None, layout: Layout::Nt };
///     overlap.split_overlap_ag(rows, w, &mut y, None) // y = all_gather(x) · wᵀ
/// }
///
/// let ranks: Vec<_> = Communicator::emulated(2)?.into_iter().map(Arc::new).collect();
/// std::thread::scope(|scope| {
///     let threads: Vec<_> = ranks.iter().map(|rank| scope.spawn(move || of_rank(rank))).collect();
///     threads.into_iter().try_for_each(|thread| thread.join().expect("no panic"))
/// })
/// # ?;
/// # Ok::<(), Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Operand<'a> {
    /// In layout nt a row for each column of the result; in layout nn a column.
    pub tensor: Factor<'a>,
    /// Added to the result, once whatever the number of ranks. In layout nt alone.
    pub bias: Option<&'a Tensor<bf16>>,
    /// `Nt` is TransformerEngine's `TN`, and `Nn` its `NN`: its matrices are columns first.
    pub layout: Layout,
}

impl Operand<'_> {
    /// Columns and depth of the product.
    pub fn sides(&self) -> Result<[usize; 2], Error> {
        let [first, second] = self.tensor.shape();
        match self.layout {
            Layout::Nt => Ok([first, second]),
            Layout::Nn if self.bias.is_none() => Ok([second, first]),
            Layout::Nn | Layout::Tn => Err(Error::Usage {
                what: format!("a weight in layout {:?} here", self.layout),
                legal: "give Nt, or Nn without a bias".into(),
            }),
        }
    }
}

/// A product of a class: of which layer's, and its method.
pub(super) type Of = (Parallel, Pass, Method);

/// A setting and why it has nothing to act on.
type Told = (&'static str, &'static str);

/// An op is found by what it does and its sizes.
#[derive(Clone, PartialEq, Debug)]
struct Key {
    name: String,
    layout: Layout,
    sizes: String,
    codes: Option<[Fp8; 2]>,
}

#[derive(Debug)]
pub(super) struct Shared {
    pub userbuffers: Userbuffers,
    settings: Settings,
    /// Settings that have nothing to act on, each with the reason.
    pub told: Vec<Told>,
    ops: Latest<Key>,
}

impl Shared {
    /// Refuses and tells what the settings cannot do in any of these products of the class.
    pub fn new(
        rank: &Arc<Communicator>,
        initialize: &Initialize,
        settings: &Settings,
        products: &[Of],
    ) -> Result<Shared, Error> {
        if let Some(method) = settings.method {
            return Err(Error::Usage {
                what: format!("the method {method} of a communicator"),
                legal: "leave it out: the class has its method".into(),
            });
        }
        let mut told: Option<Vec<Told>> = None;
        for product in products {
            let found = product_of(*product, settings)?.without_effect(false);
            told = Some(match told {
                // What acts in one of them acts.
                Some(told) => told
                    .into_iter()
                    .filter(|(key, _)| found.iter().any(|(other, _)| other == key))
                    .collect(),
                None => found,
            });
        }
        let told = told.unwrap_or_default();
        for (key, why) in &told {
            warn!("{key} is without effect: {why}");
        }
        Ok(Shared {
            userbuffers: Userbuffers::initialize(rank, initialize)?,
            settings: settings.clone(),
            told,
            ops: Latest::new(),
        })
    }

    pub fn rank(&self) -> &Arc<Communicator> {
        self.userbuffers.rank()
    }

    /// A product of the class with its settings.
    pub fn product(&self, product: Of) -> Result<Gemm, Error> {
        product_of(product, &self.settings)
    }

    pub fn op(
        &self,
        work: Work,
        layout: Layout,
        sizes: counterflow::Shape,
        choices: Vec<(&'static str, Setting)>,
        coded: Option<CodedStep>,
    ) -> Result<Arc<Built>, Error> {
        let name = match &work {
            Work::Schedule(program) => program.name.clone(),
            Work::Family(family) => family.name().to_owned(),
        };
        let key = Key {
            name,
            layout,
            sizes: sizes.to_string(),
            codes: coded.map(|coded| coded.codes),
        };
        self.ops.of(self.rank(), &key, || {
            let step = Step {
                work,
                layout,
                shape: sizes,
                choices,
                coded,
                margin: self.userbuffers.sm_margin(),
                dtype: None,
            };
            step.build(self.rank())
        })
    }

    /// A product of such codes or elements, whose rows are those of the buffer: built for the most, launched for fewer.
    pub fn whole(&self, product: Of, x: Option<Fp8>, w: &Operand<'_>) -> Result<Arc<Built>, Error> {
        w.tensor.has_one_scale()?;
        let coded = coded(x, w.tensor.codes())?;
        let gemm = self.product(product)?;
        let ([rows, _], [n, k]) = (self.userbuffers.shape(), w.sides()?);
        // One rank has no term to send, and rounds none.
        let (work, choices) = match (self.rank().world(), w.bias) {
            (1, Some(_)) => (ours::gemm_bias().into(), Vec::new()),
            (1, None) => (schedules::gemm().into(), Vec::new()),
            (_, Some(_)) => (gemm.schedule().biased(), gemm.choices()),
            (_, None) => (gemm.schedule().work(), gemm.choices()),
        };
        self.op(work, w.layout, shape(rows, n, k), choices, coded)
    }

    /// Refuses more rows than there are.
    pub fn rows(&self, rows: usize) -> Result<(), Error> {
        let [most, _] = self.userbuffers.shape();
        match (1..=most).contains(&rows) {
            true => Ok(()),
            false => Err(Error::Usage {
                what: format!("{rows} rows, with a buffer for {most}"),
                legal: format!("give 1 to {most}"),
            }),
        }
    }

    /// Rows of a full shard.
    fn each(&self, rows: usize) -> usize {
        rows.div_ceil(self.rank().world() as usize)
    }

    /// The buffer with so many columns, in a call of so many rows over all ranks.
    pub fn buffer(&self, rows: usize, columns: usize) -> Result<UserBuffer<bf16>, Error> {
        self.rows(rows)?;
        let whole = self.each(rows) * self.rank().world() as usize;
        self.userbuffers.gathered([whole, columns])
    }

    /// This rank's rows of so many, or all of them.
    pub fn part(&self, rows: usize, local_chunk: bool) -> Range<usize> {
        let rank = self.rank();
        match local_chunk {
            true => rank.shard(rank.rank(), rows),
            false => 0..rows,
        }
    }

    /// The rows of the buffer that an input of that shape is copied to, in a call of so many.
    pub fn place(
        &self,
        rows: usize,
        [own, columns]: [usize; 2],
        local_chunk: bool,
    ) -> Result<(UserBuffer<bf16>, Range<usize>), Error> {
        let all = self.buffer(rows, columns)?;
        let part = self.part(rows, local_chunk);
        match own == part.len() {
            true => Ok((all, part)),
            false => Err(Error::Usage {
                what: format!("{own} rows copied into the buffer"),
                legal: format!("give {}: rows {part:?} of {rows}", part.len()),
            }),
        }
    }

    pub fn copy_into_buffer(
        &self,
        rows: usize,
        input: &Tensor<bf16>,
        local_chunk: bool,
    ) -> Result<(), Error> {
        let _turn = self.userbuffers.turn();
        let (all, part) = self.place(rows, input.shape(), local_chunk)?;
        match part.is_empty() {
            true => Ok(()),
            false => all.rows(part)?.copy_from(input),
        }
    }

    pub fn get_buffer(
        &self,
        rows: usize,
        columns: usize,
        local_chunk: bool,
    ) -> Result<UserBuffer<bf16>, Error> {
        let part = self.part(rows, local_chunk);
        self.buffer(rows, columns)?.rows(part)
    }

    /// `d = reduce_scatter(x · w) + bias`, by the product of a row-parallel layer's output.
    pub fn reduced(
        &self,
        rows: usize,
        x: Factor<'_>,
        w: Operand<'_>,
        rs_output: &mut Tensor<bf16>,
        product: Of,
    ) -> Result<(), Error> {
        x.has_one_scale()?;
        self.rows(rows)?;
        let [n, k] = w.sides()?;
        fits("x", x.shape(), [rows, k])?;
        let own = self.rank().shard(self.rank().rank(), rows).len();
        fits("rs_output", rs_output.shape(), [own, n])?;
        let built = self.whole(product, x.codes(), &w)?;
        let _turn = self.userbuffers.turn();
        let launch = built.op.on(&**self.rank());
        let launch = launch.tensor("x", x).tensor("w", w.tensor);
        let launch = with_bias(launch, w.bias).tensor("y", rs_output);
        launch.rows(rows).launch().map(drop)
    }
}

fn product_of((parallel, pass, method): Of, settings: &Settings) -> Result<Gemm, Error> {
    let settings = &Settings {
        method: Some(method),
        ..settings.clone()
    };
    Gemm::new(&GemmName::new("communicator", pass)?, parallel, settings)
}

pub(super) fn with_bias<'a>(
    launch: counterflow::op::Launch<'a>,
    bias: Option<impl Into<Argument<'a>>>,
) -> counterflow::op::Launch<'a> {
    match bias {
        Some(bias) => launch.tensor("bias", bias),
        None => launch,
    }
}

pub(super) use crate::linear::fits;
