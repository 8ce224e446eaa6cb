//! The command-line tool of a binary with schedules: checks, runs, predicts, prints and times them.
//!
//! ```no_run
//! # use counterflow_codegen::program::Program;
//! # fn ag_gemm() -> Program { counterflow_codegen::builder::ScheduleBuilder::new("ag_gemm").finish() }
//! fn main() -> std::process::ExitCode {
//!     counterflow_workbench::main(&[ag_gemm])
//! }
//! ```
//!
//! In a CI, `check NAME --worlds 1..=8 --rows 1..=4096 --emit` proves a schedule for every shape of these ranges and
//! requires a kernel for GPUs. Exit codes: [`GOOD`], [`REJECTED`], [`USAGE`].
//!
//! Only the module that calls cuBLASLt, NCCL and NVML itself uses `unsafe`, each time with a reason.
#![deny(unsafe_code, clippy::undocumented_unsafe_blocks)]

mod args;
mod band;
mod bench;
mod chart;
mod check;
mod compared;
mod compile;
mod cuda;
mod demo;
mod doctor;
mod dump;
mod emit;
mod emits;
mod emulate;
mod facts;
mod gpu;
mod list;
mod outcome;
mod predict;
mod profile;
mod ranges;
mod ready;
mod render;
mod run;
mod size;
mod suite;
mod switch;
mod trace;

pub use args::{Families, Schedule};
pub use chart::chart;
pub use outcome::{GOOD, REJECTED, USAGE};
pub use render::Surroundings;

/// The libraries that measurements stand beside.
#[doc(hidden)]
pub mod peers {
    pub use crate::cuda::{Blas, Fused, Matmul, Nccl, Operands, Pieces, Problem, Scaled};
}

use args::{Parsed, Request, Verb};
use counterflow_codegen::variant::Tensors;
use counterflow_runtime::Error;
use outcome::Outcome;
use render::Console;
use serde_json::{Map, Value as Json, json};
use std::ffi::OsString;
use std::io::Write;
use std::process::ExitCode;

#[cfg(test)]
#[path = "../../codegen/tests/fixtures/library.rs"]
#[allow(dead_code, reason = "tests of other crates have the others")]
mod library;
/// NVIDIA's compiler, if tests can have it.
#[cfg(test)]
#[path = "../../runtime/tests/common/mod.rs"]
mod toolkit;
#[cfg(test)]
#[path = "../../codegen/tests/fixtures/wide.rs"]
mod wide;

/// The `main` of a binary with schedules: reads the command line, runs the verb, prints, and gives the exit code.
pub fn main(schedules: &[Schedule]) -> ExitCode {
    main_of(schedules, &[])
}

/// As [`main`], of a binary that has families of schedules, too: `bench` and `predict` take one by its name.
pub fn main_of(schedules: &[Schedule], families: &[Families]) -> ExitCode {
    let code = run_of(
        std::env::args_os(),
        (schedules, families),
        &Surroundings::of_process(),
        &mut std::io::stdout(),
        &mut std::io::stderr(),
    );
    leave_what_hangs(code);
    ExitCode::from(code)
}

/// Ends the process with that code if a call of the driver never came back: an ordinary exit might wait for it.
#[doc(hidden)]
pub fn leave_what_hangs(code: u8) {
    if doctor::hangs() {
        cuda::leave(code);
    }
}

/// As [`main`], with given arguments (the first is the binary's name), environment and streams.
///
/// Gives [`GOOD`], [`REJECTED`] or [`USAGE`]. A stream that cannot be written to is not an error: its reader has closed
/// it.
pub fn run_with(
    args: impl IntoIterator<Item = impl Into<OsString>>,
    schedules: &[Schedule],
    surroundings: &Surroundings,
    out: &mut dyn Write,
    err: &mut dyn Write,
) -> u8 {
    run_of(args, (schedules, &[]), surroundings, out, err)
}

