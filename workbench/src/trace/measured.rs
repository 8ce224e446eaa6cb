//! A launch on GPUs, traced, and what it is timed beside.

use crate::args::Request;
use counterflow_codegen::lower::lower;
use counterflow_codegen::model::Machine;
use counterflow_codegen::plan::Plan;
use counterflow_codegen::program::Program;
use counterflow_codegen::trace::{self, Alone, Events, Report, Trace};
use counterflow_codegen::variant::Variant;
use counterflow_codegen::verify::{self, Checked, Series};
use counterflow_runtime::jit::Compiler;
use counterflow_runtime::tuned::{self, Tuned};
use counterflow_runtime::{Communicator, Error, gpus};
use std::collections::BTreeMap;
use std::time::Duration;

/// A launch that was traced, and what it was timed beside.
pub(super) struct Measured {
    pub trace: Trace,
    pub report: Report,
    /// Median time of a launch back to back, without probes and with them.
    pub plain: Duration,
    pub probed: Duration,
    /// The product alone on one GPU.
    pub gemm: Option<Duration>,
}

/// Times the launch without and with probes, traces one, and times the product alone.
pub(super) fn measured(
    request: &Request,
    (series, plan): (&Series, &Checked<Plan>),
    ranks: &[Communicator],
    machine: &Machine,
    communication: f64,
) -> Result<Measured, Error> {
    ranks[0].gpu().cuda()?.must_be_hopper()?;
    let kernel = series.kernel();
    let pipeline = verify::warps(kernel)?;
    let compiler = Compiler::find()?;
    let seed = request.seed;
    let launch = gpus::traced(ranks, &compiler, &pipeline, series, plan, seed)?;
    let place = match ranks.len() {
        1 => ranks[0].gpu().name().to_owned(),
        count => format!("{count} x {}", ranks[0].gpu().name()),
    };
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
        launch: Some(launch.plain.as_secs_f64()),
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
    let inputs = |program: &Program| {
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
        choices: BTreeMap::new(),
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
