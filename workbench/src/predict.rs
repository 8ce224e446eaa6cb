//! `predict`: the timeline of a checked plan on a machine.

use super::args::Request;
use super::outcome::Outcome;
use super::ready::{self, Ready};
use super::render::Console;
use super::{band, check, size, switch};
use counterflow_codegen::diag::Diagnostics;
use counterflow_codegen::kernel::Kernel;
use counterflow_codegen::program::Program;
use counterflow_codegen::shape::Shape;
use counterflow_codegen::verify::{self, Checked};
use counterflow_runtime::Error;
use counterflow_runtime::family::{self, Family};
use counterflow_runtime::tuned::Tuned;
use counterflow_timeline::model;
use serde_json::{Map, Value as Json, json};

/// Columns of the chart: fits a terminal beside an editor.
const WIDTH: usize = 100;

pub(super) fn predict(request: &Request, console: &mut Console<'_>) -> Result<Outcome, Error> {
    if let Some(family) = &request.family {
        // What needs multicast is predicted, and nothing chooses it for a run.
        return match request.multicast {
            true => of_family(request, &family.for_predictions(), console),
            false => of_family(request, family, console),
        };
    }
    let ready = ready::ready(request, &request.shape, console)?;
    let mut fields = check::proven(request, &ready, console);
    fields.extend(timeline(request, &ready, console)?);
    Ok(Outcome::good(fields))
}

/// Predicts an op of a family: its choice, the reason, and the timeline of each of its launches.
fn of_family(
    request: &Request,
    family: &Family,
    console: &mut Console<'_>,
) -> Result<Outcome, Error> {
    let (machine, shape) = (request.machine(), &request.shape);
    let tables = [Tuned::of_user()?, Tuned::embedded()?];
    let base = &request.variant;
    let sms = |_: &Program| machine.sms;
    let chosen = family::choose(&tables, &machine.gpu, family, base, shape, sms)?;
    let told = format!("{} at {shape}: {}", family.name(), chosen.name);
    // Also where a form that goes to one rank is the fastest: it was compared by those rates.
    let why = match request.multicast {
        true => format!("{}; {}", chosen.why, switch::RATES),
        false => chosen.why.to_string(),
    };
    console.say(format!("**chosen** for {told}, {why}"));
    let stages = family.candidates()[chosen.candidate].stages();
    if request.trace.is_some() && stages.len() > 1 {
        return Err(Error::Usage {
            what: format!("--trace of {told}: several launches"),
            legal: "predict one of the schedules by its name".into(),
        });
    }
    let mut each = Vec::new();
    for (stage, variant) in stages.iter().zip(chosen.variants) {
        if let Some(seconds) = stage.seconds(base.world, shape, &machine) {
            let name = &stage.program().name;
            let told = format!("{:.1} us", seconds * 1e6);
            console.say(format!("**{name}** on {}: {told}", machine.name));
            let fields = [
                ("schedule", Json::from(&name[..])),
                ("seconds", seconds.into()),
            ];
            let fields = fields.map(|(name, value)| (name.to_owned(), value));
            each.push(Json::Object(Map::from_iter(fields)));
            continue;
        }
        let own = Request {
            program: stage.program().clone(),
            family: None,
            variant,
            shape: stage.shape(shape),
            ..request.clone()
        };
        let ready = ready::ready(&own, &own.shape, console)?;
        console.say(format!("**{}** {}", own.program.name, ready.kernel.variant));
        let mut fields = timeline(&own, &ready, console)?;
        fields.insert("schedule".into(), own.program.name.into());
        each.push(Json::Object(fields));
    }
    let fields = json!({
        "candidate": chosen.name,
        "why": why,
        "by_published_rates": request.multicast,
    });
    Ok(Outcome::good(Map::from_iter([
        ("chosen".into(), fields),
        ("stages".into(), each.into()),
    ])))
}

/// Predicts, draws, writes the trace if requested, and gives JSON fields.
pub(super) fn timeline(
    request: &Request,
    ready: &Ready,
    console: &mut Console<'_>,
) -> Result<Map<String, Json>, Error> {
    let bar = console.bar(1, "predicting");
    let timeline = model::predict(&ready.kernel, &ready.plan, &request.machine())
        .map_err(Diagnostics::from)?;
    drop(bar);
    console.say(format!(
        "**predicted** on {}: {}",
        request.machine().name,
        timeline.summary()
    ));
    let machine = request.machine();
    let band = band::of(&ready.kernel, &machine);
    console.say(format!("  {}", band::told(band.as_ref(), &machine)));
    if ready.kernel.needs_multicast() {
        console.say(format!("  {}", switch::RATES));
    }
    let chart = timeline.gantt(WIDTH);
    // The chart's own title and summary are already printed.
    let chart: Vec<&str> = chart.lines().skip(2).collect();
    console.say(chart.join("\n"));
    if let Some(path) = &request.trace {
        std::fs::write(path, timeline.trace()).map_err(|error| Error::Usage {
            what: format!("--trace {}: {error}", path.display()),
            legal: "give a file that can be written, in an existing folder".into(),
        })?;
        console.say(format!(
            "trace in {}: open it at ui.perfetto.dev or chrome://tracing",
            path.display()
        ));
    }
    let multicast = request
        .multicast
        .then(|| switch::brings(ready, &timeline.statements, console));
    let volume = &timeline.volume;
    let traffic = model::traffic(&ready.kernel, &ready.plan, &machine);
    let predicted = json!({
        "machine": request.machine().name,
        "seconds": timeline.total,
        "gemm_alone_seconds": timeline.gemm_alone,
        "exposed_seconds": timeline.exposed_communication(),
        "least_link_seconds": timeline.least_link,
        "bound_seconds": timeline.bound(),
        "bytes": volume.total(),
        "l2_bytes": traffic.through_l2,
        "memory_bytes": traffic.from_memory,
        "least_bytes": volume.least_total(),
        "error_band": band::object(band.as_ref()),
        "by_published_rates": ready.kernel.needs_multicast(),
        "trace": request.trace.as_ref().map(|path| path.display().to_string()),
    });
    let mut fields = Map::from_iter([("predicted".into(), predicted)]);
    fields.extend(multicast.map(|multicast| ("multicast".into(), multicast)));
    Ok(fields)
}

/// One line for the size of a real layer, since a size that is quick to emulate leaves a GPU mostly idle.
pub(super) fn at_scale(request: &Request, kernel: &Checked<Kernel>, console: &mut Console<'_>) {
    let shape = Shape {
        m: SCALE,
        n: SCALE,
        k: SCALE,
        ..request.shape.clone()
    };
    let bar = console.bar(1, "predicting at scale");
    let planned = size::plan_fits(kernel, &shape)
        .and_then(|()| Ok(verify::plan(kernel, &shape, &request.machine())?));
    let timeline = planned
        .ok()
        .and_then(|plan| model::predict(kernel, &plan, &request.machine()).ok());
    drop(bar);
    if let Some(timeline) = timeline {
        console.say(format!("at {shape}: {}", timeline.summary()));
    }
}

const SCALE: u32 = 8192;
