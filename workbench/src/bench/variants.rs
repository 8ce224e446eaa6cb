//! The candidate kernels: the choices of a schedule, the legal ones, the model's favourites.

use super::beside::Beside;
use super::roles::Roles;
use super::room::{Room, What};
use crate::args::{Many, Verb};
use crate::size;
use crate::suite::{Case, Side};
use crate::switch;
use counterflow_codegen::diag::Diagnostics;
use counterflow_codegen::kernel::Kernel;
use counterflow_codegen::lower;
use counterflow_codegen::machine::Machine;
use counterflow_codegen::plan::{Grid, Plan};
use counterflow_codegen::program::{Program, Setting, TensorId, Usage};
use counterflow_codegen::shape::Shape;
use counterflow_codegen::variant::{Asked, Tensors, Variant};
use counterflow_codegen::verify::{self, Checked, Series};
use counterflow_codegen::warp::Pipeline;
use counterflow_runtime::Error;
use counterflow_runtime::family::Collective;
use counterflow_runtime::gpus::Memory;
use counterflow_runtime::tuned::{self, Ranked};
use std::collections::BTreeMap;
use std::sync::OnceLock;

/// A variant's choices, by name, as tables have them.
pub(super) type Choices = BTreeMap<String, String>;

/// A candidate kernel, before a shape is known.
#[derive(Debug)]
pub(super) struct Built {
    /// Choices, in the form of `--set`.
    pub name: String,
    pub choices: BTreeMap<String, Setting>,
    pub kernel: Checked<Kernel>,
    pub roles: Roles,
    /// Built on first use: most variants are only ranked.
    pipeline: OnceLock<Result<Checked<Pipeline>, Diagnostics>>,
}

/// A kernel and its numbers for one shape.
#[derive(Debug)]
pub(super) struct Planned<'a> {
    pub built: &'a Built,
    pub pipeline: &'a Checked<Pipeline>,
    pub series: Series,
    pub plan: Checked<Plan>,
    /// The exchange of few rows that is launched instead of the kernel.
    pub collective: Option<Collective>,
    /// Choices as a table has them; none if it only stands beside the others.
    pub recorded: Option<Choices>,
}

impl Planned<'_> {
    /// Memory for what stands beside its result, which is multiplied by so much if it is FP8.
    pub(super) fn beside(
        &self,
        room: (&Room<'_>, fn(TensorId) -> What),
        given: f32,
    ) -> Result<Beside<Memory>, Error> {
        let built = self.built;
        Beside::new(room, &built.kernel, built.roles.y, given)
    }

    /// Schedule and choices.
    pub(super) fn name(&self) -> String {
        match self.collective {
            // The choices are of the kernel that is not launched.
            Some(_) => self.built.kernel.name.clone(),
            None => format!("{} {}", self.built.kernel.name, self.built.name),
        }
    }
}

/// Division of a schedule's product over ranks, in the terms of a suite.
pub(super) fn side(program: &Program) -> Option<Side> {
    let has = |what: fn(Usage) -> bool| program.tensors.iter().any(|tensor| what(tensor.usage));
    if has(|usage| usage == Usage::GATHERED) {
        Some(Side::Columns)
    } else if has(Usage::is_sum) {
        Some(Side::Depth)
    } else {
        None
    }
}

/// The kernel of a variant, checked.
///
/// # Errors
/// What lowering or the verifier rejects.
pub(super) fn build(program: &Program, variant: &Variant) -> Result<Built, Error> {
    built(program, variant, Roles::of)
}

/// Builds a stage of a family's candidate, which may only move data.
pub(super) fn build_stage(program: &Program, variant: &Variant) -> Result<Built, Error> {
    built(program, variant, |kernel| match kernel.gemm() {
        Some(_) => Roles::of(kernel),
        None => Ok(Roles::of_moves(kernel)),
    })
}

fn built(
    program: &Program,
    variant: &Variant,
    roles: fn(&Kernel) -> Result<Roles, Error>,
) -> Result<Built, Error> {
    let kernel = verify::kernel(lower::lower(program, variant)?)?;
    if kernel.needs_multicast() {
        return Err(switch::refused(Verb::Bench, program));
    }
    let choices: BTreeMap<String, Setting> = tuned::choices(program)
        .into_iter()
        .filter_map(|(name, options)| {
            let chosen = variant.choices.get(name).or(options.first())?;
            Some((name.to_owned(), *chosen))
        })
        .collect();
    let words = choices.iter();
    let words = words.map(|(name, setting)| format!("{name}={setting}"));
    Ok(Built {
        name: words.collect::<Vec<_>>().join(" "),
        roles: roles(&kernel)?,
        choices,
        kernel,
        pipeline: OnceLock::new(),
    })
}

/// Plane of an operand in memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Plane {
    Elements,
    Scales,
}

