//! Which kernels of ours take part: the choices of a schedule, those that are legal, the model's favourites.

use super::suite::Case;
use crate::error::Error;
use crate::workbench::size;
use counterflow_codegen::kernel::{Buffer, Kernel};
use counterflow_codegen::lower;
use counterflow_codegen::model::{self, Machine};
use counterflow_codegen::pipeline::{self, Pipeline};
use counterflow_codegen::plan::Plan;
use counterflow_codegen::program::{Program, Setting, TensorId, TensorKind};
use counterflow_codegen::shape::Shape;
use counterflow_codegen::variant::Variant;
use counterflow_codegen::verify::{self, Checked};
use std::collections::BTreeMap;

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
    pub pipeline: Checked<Pipeline>,
    pub roles: Roles,
}

/// A kernel and its numbers for one shape.
#[derive(Debug)]
pub(super) struct Planned<'a> {
    pub built: &'a Built,
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

/// Every combination of the choices left open, the first options first. `open` replaces a choice's options.
pub(super) fn combinations(
    program: &Program,
    base: &Variant,
    open: &BTreeMap<String, Vec<Setting>>,
    all: bool,
) -> Vec<Variant> {
    let mut found = vec![base.clone()];
    let named = program.tunables.iter().map(|tunable| tunable.name.clone());
    let unknown = open.keys().filter(|name| {
        !program
            .tunables
            .iter()
            .any(|tunable| tunable.name == **name)
    });
    for name in named.chain(unknown.cloned()) {
        if base.choices.contains_key(&name) {
            continue;
        }
        let tunable = program.tunables.iter().find(|tunable| tunable.name == name);
        let options = match (open.get(&name), tunable) {
            (Some(options), _) => options.clone(),
            (None, Some(tunable)) if all => tunable.options.clone(),
            (None, _) => continue,
        };
        found = found
            .iter()
            .flat_map(|variant| {
                let name = name.clone();
                options
                    .iter()
                    .map(move |option| variant.clone().set(&name, *option))
            })
            .collect();
    }
    found
}

/// The kernel of a variant, checked on both levels.
///
/// # Errors
/// What any stage refuses.
pub(super) fn build(program: &Program, variant: &Variant) -> Result<Built, Error> {
    let kernel = verify::kernel(lower::lower(program, variant)?)?;
    let pipeline = pipeline::verify(pipeline::build(&kernel)?)?;
    let choices: BTreeMap<String, Setting> = program
        .tunables
        .iter()
        .filter_map(|tunable| {
            let chosen = variant
                .choices
                .get(&tunable.name)
                .or(tunable.options.first())?;
            Some((tunable.name.clone(), *chosen))
        })
        .collect();
    let words = program
        .tunables
        .iter()
        .filter_map(|tunable| Some(format!("{}={}", tunable.name, choices.get(&tunable.name)?)));
    Ok(Built {
        name: words.collect::<Vec<_>>().join(" "),
        roles: Roles::of(&kernel)?,
        choices,
        kernel,
        pipeline,
    })
}

impl Built {
    /// Its numbers for that product on that machine.
    ///
    /// # Errors
    /// Where it is not legal there.
    pub(super) fn plan(&self, case: &Case, machine: &Machine) -> Result<Planned<'_>, Error> {
        let [m, n, k] = case.size;
        let shape = Shape::new(m, n, k);
        size::plan_fits(&self.kernel, &shape)?;
        Ok(Planned {
            built: self,
            plan: verify::plan(&self.kernel, &shape, machine)?,
        })
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
    let mut legal = Vec::new();
    for built in all {
        match built.plan(case, machine) {
            Ok(planned) => legal.push(planned),
            Err(error) => {
                refused.get_or_insert(error);
            }
        }
    }
    if let Many::Best(count) = many
        && legal.len() > count
    {
        let mut ranked: Vec<(f64, Planned<'a>)> = legal
            .into_iter()
            .map(|planned| (predicted(&planned, machine), planned))
            .collect();
        ranked.sort_by(|(a, _), (b, _)| a.total_cmp(b));
        legal = ranked
            .into_iter()
            .take(count)
            .map(|(_, planned)| planned)
            .collect();
    }
    (legal, refused)
}

/// What the model says a launch takes, in seconds; what it cannot predict comes last.
pub(super) fn predicted(planned: &Planned<'_>, machine: &Machine) -> f64 {
    let timeline = model::predict(&planned.built.kernel, &planned.plan, machine);
    timeline.map_or(f64::INFINITY, |timeline| timeline.total)
}
