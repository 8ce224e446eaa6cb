//! Which ops a layer needs.

use super::config::LinearConfig;
use crate::fp8::Role;
use crate::overlap::{Gemm, Overlap, Parallel, Schedule};
use crate::schedules as ours;
use crate::step::{CODES, CodedStep, Step, blocks, shape, size};
use crate::userbuffers::Userbuffers;
use counterflow::{Dtype, Error, Layout, Program, schedules};

/// Columns of the ones that a bias's gradient is multiplied by: a row has 16 bytes.
pub(super) const ONES: usize = 8;

pub(super) struct Plan {
    pub overlap: Overlap,
    /// True if the kernel of the input's gradient also gathers the input, for the weight's gradient.
    pub gathers_beside_dgrad: bool,
    /// Output and input features of this rank.
    pub sides: [usize; 2],
    pub fprop: Step,
    pub dgrad: Step,
    pub wgrad: Option<Step>,
    pub gather: Option<Step>,
    pub gather_scales: Option<Step>,
    pub sum: Option<Step>,
    pub bias: Option<Step>,
    /// Columns of what is summed outside of its product.
    pub partial: Option<usize>,
}

/// The products of a layer that has a name.
type Named = Option<[Gemm; 3]>;

impl Plan {
    pub fn new(userbuffers: &Userbuffers, config: &LinearConfig) -> Result<Plan, Error> {
        let world = userbuffers.rank().world();
        let overlap = config
            .flags
            .overlap(config.parallel, true, world, config.frozen);
        let in_blocks = config.fp8.is_some_and(|recipe| recipe.is_of_blocks());
        let overlap = Overlap {
            // What is kept is not gathered again, and scales of blocks need codes along tokens, one rank's after another's.
            bulk_dgrad: overlap.bulk_dgrad && !config.keep_gathered && !in_blocks,
            bulk_wgrad: overlap.bulk_wgrad && !in_blocks,
            ..overlap
        };
        let sides = divided(config, world)?;
        if let Some(recipe) = &config.fp8 {
            recipe.checks(world)?;
            codes(sides)?;
        }
        userbuffers.config(config.mode())?;
        let named = names(userbuffers, config, overlap)?;
        fits(userbuffers, config)?;
        let of = Of {
            config,
            overlap,
            named,
            sides,
            rows: userbuffers.shape()[0],
            world: world as usize,
        };
        let margin = |step: Step| step.margin(userbuffers.sm_margin());
        Ok(Plan {
            overlap,
            gathers_beside_dgrad: of.gathers_beside_dgrad(),
            sides,
            fprop: margin(of.fprop()),
            dgrad: margin(of.dgrad()),
            wgrad: (!config.frozen).then(|| margin(of.wgrad())),
            gather: of.gather().map(margin),
            gather_scales: of.gather_scales().map(margin),
            sum: of.sum().map(margin),
            bias: config.bias.then(|| margin(of.bias())),
            partial: of.partial(),
        })
    }

    pub fn steps(&self) -> impl Iterator<Item = &Step> {
        let always = [&self.fprop, &self.dgrad].into_iter();
        let some = [
            &self.wgrad,
            &self.gather,
            &self.gather_scales,
            &self.sum,
            &self.bias,
        ];
        always.chain(some.into_iter().flatten())
    }
}

/// Output and input features of a rank.
fn divided(config: &LinearConfig, world: u32) -> Result<[usize; 2], Error> {
    let world = world as usize;
    let LinearConfig {
        in_features,
        out_features,
        ..
    } = *config;
    let (side, name) = match config.parallel {
        Parallel::Column => (out_features, "out_features"),
        Parallel::Row => (in_features, "in_features"),
    };
    if side == 0 || !side.is_multiple_of(world) {
        return Err(Error::Usage {
            what: format!("{name} is {side}, which {world} ranks divide"),
            legal: format!("give a multiple of {}", 8 * world),
        });
    }
    Ok(match config.parallel {
        Parallel::Column => [out_features / world, in_features],
        Parallel::Row => [out_features, in_features / world],
    })
}

