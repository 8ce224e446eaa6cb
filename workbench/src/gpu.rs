//! `run --device cuda`: the same launches on GPUs, compared with the same reference, and timed.

use super::args::Request;
use super::compared;
use super::outcome::Outcome;
use super::ready::Ready;
use super::render::{self, Console};
use counterflow_codegen::machine::Machine;
use counterflow_codegen::verify;
use counterflow_runtime::Error;
use counterflow_runtime::jit::{Cached, Compiler};
use counterflow_runtime::{Device, gpus, launch};
use serde_json::{Map, json};
use std::time::Instant;

/// Compiles, runs, compares, times and prints, and gives the results as JSON fields.
pub(super) fn run(
    request: &Request,
    ready: &Ready,
    console: &mut Console<'_>,
) -> Result<Outcome, Error> {
    let kernel = &ready.kernel;
    let pipeline = verify::warps(kernel)?;
    let start = Instant::now();
    let ranks = gpus::ranks(kernel.variant.world)?;
    let opening = start.elapsed().as_secs_f64();
    let gpu = ranks[0].gpu().clone();
    gpu.cuda()?.must_be_hopper()?;
    let sharing = ranks
        .iter()
        .filter(|rank| rank.gpu().ordinal() == gpu.ordinal())
        .count();
    let machine = Machine {
        sms: ranks[0].sms(kernel),
        ..request.machine_of(gpu.name())?
    };
    let series = verify::series(kernel, &request.shape, &machine)?;
    let mut plans = vec![series.plan(&request.shape)?];
    plans.extend(compared::other_plan(request, &series));
    let launches: Vec<_> = (0..request.launches as usize)
        .map(|launch| &plans[launch % plans.len()])
        .collect();

    let bar = console.bar(2, "compiling and running");
    let compiler = Compiler::find()?;
    let start = Instant::now();
    let compiled = launch::compile(&compiler, &counterflow_emitter::emit(&pipeline))?;
    let compiling = start.elapsed().as_secs_f64();
    bar.step();
    let start = Instant::now();
    let launched = gpus::run(
        &ranks,
        &compiler,
        &pipeline,
        &series,
        launches.clone(),
        request.seed,
    )?;
    let running = start.elapsed().as_secs_f64();
    bar.step();
    drop(bar);
    let start = Instant::now();
    let results = launched.run.compare_all()?;
    let comparing = start.elapsed().as_secs_f64();

    let place = match (ranks.len(), sharing) {
        (1, _) => gpu.name().to_owned(),
        (count, 1) => format!("{count} x {}", gpu.name()),
        (count, _) => format!("{count} ranks that share one {}", gpu.name()),
    };
    console.say(format!(
        "**ran** {} on {place}, seed {}: {}, compiled in {}",
        render::plural(launches.len() as u64, "launch"),
        request.seed,
        compiler.describe(),
        render::seconds(compiling),
    ));
    let rates: Vec<(f64, f64)> = launches
        .iter()
        .zip(&launched.times)
        .map(|(plan, time)| {
            let flop =
                2.0 * f64::from(plan.shape.m) * f64::from(plan.shape.n) * f64::from(plan.shape.k);
            (time.as_secs_f64(), flop / time.as_secs_f64())
        })
        .collect();
    let rows = results.iter().zip(&launches).zip(&rates).enumerate().map(
        |(launch, ((result, plan), rate))| {
            let mut row = compared::row(launch, plan, result.as_ref().ok());
            row.push(render::seconds(rate.0));
            row.push(format!("{:.0}", rate.1 / 1e12));
            row
        },
    );
    console.say(render::table(
        &[
            "launch",
            "shape",
            "elements",
            "max error",
            "relative",
            "of what rounding allows",
            "time",
            "TFLOP/s",
        ],
        rows.collect(),
        &[0, 2, 3, 4, 5, 6, 7],
    ));
    let good = compared::with(&results, console);
    console.say(format!(
        "  opening GPUs took {}, inputs and launches {}, the reference {}",
        render::seconds(opening),
        render::seconds(running),
        render::seconds(comparing)
    ));
    console.say(format!(
        "  the host takes {} for a launch with new numbers",
        render::seconds(launched.host.as_secs_f64())
    ));
    let facts = launched.facts.unwrap_or_default();
    let ran = json!({
        "device": Device::Cuda.name(),
        "gpu": gpu.name(),
        "ranks_sharing_a_gpu": sharing,
        "seed": request.seed,
        "launches": launches.iter().zip(&results).zip(&rates).map(|((plan, result), rate)| {
            let mut object = compared::object(&plan.shape, result);
            object["seconds"] = rate.0.into();
            object["flop_per_second"] = rate.1.into();
            object
        }).collect::<Vec<_>>(),
        "open_seconds": opening,
        "compile_seconds": compiling,
        "run_seconds": running,
        "compare_seconds": comparing,
        "cached": compiled.cached == Cached::Hit,
        "host_seconds": launched.host.as_secs_f64(),
        "registers": facts.registers,
        "frame": facts.frame,
    });
    Ok(Outcome {
        good,
        fields: Map::from_iter([("ran".into(), ran)]),
    })
}
