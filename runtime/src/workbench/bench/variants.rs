//! Which kernels of ours take part: the choices of a schedule, those that are legal, the model's favourites.

use super::suite::Case;
use crate::error::Error;
use crate::tuned;
use crate::workbench::size;
use counterflow_codegen::diag::Diagnostics;
use counterflow_codegen::kernel::{Buffer, Kernel};
use counterflow_codegen::lower;
use counterflow_codegen::model::Machine;
use counterflow_codegen::pipeline::{self, Pipeline};
use counterflow_codegen::plan::Plan;
use counterflow_codegen::program::{Program, Setting, TensorId, TensorKind};
use counterflow_codegen::shape::Shape;
use counterflow_codegen::variant::Variant;
use counterflow_codegen::verify::{self, Checked};
use std::collections::BTreeMap;
use std::sync::OnceLock;

/// How many variants take part.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::workbench) enum Many {
    /// Every legal one.
    All,
    /// The model's favourites for each shape.
    Best(usize),
}

/// `all`, or how many.
pub(in crate::workbench) fn many(text: &str) -> Result<Many, String> {
    match (text, text.parse()) {
        ("all", _) => Ok(Many::All),
        (_, Ok(count)) if (1..=1000).contains(&count) => Ok(Many::Best(count)),
        _ => Err("it is `all`, or how many of the model's favourites".into()),
    }
}

/// A kernel that takes part, whatever the shape.
#[derive(Debug)]
pub(super) struct Built {
    /// Its choices, as a user would set them.
    pub name: String,
    pub choices: BTreeMap<String, Setting>,
    pub kernel: Checked<Kernel>,
    pub roles: Roles,
    /// Made when first needed: most variants are only ranked.
    pipeline: OnceLock<Result<Checked<Pipeline>, Diagnostics>>,
}

/// A kernel and its numbers for one shape.
#[derive(Debug)]
pub(super) struct Planned<'a> {
    pub built: &'a Built,
    pub pipeline: &'a Checked<Pipeline>,
    pub plan: Checked<Plan>,
}

impl Planned<'_> {
    /// Schedule and choices.
    pub(super) fn name(&self) -> String {
        format!("{} {}", self.built.kernel.name, self.built.name)
    }
}

/// Which tensors are the operands and the result of the one product.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Roles {
    pub x: TensorId,
    pub w: TensorId,
    pub y: TensorId,
}

impl Roles {
    fn of(kernel: &Kernel) -> Result<Roles, Error> {
        let all = |wanted: fn(&Buffer) -> bool| -> Vec<TensorId> {
            let buffers = kernel.buffers.iter().enumerate();
            buffers
                .filter(|(_, buffer)| wanted(buffer))
                .map(|(index, _)| TensorId(index as u16))
                .collect()
        };
        let inputs = all(|buffer| buffer.kind.is_input());
        let outputs = all(|buffer| !buffer.kind.is_input() && !buffer.is_scratch());
        match (&inputs[..], &outputs[..]) {
            ([x, w], [y]) => Ok(Roles {
                x: *x,
                w: *w,
                y: *y,
            }),
            _ => Err(Error::NotYet {
                what: format!(
                    "measuring {} with {} inputs and {} outputs",
                    kernel.name,
                    inputs.len(),
                    outputs.len()
                ),
                help: "schedules of one product are measured: two inputs, one output".into(),
            }),
        }
    }
}

/// What a schedule does with its ranks, in the words of a suite.
pub(super) fn side(program: &Program) -> Option<super::suite::Side> {
    let has = |kind| program.tensors.iter().any(|tensor| tensor.kind == kind);
    if has(TensorKind::Gathered) {
        Some(super::suite::Side::Columns)
    } else if has(TensorKind::Scattered) || has(TensorKind::Reduced) {
        Some(super::suite::Side::Depth)
    } else {
        None
    }
}

/// The kernel of a variant, checked.
///
/// # Errors
/// What lowering or the verifier refuses.
pub(super) fn build(program: &Program, variant: &Variant) -> Result<Built, Error> {
    let kernel = verify::kernel(lower::lower(program, variant)?)?;
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
        roles: Roles::of(&kernel)?,
        choices,
        kernel,
        pipeline: OnceLock::new(),
    })
}

impl Built {
    /// Its numbers for that product on that machine.
    fn numbers(&self, case: &Case, machine: &Machine) -> Result<Checked<Plan>, Error> {
        let [m, n, k] = case.size;
        let shape = Shape::new(m, n, k);
        size::plan_fits(&self.kernel, &shape)?;
        Ok(verify::plan(&self.kernel, &shape, machine)?)
    }

    fn with(&self, plan: Checked<Plan>) -> Result<Planned<'_>, Error> {
        let make = || pipeline::build(&self.kernel).and_then(pipeline::verify);
        let pipeline = self.pipeline.get_or_init(make).as_ref();
        Ok(Planned {
            built: self,
            pipeline: pipeline.map_err(Clone::clone)?,
            plan,
        })
    }

    /// It and its numbers for that product on that machine.
    ///
    /// # Errors
    /// Where it is not legal there.
    pub(super) fn plan(&self, case: &Case, machine: &Machine) -> Result<Planned<'_>, Error> {
        self.with(self.numbers(case, machine)?)
    }
}

/// Those that take part for one product: all that are legal, or the model's favourites of them. With them the first
/// refusal, if any.
pub(super) fn contenders<'a>(
    all: &'a [Built],
    case: &Case,
    machine: &Machine,
    many: Many,
) -> (Vec<Planned<'a>>, Option<Error>) {
    let mut refused = None;
    let mut found = Vec::new();
    for built in all {
        match built.numbers(case, machine) {
            Ok(plan) if tuned::worth_asking(&built.kernel, &plan, machine) => {
                found.push((built, plan));
            }
            Ok(plan) => {
                refused.get_or_insert(Error::Usage {
                    what: format!(
                        "{}: CTAs share the steps of each of {} tiles on {} SMs",
                        built.kernel.variant, plan.grid.tiles, machine.sms
                    ),
                    legal: "gemm.split=1 where each SM has two tiles: there is nothing to gain"
                        .into(),
                });
            }
            Err(error) => {
                refused.get_or_insert(error);
            }
        }
    }
    let most = match many {
        Many::All => found.len(),
        Many::Best(count) => {
            found.sort_by_cached_key(|(built, plan)| {
                let seconds = tuned::predicted(&built.kernel, plan, machine);
                // Times are positive, and the bits of positive numbers are in their order.
                seconds.to_bits()
            });
            count
        }
    };
    let mut legal = Vec::new();
    for (built, plan) in found {
        if legal.len() == most {
            break;
        }
        match built.with(plan) {
            Ok(planned) => legal.push(planned),
            Err(error) => {
                refused.get_or_insert(error);
            }
        }
    }
    (legal, refused)
}