/// Codes in a row of memory are a multiple of 16.
fn codes(sides: [usize; 2]) -> Result<(), Error> {
    match sides.iter().find(|side| !side.is_multiple_of(CODES)) {
        None => Ok(()),
        Some(side) => Err(Error::Usage {
            what: format!("{side} features on a rank, of a layer of FP8"),
            legal: format!("give multiples of {CODES} on each rank"),
        }),
    }
}

/// The settings of the layer's products, if it has a name.
fn names(
    userbuffers: &Userbuffers,
    config: &LinearConfig,
    overlap: Overlap,
) -> Result<Named, Error> {
    let Some(name) = &config.ub_name else {
        return match overlap.any() {
            false => Ok(None),
            true => Err(Error::Usage {
                what: "a layer overlaps its communication and has no ub_name".into(),
                legal:
                    "give qkv, proj, fc1, fc2, or a name of your own: its settings are found by it"
                        .into(),
            }),
        };
    };
    let products = userbuffers.config(config.mode())?;
    let products = products.layer(name, config.parallel)?;
    overlap.fits(&products[1])?;
    Ok(Some(products))
}

/// Checks that what is gathered and summed has the input's columns, or the output's.
fn fits(userbuffers: &Userbuffers, config: &LinearConfig) -> Result<(), Error> {
    let [_, most] = userbuffers.shape();
    let (columns, name) = match config.parallel {
        Parallel::Column => (config.in_features, "in_features"),
        Parallel::Row => (config.out_features, "out_features"),
    };
    if columns > most {
        return Err(Error::Usage {
            what: format!("{name} is {columns}, with buffers of {most} columns"),
            legal: "initialize the buffers with the largest hidden size that layers have".into(),
        });
    }
    if config.keep_gathered && config.fp8.is_some_and(|recipe| recipe.is_of_blocks()) {
        return Err(Error::Usage {
            what: "keep_gathered with scales of blocks".into(),
            legal:
                "leave it out: a weight's gradient needs other codes than those that are gathered"
                    .into(),
        });
    }
    if config.keep_gathered && config.parallel == Parallel::Row {
        return Err(Error::Usage {
            what: "keep_gathered of a row-parallel layer".into(),
            legal: "leave it out: such a layer has all rows of its input".into(),
        });
    }
    Ok(())
}

/// Facts that the steps follow from.
struct Of<'a> {
    config: &'a LinearConfig,
    overlap: Overlap,
    named: Named,
    sides: [usize; 2],
    rows: usize,
    world: usize,
}

