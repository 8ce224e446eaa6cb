//! The variant for a shape: measured nearby, or the model's favourite.

use super::{Key, Tuned};
use crate::error::Error;
use counterflow_codegen::kernel::Kernel;
use counterflow_codegen::lower;
use counterflow_codegen::model::{self, Machine};
use counterflow_codegen::pipeline;
use counterflow_codegen::plan::Plan;
use counterflow_codegen::program::{Program, Setting};
use counterflow_codegen::shape::Shape;
use counterflow_codegen::variant::Variant;
use counterflow_codegen::verify::{self, Checked};
use std::collections::BTreeMap;

/// A variant, and why it was taken.
#[derive(Clone, PartialEq, Debug)]
pub struct Choice {
    /// All choices settled.
    pub variant: Variant,
    /// Whether it was measured for a shape nearby; otherwise the model says so.
    pub measured: bool,
}

/// What a schedule leaves open: names and options. Loops over variables of one name share their choices.
pub fn choices(program: &Program) -> BTreeMap<&str, &[Setting]> {
    let tunables = program.tunables.iter().rev();
    tunables
        .map(|tunable| (&tunable.name[..], &tunable.options[..]))
        .collect()
}

/// How many variants a schedule offers.
pub fn offered(program: &Program) -> usize {
    choices(program)
        .values()
        .map(|options| options.len())
        .product()
}

/// Every combination of the choices that `base` leaves open, the first options first. `open` replaces a choice's
/// options.
pub fn combinations(
    program: &Program,
    base: &Variant,
    open: &BTreeMap<String, Vec<Setting>>,
) -> Vec<Variant> {
    let mut found = vec![base.clone()];
    for (name, options) in choices(program) {
        if base.choices.contains_key(name) {
            continue;
        }
        let options = open.get(name).map_or(options, Vec::as_slice);
        let set = |variant: &Variant| {
            let variant = variant.clone();
            options
                .iter()
                .map(move |option| variant.clone().set(name, *option))
        };
        found = found.iter().flat_map(set).collect();
    }
    found
}

/// Whether a variant may be among the fastest: CTAs that share the steps of tiles add what they send each other, for
/// nothing where each SM has two tiles anyway.
pub fn worth_asking(kernel: &Kernel, plan: &Plan, machine: &Machine) -> bool {
    let shared = kernel.gemm().is_some_and(|kind| kind.split > 1);
    !shared || plan.grid.tiles < 2 * u64::from(machine.sms)
}

/// What the model says a launch takes on a GPU at its power limit, where those are that train: in seconds. What it
/// cannot predict takes for ever, and so does what is not [worth asking about](worth_asking).
pub fn predicted(kernel: &Checked<Kernel>, plan: &Checked<Plan>, machine: &Machine) -> f64 {
    if !worth_asking(kernel, plan, machine) {
        return f64::INFINITY;
    }
    let hot = Machine {
        sms: machine.sms,
        ..Machine::h200_at_power_limit()
    };
    model::predict(kernel, plan, &hot).map_or(f64::INFINITY, |timeline| timeline.total)
}

/// The variant of `program` for that shape on a GPU of that name: what `base` settles stays; what it leaves open is as
/// was measured nearby, the first of `tables` first, and otherwise as the model likes it best.
///
/// # Errors
/// What every variant is refused for.
pub fn select(
    tables: &[Tuned],
    gpu: &str,
    program: &Program,
    base: &Variant,
    shape: &Shape,
    machine: &Machine,
) -> Result<Choice, Error> {
    let key = Key::new(gpu, program, base);
    let size = [shape.m, shape.n, shape.k];
    let measured = tables.iter().find_map(|table| {
        let settings = table.find(&key, size)?.settings(program)?;
        let agrees = |(name, setting)| settings.get(name).is_none_or(|known| known == setting);
        base.choices.iter().all(agrees).then_some(settings)
    });
    if let Some(settings) = measured {
        let mut variant = base.clone();
        variant.choices.extend(settings);
        let legal = planned(program, &variant, shape, machine)
            .is_ok_and(|(kernel, _)| pipeline::build(&kernel).and_then(pipeline::verify).is_ok());
        if legal {
            return Ok(Choice {
                variant,
                measured: true,
            });
        }
    }
    let mut refused = None;
    let mut ranked = Vec::new();
    for variant in combinations(program, base, &BTreeMap::new()) {
        match planned(program, &variant, shape, machine) {
            Ok((kernel, plan)) => {
                ranked.push((predicted(&kernel, &plan, machine), variant, kernel));
            }
            Err(error) => {
                refused.get_or_insert(error);
            }
        }
    }
    ranked.sort_by(|(a, ..), (b, ..)| a.total_cmp(b));
    // The warp level takes longest to check: down the list until one passes.
    for (_, variant, kernel) in ranked {
        match pipeline::build(&kernel).and_then(pipeline::verify) {
            Ok(_) => {
                return Ok(Choice {
                    variant,
                    measured: false,
                });
            }
            Err(error) => {
                refused.get_or_insert(error.into());
            }
        }
    }
    Err(refused.unwrap_or_else(|| Error::Usage {
        what: format!("{} has no variant", program.name),
        legal: "a choice offers at least one option".into(),
    }))
}

/// A variant up to the checked plan.
fn planned(
    program: &Program,
    variant: &Variant,
    shape: &Shape,
    machine: &Machine,
) -> Result<(Checked<Kernel>, Checked<Plan>), Error> {
    let kernel = verify::kernel(lower::lower(program, variant)?)?;
    let plan = verify::plan(&kernel, shape, machine)?;
    Ok((kernel, plan))
}
