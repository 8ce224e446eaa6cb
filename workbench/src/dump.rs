//! `DUMP=program,kernel,pipeline,plan,cuda`: any stage's text on standard error. `DUMP=plan:ag_gemm` only for that
//! schedule.

use super::render::Console;
use counterflow_codegen::kernel::Kernel;
use counterflow_codegen::plan::Plan;
use counterflow_codegen::program::Program;
use counterflow_codegen::verify::{self, Checked};
use counterflow_runtime::Error;

/// The stages to print for one schedule.
#[derive(Clone, Copy, Default)]
pub(super) struct Dump {
    program: bool,
    kernel: bool,
    pipeline: bool,
    plan: bool,
    cuda: bool,
}

impl Dump {
    /// The stages that `DUMP` names for the schedule `name`.
    pub(super) fn wanted(console: &Console<'_>, name: &str) -> Result<Dump, Error> {
        let mut dump = Dump::default();
        let Some(value) = console.dump() else {
            return Ok(dump);
        };
        let (stages, filter) = match value.split_once(':') {
            Some((stages, filter)) => (stages, Some(filter)),
            None => (value, None),
        };
        for stage in stages.split(',').map(str::trim) {
            match stage {
                "program" => dump.program = true,
                "kernel" => dump.kernel = true,
                "pipeline" => dump.pipeline = true,
                "plan" => dump.plan = true,
                "cuda" => dump.cuda = true,
                _ => {
                    return Err(Error::Usage {
                        what: format!("DUMP names the stage `{stage}`"),
                        legal: "stages are program, kernel, pipeline, plan, cuda, separated by commas; `:` and a schedule's name may follow".into(),
                    });
                }
            }
        }
        Ok(if filter.is_none_or(|filter| filter == name) {
            dump
        } else {
            Dump::default()
        })
    }

    /// Rejects a value of `DUMP` that names no schedule of this binary, since it would print nothing.
    pub(super) fn names_one(console: &Console<'_>, names: &[String]) -> Result<(), Error> {
        let filter = console.dump().and_then(|value| value.split_once(':'));
        match filter {
            Some((_, filter)) if !names.iter().any(|name| name == filter) => Err(Error::Usage {
                what: format!("DUMP names the schedule `{filter}`"),
                legal: format!("this binary has {}", names.join(", ")),
            }),
            Some(_) | None => Ok(()),
        }
    }

    pub(super) fn wants_plan(self) -> bool {
        self.plan
    }

    pub(super) fn program(self, console: &mut Console<'_>, program: &Program) {
        if self.program {
            console.aside(&program.text());
        }
    }

    pub(super) fn kernel(self, console: &mut Console<'_>, kernel: &Kernel) {
        if self.kernel {
            console.aside(&kernel.text());
        }
    }

    /// The warp level, or why there is none. A schedule that Hopper cannot run may still be checked.
    pub(super) fn pipeline(self, console: &mut Console<'_>, kernel: &Checked<Kernel>) {
        if self.pipeline {
            match verify::warps(kernel) {
                Ok(pipeline) => console.aside(&pipeline.text()),
                Err(error) => console.aside(&error.to_string()),
            }
        }
    }

    pub(super) fn plan(self, console: &mut Console<'_>, kernel: &Kernel, plan: &Plan) {
        if self.plan {
            console.aside(&plan.text(kernel));
        }
    }

    /// The kernel's text, or why there is none. A schedule that cannot be emitted may still be checked.
    pub(super) fn cuda(self, console: &mut Console<'_>, kernel: &Checked<Kernel>) {
        if self.cuda {
            match verify::warps(kernel) {
                Ok(pipeline) => console.aside(&counterflow_emitter::emit(&pipeline).text),
                Err(error) => console.aside(&error.to_string()),
            }
        }
    }
}
