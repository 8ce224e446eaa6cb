//! A linear layer that ranks share.

mod backward;
mod blocks;
mod casts;
mod config;
mod forward;
mod fp8;
mod operand;
mod place;
mod plan;
mod source;

use crate::gradient_sum::GradientSum;
use crate::overlap::{Overlap, Parallel, Pass};
use crate::scratch::Lent;
use crate::step::{Built, Step, compile_ahead, together};
use crate::userbuffers::Userbuffers;
use casts::{Fp8, Kept};
pub use config::LinearConfig;
use counterflow::op::Workspace;
use counterflow::prelude::bf16;
use counterflow::{Communicator, Error, Tensor};
pub use place::{GradientPlace, OutputGradient};
use plan::Plan;
pub(crate) use source::{Place, Source};
use std::sync::Arc;

impl LinearConfig {
    /// The memory of the layer's ops at most, beside the buffers and tensors. [`Workspace::together`] is that of several layers.
    ///
    /// # Errors
    /// As [`Linear::new`], as far as nothing needs to be allocated.
    pub fn workspace(&self, userbuffers: &Userbuffers) -> Result<Workspace, Error> {
        let plan = Plan::new(userbuffers, self)?;
        let steps = plan.steps();
        let each = steps.map(|step| step.workspace(userbuffers.rank()));
        Ok(Workspace::together(each.collect::<Result<Vec<_>, _>>()?))
    }
}

/// Proves and compiles side by side what these layers will build one after another, as [`compile_ahead`] does.
pub(crate) fn ahead<const N: usize>(userbuffers: &Userbuffers, layers: [LinearConfig; N]) {
    // What cannot be planned is refused where it is built.
    let plans = layers.map(|config| Plan::new(userbuffers, &config).ok());
    let steps = plans.iter().flatten().flat_map(Plan::steps);
    compile_ahead(userbuffers.rank(), steps);
}

/// A layer's weights on one rank, which the caller owns.
#[derive(Clone, Copy, Debug)]
pub struct Parameters<'a> {
    /// This rank's part, [`Linear::weight_shape`]: rows of output features, columns of input features.
    pub weight: &'a Tensor<bf16>,
    /// If the layer has one: of this rank's output features if it is column-parallel; otherwise whole and the same on every rank.
    pub bias: Option<&'a Tensor<bf16>>,
}

/// Tensors that gradients of a layer's weights are added to.
#[derive(Debug, Default)]
pub struct Gradients<'a> {
    /// In the weight's shape. `None` if the layer is frozen.
    pub weight: Option<&'a mut Tensor<f32>>,
    /// In the bias's shape; `None`: it is not computed. In a row-parallel layer all ranks get the whole gradient: do not sum it
    /// over ranks.
    pub bias: Option<&'a mut Tensor<f32>>,
}

/// Tensors that a forward pass leaves for the backward pass. It keeps a handle of the input: do not write to that
/// before the backward pass is enqueued. Drop it where there is none.
#[derive(Debug)]
pub struct Saved {
    rows: usize,
    /// `None`: a kernel writes it again.
    input: Option<Tensor<bf16>>,
    /// The input of all ranks.
    gathered: Option<Lent<bf16>>,
    /// Of a layer of FP8, in place of both.
    kept: Option<Kept>,
}

impl Saved {
    /// Rows over all ranks.
    pub(crate) fn rows(&self) -> usize {
        self.rows
    }

    pub(crate) fn input(&self) -> Option<&Tensor<bf16>> {
        self.input.as_ref()
    }

    /// True if codes are kept, so that nothing reads the input any more.
    pub(crate) fn has_codes(&self) -> bool {
        self.kept.is_some()
    }

    /// Lets the memory of the input go: who calls the backward pass has it again by then.
    pub(crate) fn forget_input(&mut self) {
        self.input = None;
    }
}

/// A product of a layer, and what does it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Product {
    /// The layer's name, if it has one.
    pub layer: Option<String>,
    /// Pass of the product.
    pub pass: Pass,
    /// The schedule.
    pub schedule: String,
    /// The variant of it that was built.
    pub variant: String,
    /// Reason of the schedule: settings, or of the method `auto` a table of winners or the model.
    pub why: String,
    /// True if communication of the layer runs in the same kernel.
    pub overlaps: bool,
}

