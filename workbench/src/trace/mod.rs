//! `trace`: what each role of a launch did when, measured beside predicted.

mod gantt;
mod page;
mod perfetto;
mod svg;

use super::args::Request;
use super::outcome::Outcome;
use super::ready::{self, Ready};
use super::render::Console;
use super::{band, check, run};
use counterflow_codegen::diag::Diagnostics;
use counterflow_codegen::lower::lower;
use counterflow_codegen::model::{self, Machine};
use counterflow_codegen::trace::{self, Alone, Events, Report, Trace};
use counterflow_codegen::variant::Variant;
use counterflow_codegen::verify;
use counterflow_runtime::jit::Compiler;
use counterflow_runtime::tuned::{self, Tuned};
use counterflow_runtime::{Communicator, Device, Error, gpus};
use page::{Page, Seen};
use std::path::Path;
use std::time::Duration;

/// A launch that was traced, and what it was timed beside.
struct Measured {
    trace: Trace,
    report: Report,
    /// Median time of a launch back to back, without probes and with them.
    plain: Duration,
    probed: Duration,
    /// The product alone on one GPU.
    gemm: Option<Duration>,
}

pub(super) fn trace(request: &Request, console: &mut Console<'_>) -> Result<Outcome, Error> {
    let request = &run::settled(request, console)?;
    let ready = ready::ready(request, &request.shape, console)?;
    let mut fields = check::proven(request, &ready, console);
    let on_gpus = request.device != Some(Device::Cpu);
    let ranks = match on_gpus {
        true => gpus::ranks(ready.kernel.variant.world)?,
        false => Vec::new(),
    };
    let machine = match ranks.first() {
        Some(rank) => Machine {
            sms: rank.sms(&ready.kernel),
            ..request.machine_of(rank.gpu().name())
        },
        None => request.machine(),
    };
    let bar = console.bar(2, "predicting");
    let timeline =
        model::predict(&ready.kernel, &ready.plan, &machine).map_err(Diagnostics::from)?;
    bar.step();
    let predicted = trace::predicted(&ready.kernel, &timeline);
    let alone = Alone {
        gemm: Some(timeline.gemm_alone),
        communication: timeline.least_link,
    };
    let report = trace::report(&predicted, &alone);
    bar.say("tracing");
    let measured = match ranks.is_empty() {
        true => None,
        false => Some(measured(
            request,
            &ready,
            &ranks,
            &machine,
            alone.communication,
        )?),
    };
    drop(bar);
    let band = band::of(&ready.kernel, &machine);
    let seen = Seen {
        trace: &predicted,
        report: &report,
    };
    let page = Page {
        machine: &machine,
        predicted: seen,
        measured: measured.as_ref(),
        alone: &alone,
        band: &band,
    };
    page.print(console);
    let all: Vec<(&str, &Trace)> = measured
        .iter()
        .map(|measured| ("measured", &measured.trace))
        .chain([("predicted", &predicted)])
        .collect();
    if let Some(path) = &request.trace {
        let left_out = write("--trace", path, &mut |out| perfetto::write(&all, out))?;
        console.say(format!(
            "trace in {}: open it at ui.perfetto.dev or chrome://tracing{}",
            path.display(),
            match left_out {
                0 => String::new(),
                count => format!(" ({count} lanes are left out, to keep it small)"),
            }
        ));
    }
    if let Some(path) = &request.svg {
        write("--svg", path, &mut |out| {
            out.push_str(&svg::svg(&page));
            0
        })?;
        console.say(format!("picture in {}", path.display()));
    }
    fields.insert("traced".into(), page.object(request));
    Ok(Outcome::good(fields))
}

/// Writes a file, and gives what the writer says.
fn write(
    option: &str,
    path: &Path,
    writer: &mut dyn FnMut(&mut String) -> usize,
) -> Result<usize, Error> {
    let mut text = String::new();
    let said = writer(&mut text);
    std::fs::write(path, text).map_err(|error| Error::Usage {
        what: format!("{option} {}: {error}", path.display()),
        legal: "give a file that can be written, in an existing folder".into(),
    })?;
    Ok(said)
}

/// Times the launch without and with probes, traces one, and times the product alone.
fn measured(
    request: &Request,
    ready: &Ready,
    ranks: &[Communicator],
    machine: &Machine,
    communication: f64,
) -> Result<Measured, Error> {
    ranks[0].gpu().cuda()?.must_be_hopper()?;
    let pipeline = verify::warps(&ready.kernel)?;
    let series = verify::series(&ready.kernel, &request.shape, machine)?;
    let plan = series.plan(&request.shape)?;
    let compiler = Compiler::find()?;
    let seed = request.seed;
    let launch = gpus::traced(ranks, &compiler, &pipeline, &series, &plan, seed)?;
    let place = match ranks.len() {
        1 => ranks[0].gpu().name().to_owned(),
        count => format!("{count} x {}", ranks[0].gpu().name()),
    };
    let kernel = &ready.kernel;
    let title = format!(
        "{}  {}  shape {}  on {place}",
        kernel.name, kernel.variant, plan.shape
    );
    let events = Events {
        sites: &launch.sites,
        ranks: &launch.ranks,
    };
    let trace = trace::measured(title, &events).map_err(|error| Error::Wrong {
        what: format!("the trace cannot be read: {error}"),
        help: "trace it again; if it stays so, report it with the schedule and the shape".into(),
    })?;
    let gemm = product(request, &compiler, machine)?;
    let alone = Alone {
        gemm: gemm.map(|gemm| gemm.as_secs_f64()),
        communication,
    };
    Ok(Measured {
        report: trace::report(&trace, &alone),
        trace,
        plain: launch.plain,
        probed: launch.probed,
        gemm,
    })
}

/// The time of the same product alone on one GPU, by this binary's `gemm`. `None` if it has none, or if the schedule's
/// products are not one product of its first two parameters.
fn product(
    request: &Request,
    compiler: &Compiler,
    machine: &Machine,
) -> Result<Option<Duration>, Error> {
    let inputs = |program: &counterflow_codegen::program::Program| {
        let kernel = lower(program, &request.variant)?;
        let inputs = kernel
            .buffers
            .iter()
            .filter(|buffer| buffer.usage.is_input());
        Ok::<_, Error>(inputs.count())
    };
    let Some(gemm) = &request.baseline else {
        return Ok(None);
    };
    if inputs(&request.program)? != inputs(gemm)? {
        return Ok(None);
    }
    let ranks = Communicator::local(1)?;
    let gpu = ranks[0].gpu().name();
    let tables = [Tuned::of_user()?, Tuned::embedded()?];
    let base = Variant {
        world: 1,
        choices: std::collections::BTreeMap::new(),
        ..request.variant.clone()
    };
    let machine = Machine {
        sms: ranks[0].gpu().sms(),
        ..machine.clone()
    };
    let choice = tuned::select(&tables, gpu, gemm, &base, &request.shape, &machine)?;
    let kernel = verify::kernel(lower(gemm, &choice.variant)?)?;
    let series = verify::series(&kernel, &request.shape, &machine)?;
    let plan = series.plan(&request.shape)?;
    let pipeline = verify::warps(&kernel)?;
    let ran = gpus::run(
        &ranks,
        compiler,
        &pipeline,
        &series,
        vec![&plan],
        request.seed,
    )?;
    Ok(ran.times.first().copied())
}
