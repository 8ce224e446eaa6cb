//! The tool that any binary with schedules becomes: check, run, predict and print them from the command line.
//!
//! ```no_run
//! # use counterflow_codegen::program::Program;
//! # fn ag_gemm() -> Program { unimplemented!() }
//! fn main() -> std::process::ExitCode {
//!     counterflow_runtime::workbench::main(&[ag_gemm])
//! }
//! ```
//!
//! In a CI, `check NAME --worlds 1..=8 --rows 1..=4096 --emit` proves a schedule for every shape of these ranges and
//! wants a kernel for GPUs. Exit codes: [`GOOD`], [`REJECTED`], [`USAGE`].

mod args;
mod bench;
mod check;
mod compile;
mod demo;
mod dump;
mod emit;
mod emits;
mod facts;
mod gpu;
mod list;
mod predict;
mod ranges;
mod render;
mod run;
mod size;

use crate::error::Error;
use args::{Parsed, Request, Verb};
use counterflow_codegen::kernel::Kernel;
use counterflow_codegen::plan::Plan;
use counterflow_codegen::program::Program;
use counterflow_codegen::verify::{Checked, Series};
use render::Console;
use serde_json::{Map, Value as Json, json};
use std::ffi::OsString;
use std::io::{IsTerminal, Write};
use std::process::ExitCode;

/// A schedule: what `#[schedule] fn name(…)` becomes, or any function that builds one. It is known by its program's
/// name. `|| name().reference(compare_with_this)` is that schedule with a reference of your own
/// ([`Program::reference`]).
pub type Schedule = fn() -> Program;

/// Good: proven, and right where it ran.
pub const GOOD: u8 = 0;
/// Rejected by a stage, wrong when it ran, compared with nothing, or not possible here.
pub const REJECTED: u8 = 1;
/// The command line itself has no meaning.
pub const USAGE: u8 = 2;

/// What the workbench may assume of where it prints, besides its two streams.
#[derive(Clone, Default, Debug)]
pub struct Surroundings {
    /// Colours on standard output and standard error.
    pub colour: bool,
    /// Progress bars on standard error.
    pub progress: bool,
    /// The value of `DUMP`.
    pub dump: Option<String>,
}

impl Surroundings {
    /// Those of this process: colours on terminals unless `NO_COLOR` is set, bars on terminals.
    pub fn of_process() -> Surroundings {
        let terminal = std::io::stderr().is_terminal();
        let wanted = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        Surroundings {
            colour: wanted && terminal && std::io::stdout().is_terminal(),
            progress: terminal,
            dump: std::env::var("DUMP").ok().filter(|value| !value.is_empty()),
        }
    }
}

/// Makes a binary with schedules a tool: reads the command line, does what it says, prints, and gives the exit code.
pub fn main(schedules: &[Schedule]) -> ExitCode {
    let code = run_with(
        std::env::args_os(),
        schedules,
        &Surroundings::of_process(),
        &mut std::io::stdout(),
        &mut std::io::stderr(),
    );
    ExitCode::from(code)
}

/// As [`main`], on given arguments (the first is the binary's name), surroundings and streams.
///
/// Gives [`GOOD`], [`REJECTED`] or [`USAGE`]. A stream that cannot be written to is not an error: whoever closed it
/// has seen enough.
pub fn run_with(
    args: impl IntoIterator<Item = impl Into<OsString>>,
    schedules: &[Schedule],
    surroundings: &Surroundings,
    out: &mut dyn Write,
    err: &mut dyn Write,
) -> u8 {
    let args: Vec<OsString> = args.into_iter().map(Into::into).collect();
    let json = args.iter().any(|arg| arg == "--json");
    let mut console = Console::new(surroundings, json, out, err);
    let request = match args::parse(args, schedules, surroundings.colour) {
        Ok(Parsed::Request(request)) => request,
        Ok(Parsed::List) => return list::list(schedules, &mut console),
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
        Err(error) => refuse(&error, head, &mut console),
    }
}

/// What a verb found: whether all is well, and the fields of its JSON object.
struct Outcome {
    good: bool,
    fields: Map<String, Json>,
}

impl Outcome {
    fn good(fields: Map<String, Json>) -> Outcome {
        Outcome { good: true, fields }
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
        Verb::Bench => bench::bench(request, console),
        Verb::List => Err(Error::Usage {
            what: "`list` takes no schedule".into(),
            legal: "list".into(),
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
    let value = json!({
        "verb": verb.name(),
        "schedule": program.name,
        "variant": {
            "arch": variant.arch.name(),
            "world": variant.world,
            "dtype": variant.dtype.map(|dtype| dtype.name()),
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

/// A schedule with everything that was proven about it.
struct Ready {
    kernel: Checked<Kernel>,
    series: Series,
    plan: Checked<Plan>,
}
