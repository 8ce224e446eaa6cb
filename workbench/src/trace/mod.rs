//! `trace`: what each role of a launch did when, measured beside predicted.

mod gantt;
mod measured;
mod page;
mod perfetto;
mod svg;

use super::args::Request;
use super::outcome::Outcome;
use super::render::Console;
use super::{band, check, ready, run};
use counterflow_codegen::diag::Diagnostics;
use counterflow_codegen::machine::Machine;
use counterflow_codegen::verify;
use counterflow_runtime::{Device, Error, gpus};
use counterflow_timeline::model;
use counterflow_timeline::trace::{self, Alone, Trace};
use page::{Page, Seen};
use std::path::Path;

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
            ..request.machine_of(rank.gpu().name())?
        },
        None => request.machine(),
    };
    // With the SMs that a rank has here.
    let series = verify::series(&ready.kernel, &request.shape, &machine)?;
    let plan = series.plan(&request.shape)?;
    let bar = console.bar(2, "predicting");
    let timeline = model::predict(&ready.kernel, &plan, &machine).map_err(Diagnostics::from)?;
    bar.step();
    let predicted = trace::predicted(&ready.kernel, &timeline);
    let alone = Alone {
        gemm: Some(timeline.gemm_alone),
        communication: timeline.least_link,
        launch: None,
    };
    let report = trace::report(&predicted, &alone);
    bar.say("tracing");
    let measured = match ranks.is_empty() {
        true => None,
        false => Some(measured::measured(
            request,
            (&series, &plan),
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
