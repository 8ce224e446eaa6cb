//! `run`: several launches on emulated ranks, M changing, each compared with an f64 reference.

use super::args::Request;
use super::render::{self, Console};
use super::{Outcome, Ready, check, gpu, size};
use crate::communicator;
use crate::cpu::{self, Compared};
use crate::cuda::Gpu;
use crate::device::Device;
use crate::error::Error;
use crate::tuned::{self, Tuned};
use counterflow_codegen::interp::{NoReference, Says};
use counterflow_codegen::model::Machine;
use counterflow_codegen::plan::Plan;
use counterflow_codegen::program::{Program, RoleKind};
use counterflow_codegen::shape::Shape;
use counterflow_codegen::verify::{Checked, Series};
use serde_json::{Map, Value as Json, json};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

/// Further orders of turns that are tried without numbers.
const INTERLEAVINGS: u64 = 8;

pub(super) fn run(request: &Request, console: &mut Console<'_>) -> Result<Outcome, Error> {
    request.device.open()?;
    let request = &chosen(request, console)?;
    let ready = check::ready(request, &request.shape, console)?;
    let mut fields = check::proven(request, &ready, console);
    let Outcome { good, fields: ran } = on_device(request, &ready, console)?;
    fields.extend(ran);
    Ok(Outcome { good, fields })
}

/// On a GPU, what is left open becomes what is fastest there.
pub(super) fn chosen(request: &Request, console: &mut Console<'_>) -> Result<Request, Error> {
    let mut request = request.clone();
    if request.device == Device::Cpu {
        return Ok(request);
    }
    let gpu = Gpu::open(0)?;
    let world = request.variant.world;
    let sharing = if Gpu::count()? >= world { 1 } else { world };
    let machine = Machine {
        sms: communicator::share(gpu.sms(), sharing, copies(&request.program)),
        ..request.machine.clone()
    };
    let tables = [Tuned::of_user()?, Tuned::embedded()?];
    let Request {
        program,
        variant,
        shape,
        ..
    } = &request;
    let choice = tuned::select(&tables, gpu.name(), program, variant, shape, &machine)?;
    if !tuned::choices(program).is_empty() {
        let why = if choice.measured {
            "what won here or for a shape nearby"
        } else {
            "the model's, as nothing that is measured nearby is as good here (`bench --sweep` measures)"
        };
        console.say(format!("**choices** are {why}"));
    }
    request.variant = choice.variant;
    Ok(request)
}

/// Whether the host copies while the schedule's kernel runs.
pub(super) fn copies(program: &Program) -> bool {
    let mut roles = program.roles.iter();
    roles.any(|role| matches!(role.kind, RoleKind::CopyEngine))
}

/// Runs where the user asked for it.
pub(super) fn on_device(
    request: &Request,
    ready: &Ready,
    console: &mut Console<'_>,
) -> Result<Outcome, Error> {
    match request.device {
        Device::Cpu => emulate(request, ready, console),
        Device::Cuda => gpu::launch(request, ready, console),
    }
}

/// Runs and compares, tells it, and gives it as JSON fields.
fn emulate(request: &Request, ready: &Ready, console: &mut Console<'_>) -> Result<Outcome, Error> {
    let kernel = &ready.kernel;
    size::run_fits(kernel, &ready.plan, request.launches)?;
    let other = other_plan(request, &ready.series);
    let plans: Vec<&Checked<Plan>> = (0..request.launches)
        .map(|launch| match &other {
            Some(other) if launch % 2 == 1 => other,
            Some(_) | None => &ready.plan,
        })
        .collect();

    let start = Instant::now();
    let bar = console.bar(1 + plans.len() as u64 + INTERLEAVINGS, "running");
    let run = cpu::run(&ready.series, plans.clone(), request.seed)?;
    bar.step();
    let mut compared = Vec::with_capacity(plans.len());
    for launch in 0..plans.len() {
        bar.say("comparing");
        compared.push(run.compare(launch)?);
        bar.step();
    }
    bar.say("interleaving");
    for further in 1..=INTERLEAVINGS {
        cpu::interleave(&ready.series, &plans, request.seed.wrapping_add(further))?;
        bar.step();
    }
    drop(bar);
    let took = start.elapsed().as_secs_f64();

    console.say(format!(
        "**ran** {} on {}, seed {}, in {}",
        render::plural(plans.len() as u64, "launch"),
        render::plural(kernel.variant.world.into(), "emulated rank"),
        request.seed,
        render::seconds(took)
    ));
    let rows = compared.iter().zip(&plans).enumerate();
    let rows = rows
        .map(|(launch, (compared, plan))| row(launch, plan, compared.as_ref().ok()))
        .collect();
    console.say(render::table(
        &[
            "launch",
            "shape",
            "elements",
            "max error",
            "relative",
            "of what rounding allows",
        ],
        rows,
        &[0, 2, 3, 4, 5],
    ));
    let good = compared_with(&compared, console);
    let accesses = if good {
        "as promised in"
    } else {
        "every access is in order in"
    };
    console.say(format!(
        "  {accesses} {INTERLEAVINGS} further interleavings, watching every access; {} steps each",
        render::count(run.steps())
    ));

    let launches: Vec<Json> = compared
        .iter()
        .zip(&plans)
        .map(|(compared, plan)| object(&plan.shape, compared))
        .collect();
    let ran = json!({
        "device": request.device.name(),
        "seed": request.seed,
        "launches": launches,
        "interleavings": 1 + INTERLEAVINGS,
        "steps": run.steps(),
        "seconds": took,
    });
    Ok(Outcome {
        good,
        fields: Map::from_iter([("ran".into(), ran)]),
    })
}