impl Of<'_> {
    fn alone(&self) -> bool {
        self.world == 1
    }

    /// The schedule and choices that the settings of a product make.
    fn by_settings(&self, product: usize) -> Option<(Schedule, Settled)> {
        let gemm = &self.named.as_ref()?[product];
        Some((gemm.schedule(), gemm.choices()))
    }

    /// The FP8 operands of a product by the weight: what is multiplied, and whether sums are promoted.
    fn by_weight(&self, role: Role, promote: bool) -> Option<CodedStep> {
        let recipe = self.config.fp8.as_ref()?;
        Some(CodedStep {
            codes: [recipe.codes(role), recipe.codes(Role::Weight)],
            scales: recipe.by_weight(),
            promote: promote && !recipe.is_of_blocks(),
        })
    }

    /// True if rows with scales of blocks are gathered: in the kernel of their product, overlapped or not, since each shard's scales are
    /// a plane of their own.
    fn gathers_blocks(&self) -> bool {
        self.in_blocks() && !self.alone()
    }

    fn in_blocks(&self) -> bool {
        self.config.fp8.is_some_and(|recipe| recipe.is_of_blocks())
    }

    /// True if the input is gathered again, for the weight's gradient, in the kernel of its own gradient.
    fn gathers_beside_dgrad(&self) -> bool {
        self.overlap.bulk_dgrad || self.sums_beside_gather()
    }

    /// True if that kernel also sums over ranks.
    fn sums_beside_gather(&self) -> bool {
        let column = self.config.parallel == Parallel::Column && !self.alone();
        let again = !self.config.frozen && !self.config.keep_gathered && !self.in_blocks();
        column && again && self.overlap.dgrad_rs
    }

    /// Rows of a full shard.
    fn each(&self) -> usize {
        self.rows.div_ceil(self.world)
    }

    /// Columns of bf16 that what is gathered has: two codes each.
    fn moved(&self, columns: usize) -> usize {
        match self.config.fp8 {
            Some(_) => columns / 2,
            None => columns,
        }
    }

    fn fprop(&self) -> Step {
        let [out, depth] = self.sides;
        let overlaps = self.overlap.fprop_ag || self.overlap.fprop_rs;
        let fused = overlaps.then(|| self.by_settings(0)).flatten();
        // A sum by itself adds the bias.
        let later = self.config.parallel == Parallel::Row && !self.alone() && fused.is_none();
        let bias = self.config.bias && !later;
        let gathers = self.config.parallel == Parallel::Column && self.gathers_blocks();
        let (work, choices) = match fused {
            Some((schedule, choices)) if bias => (schedule.biased(), choices),
            Some((schedule, choices)) => (schedule.work(), choices),
            None if gathers && bias => (ours::ag_gemm_bias().into(), Vec::new()),
            None if gathers => (schedules::ag_gemm().into(), Vec::new()),
            None if bias => (ours::gemm_bias().into(), Vec::new()),
            None => (schedules::gemm().into(), Vec::new()),
        };
        Step {
            work,
            layout: Layout::Nt,
            shape: shape(self.rows, out, depth),
            choices,
            coded: self.by_weight(Role::Input, false),
            margin: 0,
            dtype: None,
        }
    }

    fn dgrad(&self) -> Step {
        let [depth, columns] = self.sides;
        let Overlap {
            dgrad_ag,
            dgrad_rs,
            bulk_dgrad,
            ..
        } = self.overlap;
        let overlaps = dgrad_ag || dgrad_rs || bulk_dgrad;
        let fused = overlaps.then(|| self.by_settings(1)).flatten();
        let (work, choices) = match fused {
            // One kernel for both: a gather by itself would stand in line before it.
            Some(_) if self.sums_beside_gather() => {
                (ours::gemm_rs_beside_gather().into(), Vec::new())
            }
            Some((schedule, choices)) => (schedule.work(), choices),
            None if self.config.parallel == Parallel::Row && self.gathers_blocks() => {
                (schedules::ag_gemm().into(), Vec::new())
            }
            None => (schedules::gemm().into(), Vec::new()),
        };
        let product = shape(self.rows, columns, depth);
        Step {
            work,
            // Codes are multiplied along their rows: the weight is on its side.
            layout: match self.config.fp8 {
                Some(_) => Layout::Nt,
                None => Layout::Nn,
            },
            shape: match self.gathers_beside_dgrad() {
                true => product.dim("z.columns", size(self.moved(columns))),
                false => product,
            },
            choices,
            coded: self.by_weight(Role::Gradient, true),
            margin: 0,
            dtype: None,
        }
    }

    fn wgrad(&self) -> Step {
        let [out, columns] = self.sides;
        let bulk = self.overlap.bulk_wgrad;
        let fused = bulk.then(|| self.by_settings(2)).flatten();
        let (work, choices) = match fused {
            Some((schedule, choices)) => (schedule.work(), choices),
            None => (schedules::wgrad().into(), Vec::new()),
        };
        let coded = self.config.fp8.map(|recipe| CodedStep {
            codes: [recipe.codes(Role::Gradient), recipe.codes(Role::Input)],
            scales: recipe.along_tokens(),
            promote: !recipe.is_of_blocks(),
        });
        let depth = match coded {
            Some(_) => self.rows.next_multiple_of(CODES),
            None => self.rows,
        };
        let product = shape(out, columns, depth);
        Step {
            work,
            layout: match coded {
                Some(_) => Layout::Nt,
                None => Layout::Tn,
            },
            coded,
            shape: match bulk {
                true => product
                    .dim("g.rows", size(self.rows))
                    .dim("g.columns", size(columns)),
                false => product,
            },
            choices,
            margin: 0,
            dtype: None,
        }
    }

    /// Columns of what is gathered along tokens, if scales are of blocks.
    fn along_tokens(&self) -> Option<usize> {
        let needed = self.gathers_blocks() && !self.config.frozen;
        needed.then(|| match self.config.parallel {
            Parallel::Column => self.sides[1],
            Parallel::Row => self.sides[0],
        })
    }

    fn gather_scales(&self) -> Option<Step> {
        let columns = self.along_tokens()?;
        let lines = self.world * blocks(self.each());
        let sizes = shape(lines, columns, columns);
        let step = Step::new(schedules::all_gather(), Layout::Nt, sizes);
        Some(step.of(Dtype::F32))
    }

    fn gather(&self) -> Option<Step> {
        if self.in_blocks() {
            let columns = self.along_tokens()?;
            let rows = self.world * self.each().next_multiple_of(CODES);
            let sizes = shape(rows, columns / 2, columns / 2);
            return Some(Step::new(schedules::all_gather(), Layout::Nt, sizes));
        }
        let LinearConfig {
            frozen,
            keep_gathered,
            ..
        } = *self.config;
        let again = !frozen && !keep_gathered && !self.gathers_beside_dgrad();
        let (needed, columns) = match self.config.parallel {
            Parallel::Column => (!self.overlap.fprop_ag || again, self.sides[1]),
            Parallel::Row => (!self.overlap.dgrad_ag, self.sides[0]),
        };
        let columns = self.moved(columns);
        (needed && !self.alone()).then(|| self.moves(schedules::all_gather(), columns))
    }

    fn sum(&self) -> Option<Step> {
        let program = match self.config.parallel {
            Parallel::Row if self.config.bias => ours::reduce_scatter_bias(),
            Parallel::Row | Parallel::Column => schedules::reduce_scatter(),
        };
        let columns = self.partial()?;
        let beside = self.overlap.bulk_wgrad;
        (!beside).then(|| self.moves(program, columns))
    }

    fn partial(&self) -> Option<usize> {
        let (inside, columns) = match self.config.parallel {
            Parallel::Column => (self.overlap.dgrad_rs, self.sides[1]),
            Parallel::Row => (self.overlap.fprop_rs, self.sides[0]),
        };
        (!inside && !self.alone()).then_some(columns)
    }

    fn bias(&self) -> Step {
        Step::new(
            schedules::wgrad(),
            Layout::Tn,
            shape(ONES, self.sides[0], self.rows),
        )
    }

    fn moves(&self, program: Program, columns: usize) -> Step {
        Step::new(program, Layout::Nt, shape(self.rows, columns, columns))
    }
}