/// A linear layer whose weight ranks divide, with sequence parallelism: between layers each rank has a shard of the rows.
///
/// Column-parallel: `y = all_gather(x) · wᵀ + b`. A rank gets all rows of its output features. Row-parallel: `y = reduce_scatter(x ·
/// wᵀ) + b`. A rank has all rows of its input features and gets its shard of the rows. Each call says how many rows there are
/// over all ranks; shards are those of [`Communicator::shard`], of which the last may be short or empty.
///
/// Elements are bf16, or with [`LinearConfig::fp8`] what products multiply is FP8; sums are f32, and the same inputs give the same bits in every run. Work is enqueued in the order of the
/// rank's own stream ([`Communicator::stream`]); no call of a pass builds or loads anything, or waits for the GPU or for a peer. All ranks call the same layers in the same order, with the same rows. The crate's
/// [example](crate) has both passes.
#[derive(Debug)]
pub struct Linear {
    userbuffers: Userbuffers,
    config: LinearConfig,
    overlap: Overlap,
    /// True if the kernel of the input's gradient also gathers the input, for the weight's gradient.
    gathers_beside_dgrad: bool,
    /// Output and input features of this rank.
    sides: [usize; 2],
    fprop: Built,
    dgrad: Built,
    /// The gradient of the weight, unless it is frozen.
    wgrad: Option<Built>,
    /// A gather by itself: of the input, or of the output's gradient.
    gather: Option<Built>,
    /// A gather of scales, with codes along tokens.
    gather_scales: Option<Built>,
    /// A reduce-scatter by itself: of the output, or of the input's gradient.
    sum: Option<Built>,
    /// Sum that is made by itself, or beside another product.
    partial: Option<Tensor<bf16>>,
    bias: Option<BiasGradient>,
    fp8: Option<Fp8>,
}

/// The sum of a gradient's rows, as a product with ones: `onesᵀ · dy`.
#[derive(Debug)]
struct BiasGradient {
    built: Built,
    /// A column of ones, and columns of zeros: as many as rows of memory need.
    ones: Tensor<bf16>,
    /// The sums, and a row of zeros for each other column.
    sums: Tensor<f32>,
    /// Where each rank sums its own rows: those that it gathers are codes.
    over_ranks: Option<GradientSum>,
}

impl Linear {
    /// Builds and loads all that the layer's passes need, for up to as many rows as the buffers have. Collective: every rank makes the
    /// same, and all meet behind the last load, since the driver may let a load wait for kernels, which may wait for a peer.
    ///
    /// # Errors
    /// [`Error::Usage`] for features that ranks cannot divide, or that the buffers have no columns for; for overlaps without a
    /// name; for a name and settings that do not fit. As [`OpBuilder::build`](counterflow::OpBuilder::build) for each op.
    pub fn new(userbuffers: &Userbuffers, config: &LinearConfig) -> Result<Linear, Error> {
        let plan = Plan::new(userbuffers, config)?;
        compile_ahead(userbuffers.rank(), plan.steps());
        together(userbuffers.rank(), || Linear::of(userbuffers, config, plan))
    }

    fn of(userbuffers: &Userbuffers, config: &LinearConfig, plan: Plan) -> Result<Linear, Error> {
        let rank: &Communicator = userbuffers.rank();
        let [rows, _] = userbuffers.shape();
        let [out, _] = plan.sides;
        let build = |step: &Option<Step>| step.as_ref().map(|step| step.build(rank)).transpose();
        let bias = build(&plan.bias)?.map(|built| {
            let ones = rank.zeros::<bf16>([rows, plan::ONES])?;
            let line = |at| {
                if at % plan::ONES == 0 {
                    bf16::ONE
                } else {
                    bf16::ZERO
                }
            };
            ones.write(&Vec::from_iter((0..rows * plan::ONES).map(line)))?;
            let sums = rank.zeros([plan::ONES, out])?;
            let apart =
                config.fp8.is_some() && config.parallel == Parallel::Row && rank.world() > 1;
            let margin = userbuffers.sm_margin();
            let over_ranks = apart.then(|| GradientSum::of_one(userbuffers.rank(), out, margin));
            Ok::<_, Error>(BiasGradient {
                built,
                ones,
                sums,
                over_ranks: over_ranks.transpose()?,
            })
        });
        let fp8 = config.fp8.as_ref();
        let fp8 = fp8.map(|recipe| Fp8::new(userbuffers, recipe, plan.sides));
        Ok(Linear {
            fprop: plan.fprop.build(rank)?,
            dgrad: plan.dgrad.build(rank)?,
            wgrad: build(&plan.wgrad)?,
            gather: build(&plan.gather)?,
            gather_scales: build(&plan.gather_scales)?,
            sum: build(&plan.sum)?,
            partial: plan
                .partial
                .map(|columns| rank.zeros([rows, columns]))
                .transpose()?,
            bias: bias.transpose()?,
            fp8: fp8.transpose()?,
            userbuffers: userbuffers.clone(),
            config: config.clone(),
            overlap: plan.overlap,
            gathers_beside_dgrad: plan.gathers_beside_dgrad,
            sides: plan.sides,
        })
    }

    /// Sizes and settings of the layer.
    pub fn config(&self) -> &LinearConfig {
        &self.config
    }

    /// The overlaps that its flags gave it.
    pub fn overlap(&self) -> Overlap {
        self.overlap
    }

