//! A launch on GPUs, traced, and what it is timed beside.

use crate::args::Request;
use counterflow_codegen::lower::lower;
use counterflow_codegen::machine::Machine;
use counterflow_codegen::plan::Plan;
use counterflow_codegen::program::Program;
use counterflow_codegen::variant::Variant;
use counterflow_codegen::verify::{self, Checked, Series};
use counterflow_runtime::jit::Compiler;
use counterflow_runtime::tuned::{self, Tuned};
use counterflow_runtime::{Communicator, Error, gpus};
use counterflow_timeline::trace::{self, Alone, Events, Report, Trace};
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
    let Some(gemm) = &request.baseline else {
        return Ok(None);
    };
    if inputs(&request.program, &request.variant)? != inputs(gemm, &of_another(&request.variant))? {
        return Ok(None);
    }
    let ranks = Communicator::local(1)?;
    let gpu = ranks[0].gpu().name();
    let tables = [Tuned::of_user()?, Tuned::embedded()?];
    let base = Variant {
        world: 1,
        ..of_another(&request.variant)
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

/// The variant for another schedule: its choices are its own.
fn of_another(variant: &Variant) -> Variant {
    Variant {
        choices: BTreeMap::new(),
        ..variant.clone()
    }
}

/// Number of tensors that a schedule reads.
fn inputs(program: &Program, variant: &Variant) -> Result<usize, Error> {
    let kernel = lower(program, variant)?;
    let buffers = kernel.buffers.iter();
    Ok(buffers.filter(|buffer| buffer.usage.is_input()).count())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `trace ag_gemm --set comm.ctas=8` was refused on GPUs, as the product has no such choice.
    #[test]
    fn choices_of_the_schedule_are_none_of_the_product() {
        let library = crate::library::all();
        let named = |name: &str| library.iter().find(|program| program.name == name);
        let [gather, gemm] = ["ag_gemm", "gemm"].map(|name| named(name).expect("a schedule"));
        let variant = Variant::new(2).set("comm.ctas", 8);
        assert!(inputs(gemm, &variant).is_err());
        let found = [
            inputs(gather, &variant),
            inputs(gemm, &of_another(&variant)),
        ];
        assert_eq!(found.map(|inputs| inputs.expect("a kernel")), [2, 2]);
    }
}
