//! `DUMP=program,kernel,plan`: any stage's text on standard error. `DUMP=plan:ag_gemm` only for that schedule.

use super::render::Console;
use crate::error::Error;
use counterflow_codegen::kernel::Kernel;
use counterflow_codegen::plan::Plan;
use counterflow_codegen::program::Program;

/// Which stages are wanted for one schedule.
#[derive(Clone, Copy, Default)]
pub(super) struct Dump {
    program: bool,
    kernel: bool,
    plan: bool,
}

impl Dump {
    /// What `DUMP` asks for of the schedule `name`.
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
                "plan" => dump.plan = true,
                "cuda" => {
                    return Err(Error::NotYet {
                        what: "DUMP=cuda: this build emits no CUDA".into(),
                        help: "DUMP=program,kernel,plan show the stages before it".into(),
                    });
                }
                _ => {
                    return Err(Error::Usage {
                        what: format!("DUMP names the stage `{stage}`"),
                        legal: "stages are program, kernel, plan, separated by commas; then perhaps `:` and a schedule's name".into(),
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

    pub(super) fn plan(self, console: &mut Console<'_>, kernel: &Kernel, plan: &Plan) {
        if self.plan {
            console.aside(&plan.text(kernel));
        }
    }
}