    /// Products of the layer, each with the schedule that does it: the proof of what is fused.
    pub fn products(&self) -> Vec<Product> {
        let built = |pass, built: &Built, overlaps| Product {
            layer: self.config.ub_name.clone(),
            pass,
            schedule: built.schedule.clone(),
            variant: built.op.variant().to_string(),
            why: built.why.clone(),
            overlaps: overlaps && built.is_fused(),
        };
        let overlap = self.overlap;
        let fprop = built(
            Pass::Fprop,
            &self.fprop,
            overlap.fprop_ag || overlap.fprop_rs,
        );
        let beside = overlap.dgrad_ag || overlap.dgrad_rs || overlap.bulk_dgrad;
        let dgrad = built(Pass::Dgrad, &self.dgrad, beside);
        let wgrad = self.wgrad.as_ref();
        let wgrad = wgrad.map(|op| built(Pass::Wgrad, op, overlap.bulk_wgrad));
        [fprop, dgrad].into_iter().chain(wgrad).collect()
    }

    /// The shape of this rank's weight: output by input features.
    pub fn weight_shape(&self) -> [usize; 2] {
        self.sides
    }

    /// The shape of this rank's bias.
    pub fn bias_shape(&self) -> [usize; 2] {
        [1, self.sides[0]]
    }

    /// The shape of this rank's input, and of its gradient, in a call of so many rows over all ranks.
    pub fn input_shape(&self, rows: usize) -> [usize; 2] {
        match self.config.parallel {
            Parallel::Column => [self.shard(rows), self.sides[1]],
            Parallel::Row => [rows, self.sides[1]],
        }
    }

    /// The shape of this rank's output, and of its gradient, in a call of so many rows over all ranks.
    pub fn output_shape(&self, rows: usize) -> [usize; 2] {
        match self.config.parallel {
            Parallel::Column => [rows, self.sides[0]],
            Parallel::Row => [self.shard(rows), self.sides[0]],
        }
    }

    pub(crate) fn rank(&self) -> &Arc<Communicator> {
        self.userbuffers.rank()
    }

    /// Rows of this rank.
    fn shard(&self, rows: usize) -> usize {
        let rank = self.rank();
        rank.shard(rank.rank(), rows).len()
    }

    /// Memory of the input's shape in a call of so many rows.
    pub(crate) fn lend_input(&self, rows: usize) -> Result<Lent<bf16>, Error> {
        self.lend(
            self.input_shape(rows),
            self.config.parallel == Parallel::Column,
        )
    }

    /// Memory of the output's shape.
    pub(crate) fn lend_output(&self, rows: usize) -> Result<Lent<bf16>, Error> {
        self.lend(
            self.output_shape(rows),
            self.config.parallel == Parallel::Row,
        )
    }

    /// Memory of rows of this rank, or of all rows.
    fn lend(&self, shape: [usize; 2], is_shard: bool) -> Result<Lent<bf16>, Error> {
        let [most, _] = self.userbuffers.shape();
        let most = if is_shard { self.each(most) } else { most };
        self.userbuffers.lend(shape, most * shape[1])
    }

    /// Some numbers in f32 for each of this rank's rows, or for each row.
    pub(crate) fn lend_numbers(
        &self,
        rows: usize,
        numbers: usize,
        is_shard: bool,
    ) -> Result<Lent<f32>, Error> {
        let [most, _] = self.userbuffers.shape();
        let most = if is_shard { self.each(most) } else { most };
        self.userbuffers.lend_f32([rows, numbers], most * numbers)
    }

    /// Rows of a full shard.
    fn each(&self, rows: usize) -> usize {
        rows.div_ceil(self.rank().world() as usize)
    }

    /// Refuses a call before anything of it is enqueued.
    fn checks(&self, rows: usize, parameters: &Parameters<'_>) -> Result<(), Error> {
        exceeds(rows, self.userbuffers.shape()[0])?;
        self.fits_blocks(rows)?;
        fits("the weight", parameters.weight.shape(), self.weight_shape())?;
        match (parameters.bias, self.config.bias) {
            (Some(bias), true) => fits("the bias", bias.shape(), self.bias_shape()),
            (None, false) => Ok(()),
            (given, _) => Err(Error::Usage {
                what: format!(
                    "a bias is {}given",
                    if given.is_some() { "" } else { "not " }
                ),
                legal: "give one where `LinearConfig::bias` is set, and nowhere else".into(),
            }),
        }
    }
}

/// Refuses more rows than the buffers have.
fn exceeds(rows: usize, most: usize) -> Result<(), Error> {
    match rows > most {
        false => Ok(()),
        true => Err(Error::Usage {
            what: format!("{rows} rows, with buffers for {most}"),
            legal: "initialize the buffers for the most rows that there are".into(),
        }),
    }
}

/// Refuses a tensor of another shape.
pub(crate) fn fits(what: &str, given: [usize; 2], wanted: [usize; 2]) -> Result<(), Error> {
    if given == wanted {
        return Ok(());
    }
    Err(Error::Usage {
        what: format!("{what} is {} x {}", given[0], given[1]),
        legal: format!("give {} x {}", wanted[0], wanted[1]),
    })
}