/// A checked plan with fewer rows, ragged where that is legal, for every second launch.
pub(super) fn other_plan(request: &Request, series: &Series) -> Option<Checked<Plan>> {
    let m = request.shape.m;
    if request.launches < 2 {
        return None;
    }
    let ragged = u32::try_from(u64::from(m) * 2 / 3 + 1).ok()?;
    let even = (m / 2).checked_next_multiple_of(request.variant.world.checked_mul(64)?)?;
    [ragged, even]
        .into_iter()
        .filter(|other| *other < m)
        .find_map(|other| {
            let shape = Shape {
                m: other,
                ..request.shape.clone()
            };
            size::plan_fits(series.kernel(), &shape).ok()?;
            series.plan(&shape).ok()
        })
}

pub(super) fn row(launch: usize, plan: &Plan, compared: Option<&Compared>) -> Vec<String> {
    let mut row = vec![(launch + 1).to_string(), plan.shape.to_string()];
    match compared {
        Some(compared) => row.extend([
            render::count(compared.elements),
            format!("{:.2e}", compared.max_error),
            format!("{:.2e}", compared.relative),
            format!("{:.0} %", compared.of_allowed * 100.0),
        ]),
        None => row.extend(["-"; 4].map(String::from)),
    }
    row
}

pub(super) fn object(shape: &Shape, compared: &Result<Compared, NoReference>) -> Json {
    let good = compared.as_ref().ok();
    json!({
        "m": shape.m,
        "n": shape.n,
        "k": shape.k,
        "max_error": good.map(|c| c.max_error),
        "relative_error": good.map(|c| c.relative),
        "of_allowed": good.map(|c| c.of_allowed),
        "elements": good.map(|c| c.elements),
        "compared_with": good.map(|c| {
            let with = c.with.iter();
            let with = with.map(|(name, says)| (name.clone(), says.key().into()));
            Json::Object(with.collect())
        }),
        "not_compared": compared.as_ref().err().map(ToString::to_string),
    })
}

/// Tells what outputs were compared with. Gives whether all were.
pub(super) fn compared_with(
    compared: &[Result<Compared, NoReference>],
    console: &mut Console<'_>,
) -> bool {
    let none = compared.iter().enumerate();
    let none = none.filter_map(|(launch, compared)| Some((launch, compared.as_ref().err()?)));
    let mut good = true;
    for (launch, none) in none {
        good = false;
        console.say(format!("**NOT COMPARED**: launch {}, {none}", launch + 1));
    }
    if !good {
        console.say(
            "  nothing says whether its numbers are right; a reference of your own does: `.reference(fn)` of the program",
        );
    }
    let mut with: BTreeMap<Says, BTreeSet<&str>> = BTreeMap::new();
    for (name, says) in compared
        .iter()
        .flatten()
        .flat_map(|compared| &compared.with)
    {
        with.entry(*says).or_default().insert(name);
    }
    let parts: Vec<String> = with
        .into_iter()
        .map(|(says, names)| {
            let names: Vec<&str> = names.into_iter().collect();
            format!("{} with {}", names.join(", "), says.phrase())
        })
        .collect();
    if !parts.is_empty() {
        console.say(format!("  compared in f64: {}", parts.join("; ")));
    }
    good
}