/// Choices by name.
type Settled = Vec<(&'static str, counterflow::Setting)>;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::overlap::{Flags, ModuleFlags};
    use crate::userbuffers::{Initialize, QuantizationMode};
    use counterflow::Communicator;
    use std::sync::Arc;

    /// Kernels of other libraries may wait for SMs beside any op of a pass.
    #[test]
    fn every_op_leaves_the_margin() {
        let ranks: Vec<_> = Communicator::emulated(2).expect("ranks");
        Communicator::each(&ranks, |world| {
            let rank = Arc::new(world.split(0, world.rank())?);
            rank.reserve(8 << 20)?;
            let of = |ext_margin_sm| {
                let arguments = Initialize {
                    quantization_modes: vec![QuantizationMode::None, QuantizationMode::Fp8],
                    ext_margin_sm,
                    ..Initialize::new([64, 64], 2)
                };
                Userbuffers::initialize(&rank, &arguments)
            };
            let buffers = of(5)?;
            for config in [LinearConfig::column(64, 64), LinearConfig::row(64, 64)] {
                let on = ModuleFlags {
                    ub_tp_comm_overlap: true,
                    ..ModuleFlags::default()
                };
                for flags in [Flags::default(), on.flags()] {
                    let config = LinearConfig {
                        flags,
                        bias: true,
                        ub_name: Some("mine".into()),
                        ..config.clone()
                    };
                    let plan = Plan::new(&buffers, &config)?;
                    assert!(plan.steps().count() > 3);
                    assert!(
                        plan.steps().all(|step| step.margin == 5),
                        "{:?}",
                        plan.overlap
                    );
                }
            }
            let told = of(132)
                .map(drop)
                .expect_err("amaxes are exchanged")
                .to_string();
            assert_eq!(told, "132 of 132 SMs left to others");
            Ok(())
        })
        .expect("two ranks");
    }
}