impl Built {
    /// Choices as a table has them.
    fn words(&self) -> Choices {
        let choices = self.choices.iter();
        let words = choices.map(|(name, setting)| (name.clone(), setting.to_string()));
        words.collect()
    }

    /// The tensors of both operands.
    pub(super) fn operands(&self) -> [TensorId; 2] {
        [self.roles.x, self.roles.w]
    }

    /// Operand that a tensor is, or has the scales of: 0 for the left one.
    pub(super) fn operand(&self, tensor: TensorId) -> Option<(usize, Plane)> {
        let (of, plane) = match self.kernel.buffers[tensor.index()].usage.given_scale_of() {
            Some(of) => (of, Plane::Scales),
            None => (tensor, Plane::Elements),
        };
        let side = self.operands().into_iter().position(|one| one == of)?;
        Some((side, plane))
    }

    /// The scales of an operand.
    pub(super) fn scales(&self, side: usize) -> Option<TensorId> {
        let mut tensors = (0..self.kernel.buffers.len()).map(|index| TensorId(index as u16));
        tensors.find(|tensor| self.operand(*tensor) == Some((side, Plane::Scales)))
    }

    /// True if peers send a tensor's rows to each other before they are multiplied.
    pub(super) fn is_gathered(&self, tensor: TensorId) -> bool {
        self.kernel.buffers[tensor.index()].usage.is_gathered()
    }

    /// Plan for that product on that machine.
    fn numbers(&self, case: &Case, machine: &Machine) -> Result<(Series, Checked<Plan>), Error> {
        let [m, n, k] = case.size;
        let shape = Shape::new(m, n, k);
        size::plan_fits(&self.kernel, &shape)?;
        let series = verify::series(&self.kernel, &shape, machine)?;
        let plan = series.plan(&shape)?;
        Ok((series, plan))
    }

    /// Rejects what cannot be among the fastest.
    fn asked(&self, grid: &Grid, machine: &Machine) -> Result<(), Error> {
        if tuned::worth_asking(&self.kernel, grid, machine) {
            return Ok(());
        }
        Err(Error::Usage {
            what: format!(
                "{}: CTAs split the steps of each of {} tiles on {} SMs",
                self.kernel.variant, grid.tiles, machine.sms
            ),
            legal: "use gemm.split=1 if each SM has two tiles: sharing steps gains nothing".into(),
        })
    }

    /// Pipeline of the kernel.
    pub(super) fn pipeline(&self) -> Result<&Checked<Pipeline>, Error> {
        let make = || verify::warps(&self.kernel);
        let pipeline = self.pipeline.get_or_init(make).as_ref();
        Ok(pipeline.map_err(Clone::clone)?)
    }

    /// The kernel and its plan for that product on that machine.
    ///
    /// # Errors
    /// Why it is illegal there.
    pub(super) fn plan(&self, case: &Case, machine: &Machine) -> Result<Planned<'_>, Error> {
        let (series, plan) = self.numbers(case, machine)?;
        Ok(Planned {
            built: self,
            series,
            plan,
            collective: None,
            pipeline: self.pipeline()?,
            recorded: Some(self.words()),
        })
    }
}

/// The candidates for one product: all legal kernels, or the model's [shortlist](tuned::shortlist), as an op measures it. Also gives
/// the first rejection, if any.
pub(super) fn contenders(
    all: &[Built],
    case: &Case,
    machine: &Machine,
    many: Many,
) -> (Vec<usize>, Option<Error>) {
    let mut refused = None;
    let mut legal = Vec::new();
    let [m, n, k] = case.size;
    let shape = Shape::new(m, n, k);
    let mut fit = Vec::new();
    for (which, built) in all.iter().enumerate() {
        let fits = match many {
            Many::All => built
                .plan(case, machine)
                .and_then(|planned| built.asked(&planned.plan.grid, machine)),
            Many::Best(_) => size::plan_fits(&built.kernel, &shape),
        };
        match (fits, many) {
            (Ok(()), Many::All) => legal.push(which),
            (Ok(()), Many::Best(_)) => fit.push(which),
            (Err(error), _) => {
                refused.get_or_insert(error);
            }
        }
    }
    if let Many::Best(count) = many {
        let kernels: Vec<_> = fit.iter().map(|which| &all[*which].kernel).collect();
        let mut fits = |ranked: &Ranked| {
            let built = &all[fit[ranked.which]];
            built.asked(&ranked.plan.grid, machine)?;
            built.pipeline().map(drop)
        };
        let list = tuned::shortlist(&kernels, (&shape, machine), count, &mut fits);
        legal.extend(list.kernels.iter().map(|ranked| fit[ranked.which]));
        refused = refused.or(list.refused);
    }
    (legal, refused)
}

