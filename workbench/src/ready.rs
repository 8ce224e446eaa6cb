//! The stages that a verb starts with, up to the checked plan.

use super::args::Request;
use super::dump::Dump;
use super::render::Console;
use super::size;
use counterflow_codegen::kernel::Kernel;
use counterflow_codegen::lower;
use counterflow_codegen::plan::Plan;
use counterflow_codegen::shape::Shape;
use counterflow_codegen::verify::{self, Checked, Series};
use counterflow_runtime::Error;

/// A schedule with everything that was proven about it.
pub(super) struct Ready {
    pub kernel: Checked<Kernel>,
    pub series: Series,
    pub plan: Checked<Plan>,
}

/// Every stage in order, each printed if `DUMP` says so, up to the checked plan for `shape`.
pub(super) fn ready(
    request: &Request,
    shape: &Shape,
    console: &mut Console<'_>,
) -> Result<Ready, Error> {
    let dump = Dump::wanted(console, &request.program.name)?;
    dump.program(console, &request.program);
    let kernel = lower::lower(&request.program, &request.variant)?;
    dump.kernel(console, &kernel);
    size::plan_fits(&kernel, shape)?;
    let bar = console.bar(2, "checking the kernel");
    if dump.wants_plan() {
        // Printed before it is checked, so that a rejected plan is visible.
        let plan = Plan::new(&kernel, shape, &request.machine())?;
        dump.plan(console, &kernel, &plan);
    }
    let kernel = verify::kernel(kernel)?;
    dump.pipeline(console, &kernel);
    dump.cuda(console, &kernel);
    bar.step();
    bar.say("checking the plan");
    let series = verify::series(&kernel, shape, &request.machine())?;
    let plan = series.plan(shape)?;
    Ok(Ready {
        kernel,
        series,
        plan,
    })
}