/// As [`main_of`], with given arguments, environment and streams, as [`run_with`].
pub fn run_of(
    args: impl IntoIterator<Item = impl Into<OsString>>,
    (schedules, families): (&[Schedule], &[Families]),
    surroundings: &Surroundings,
    out: &mut dyn Write,
    err: &mut dyn Write,
) -> u8 {
    let args: Vec<OsString> = args.into_iter().map(Into::into).collect();
    let json = args.iter().any(|arg| arg == "--json");
    let mut console = Console::new(surroundings, json, out, err);
    let request = match args::parse(args, schedules, families, surroundings.colour) {
        Ok(Parsed::Request(request)) => request,
        Ok(Parsed::List) => return list::list(schedules, families, &mut console),
        Ok(Parsed::Doctor) => return doctor::doctor(&mut console),
        Ok(Parsed::Profile) => {
            let head = Map::from_iter([("verb".into(), Verb::Profile.name().into())]);
            let done = profile::profile(&mut console);
            return end(done, head, &mut console);
        }
        Ok(Parsed::Help(text)) => {
            console.help(&text);
            return GOOD;
        }
        Err(error) => {
            let head = Map::from_iter([("verb".into(), Json::Null)]);
            return refuse(&error, head, &mut console);
        }
    };
    let head = header(&request);
    let names: Vec<String> = schedules.iter().map(|made| made().name).collect();
    let done =
        dump::Dump::names_one(&console, &names).and_then(|()| dispatch(&request, &mut console));
    end(done, head, &mut console)
}

/// Prints how a verb ended, and gives the exit code.
fn end(done: Result<Outcome, Error>, head: Map<String, Json>, console: &mut Console<'_>) -> u8 {
    match done {
        Ok(Outcome { good, fields }) => {
            let code = if good { GOOD } else { REJECTED };
            let mut object = head;
            object.extend(fields);
            object.insert("ok".into(), good.into());
            object.insert("exit".into(), code.into());
            console.object(object);
            code
        }
        Err(error) => refuse(&error, head, console),
    }
}

fn dispatch(request: &Request, console: &mut Console<'_>) -> Result<Outcome, Error> {
    match request.verb {
        Verb::Demo => demo::demo(request, console),
        Verb::Check => check::check(request, console),
        Verb::Emit => emit::emit(request, console),
        Verb::Compile => compile::compile(request, console),
        Verb::Run => run::run(request, console),
        Verb::Predict => predict::predict(request, console),
        Verb::Trace => trace::trace(request, console),
        Verb::Bench => bench::bench(request, console),
        verb @ (Verb::List | Verb::Doctor | Verb::Profile) => Err(Error::Usage {
            what: format!("`{}` takes no schedule", verb.name()),
            legal: verb.name().into(),
        }),
    }
}

fn header(request: &Request) -> Map<String, Json> {
    let Request {
        verb,
        program,
        variant,
        shape,
        ..
    } = request;
    let choices: Map<String, Json> = variant
        .choices
        .iter()
        .map(|(name, setting)| (name.clone(), setting.to_string().into()))
        .collect();
    let element = |of: Tensors| variant.asked(&of).element.map(|dtype| dtype.name());
    let value = json!({
        "verb": verb.name(),
        "schedule": program.name,
        "variant": {
            "arch": variant.arch.name(),
            "world": variant.world,
            "dtype": element(Tensors::OfFirstType),
            "second": element(Tensors::Rhs),
            "scales": variant.operand_scales().map(|scales| scales.name()),
            "output": element(Tensors::Outputs),
            "output_scales": variant.output_rule().map(|rule| rule.to_string()),
            "partial": element(Tensors::PartialSums),
            "amax": variant.asked(&Tensors::Outputs).amax,
            "promote": variant.promote,
            "constants": variant.constants,
            "layout": variant.layout.name(),
            "choices": choices,
        },
        "shape": {
            "m": shape.m, "n": shape.n, "k": shape.k, "dims": shape.dims, "ld": shape.ld,
        },
    });
    match value {
        Json::Object(map) => map,
        _ => Map::new(),
    }
}

fn refuse(error: &Error, head: Map<String, Json>, console: &mut Console<'_>) -> u8 {
    let code = if matches!(error, Error::Usage { .. }) {
        USAGE
    } else {
        REJECTED
    };
    console.error(error);
    let mut object = head;
    object.insert("ok".into(), false.into());
    object.insert("exit".into(), code.into());
    object.insert("error".into(), render::error_json(error));
    console.object(object);
    code
}