/// The plain variant beside one with options whose cost is measured, if it has any, and what it is.
pub(super) fn plain(variant: &Variant) -> Option<(String, Variant)> {
    let outputs = variant.asked(&Tensors::Outputs);
    let options = [
        (outputs.amax, "without --amax"),
        (
            variant.output_rule().is_some(),
            "with a given scale instead of --output-scales",
        ),
        (variant.partial_rule().is_some(), "without --partial"),
        (!variant.constants.is_empty(), "without --constant"),
    ];
    let unlike: Vec<&str> = (options.into_iter())
        .filter_map(|(asked, unlike)| asked.then_some(unlike))
        .collect();
    let given = Asked {
        scale: None,
        amax: false,
        ..outputs
    };
    let plain = variant.clone().encode(Tensors::Outputs, given);
    let mut plain = plain.encode(Tensors::PartialSums, Asked::default());
    plain.constants.clear();
    (!unlike.is_empty()).then(|| (unlike.join(", "), plain))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::suite;
    use counterflow_codegen::builder::{GemmOptions, ScheduleBuilder, tune};
    use counterflow_codegen::dtype::Dtype;
    use counterflow_codegen::rule::{Fp8, ScaleRule};

    /// Four tiles, each in groups of 8 and of 4.
    fn built() -> Vec<Built> {
        let mut s = ScheduleBuilder::new("gemm");
        let [x, w] = ["x", "w"].map(|name| s.local(name, Dtype::Bf16));
        let y = s.out("y", Dtype::Bf16);
        let tiles = tune([(128, 256), (256, 128), (64, 64), (256, 256)]);
        let tiles = s.tiles("tiles", y, tiles);
        s.gemm(GemmOptions::default(), |s| {
            s.for_items("t", tiles.grouped(tune([8, 4])), |s, t| {
                let acc = s.dot(x.at(t), w.at(t));
                s.store(y.at(t), acc);
            });
        });
        let program = s.finish();
        let all = tuned::combinations(&program, &Variant::new(1), &BTreeMap::new());
        let built = all.iter().map(|variant| build(&program, variant));
        built
            .map(|built| built.expect("legal whatever the shape"))
            .collect()
    }

    /// Each option is measured beside the same kernel without it, whose result is of the same type: by a given scale where it made
    /// its own.
    #[test]
    fn what_options_cost_is_measured_beside_the_same_without_them() {
        let rule = ScaleRule::transformer_engine(Fp8::E4M3);
        let fp8 = Variant::new(2).output(Dtype::E4M3);
        let library = crate::library::all();
        let program = |name: &str| {
            let found = library.iter().find(|program| program.name == name);
            found.expect("a schedule")
        };
        let instead = "with a given scale instead of --output-scales";
        let sums = Variant::new(2).quantised_reduction(rule);
        for (name, variant, told, has, left) in [
            (
                "gemm",
                fp8.clone().amax(true),
                "without --amax",
                [true, true, false],
                [true, false, false],
            ),
            (
                "ag_gemm",
                fp8.output_scales(rule),
                instead,
                [false, false, true],
                [true, false, false],
            ),
            ("gemm_rs", sums, "without --partial", [false; 3], [false; 3]),
        ] {
            let variant = variant.set("tiles", (128, 128));
            let ours = build(program(name), &variant).expect("measured");
            let (unlike, without) = plain(&variant).expect("an option");
            let without = build(program(name), &without).expect("measured");
            assert_eq!((&unlike[..], &without.name), (told, &ours.name));
            assert_eq!(plain(&without.kernel.variant), None);
            let result = |built: &Built| built.kernel.buffers[built.roles.y.index()].dtype;
            assert_eq!(result(&ours), result(&without));
            let beside = |built: &Built| {
                let Beside { scale, amax, made } = built.roles.beside;
                [scale, amax, made].map(|tensor| tensor.is_some())
            };
            assert_eq!([beside(&ours), beside(&without)], [has, left], "{name}");
        }
    }

    #[test]
    fn the_shortlist_has_each_kind_of_tile_before_other_orders() {
        let (built, machine) = (built(), Machine::h200());
        let case = suite::single([512, 8192, 7168]);
        let (all, refused) = contenders(&built, &case, &machine, Many::All);
        assert_eq!(all, [0, 1, 2, 4, 5, 6], "tiles of 256x256 do not fit");
        assert_eq!(refused.map(|error| error.kind()), Some("rejected"));
        let (one, _) = contenders(&built, &case, &machine, Many::Best(1));
        assert_eq!(one, [0]);
        let (two, refused) = contenders(&built, &case, &machine, Many::Best(2));
        assert_eq!(two, [0, 1], "another tile, not another order of the first");
        assert_eq!(refused.map(|error| error.kind()), Some("rejected"));
        let (more, _) = contenders(&built, &case, &machine, Many::Best(9));
        assert!(
            [0, 1, 4, 5].iter().all(|which| more.contains(which)),
            "{more:?}"
        );
        assert!(!more.contains(&3), "tiles of 256x256 do not fit");
        let (none, refused) = contenders(&built[3..4], &case, &machine, Many::Best(1));
        assert!(none.is_empty() && refused.is_some());
    }
}
