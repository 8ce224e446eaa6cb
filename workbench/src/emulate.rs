//! `run --device cpu`: the launches on emulated ranks, in several interleavings.

use super::args::Request;
use super::compared;
use super::outcome::Outcome;
use super::ready::Ready;
use super::render::{self, Console};
use super::size;
use counterflow_codegen::plan::Plan;
use counterflow_codegen::verify::Checked;
use counterflow_runtime::{Device, Error, cpu};
use serde_json::{Map, Value as Json, json};
use std::time::Instant;

/// Further interleavings that are run without numbers.
const INTERLEAVINGS: u64 = 8;

/// Runs, compares and prints, and gives the results as JSON fields.
pub(super) fn run(
    request: &Request,
    ready: &Ready,
    console: &mut Console<'_>,
) -> Result<Outcome, Error> {
    let kernel = &ready.kernel;
    size::run_fits(kernel, &ready.plan, request.launches)?;
    let other = compared::other_plan(request, &ready.series);
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
    let mut results = Vec::with_capacity(plans.len());
    for launch in 0..plans.len() {
        bar.say("comparing");
        results.push(run.compare(launch)?);
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
    let rows = results.iter().zip(&plans).enumerate();
    let rows = rows
        .map(|(launch, (result, plan))| compared::row(launch, plan, result.as_ref().ok()))
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
    let good = compared::with(&results, console);
    let accesses = if good {
        "as promised in"
    } else {
        "every access is in order in"
    };
    console.say(format!(
        "  {accesses} {INTERLEAVINGS} further interleavings, watching every access; {} steps each",
        render::count(run.steps())
    ));

    let launches: Vec<Json> = results
        .iter()
        .zip(&plans)
        .map(|(result, plan)| compared::object(&plan.shape, result))
        .collect();
    let ran = json!({
        "device": Device::Cpu.name(),
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
