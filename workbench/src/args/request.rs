//! The user's request, with all names resolved.

use super::bench::Options;
use counterflow_codegen::machine::Machine;
use counterflow_codegen::program::Program;
use counterflow_codegen::shape::Shape;
use counterflow_codegen::variant::Variant;
use counterflow_runtime::family::Family;
use counterflow_runtime::{Device, Error, machines};
use std::ops::RangeInclusive;
use std::path::PathBuf;

/// A schedule: what `#[schedule] fn name(…)` becomes, or any function that builds one. Its name is its program's.
/// `|| name().reference(compare_with_this)` is that schedule with a reference of your own ([`Program::reference`]).
pub type Schedule = fn() -> Program;

/// A family of schedules, as [`Schedule`] is one.
pub type Families = fn() -> Family;

/// Action on a schedule.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Verb {
    Demo,
    Check,
    Emit,
    Compile,
    Run,
    Predict,
    Trace,
    Bench,
    List,
    Doctor,
    Profile,
}

impl Verb {
    pub(crate) const ALL: [Verb; 11] = [
        Verb::Demo,
        Verb::Check,
        Verb::Emit,
        Verb::Compile,
        Verb::Run,
        Verb::Predict,
        Verb::Trace,
        Verb::Bench,
        Verb::List,
        Verb::Doctor,
        Verb::Profile,
    ];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Verb::Demo => "demo",
            Verb::Check => "check",
            Verb::Emit => "emit",
            Verb::Compile => "compile",
            Verb::Run => "run",
            Verb::Predict => "predict",
            Verb::Trace => "trace",
            Verb::Bench => "bench",
            Verb::List => "list",
            Verb::Doctor => "doctor",
            Verb::Profile => "profile",
        }
    }
}

/// Numbers from the first to the last.
pub(crate) type Numbers = RangeInclusive<u32>;

/// Worlds and numbers of rows that `check` covers besides one world and shape: each with each.
#[derive(Clone, Debug)]
pub(crate) struct Ranges {
    pub worlds: Numbers,
    pub rows: Numbers,
}

/// The user's request, with all names resolved.
#[derive(Clone)]
pub(crate) struct Request {
    pub verb: Verb,
    pub program: Program,
    /// The family that was named instead of a schedule; `program` is the first of its schedules.
    pub family: Option<Family>,
    pub variant: Variant,
    pub shape: Shape,
    /// The machine that the user names, otherwise an H200.
    pub machine: Machine,
    /// True if the user names it.
    pub named: bool,
    /// Device to run on, if the user says so.
    pub device: Option<Device>,
    pub launches: u32,
    pub seed: u64,
    pub trace: Option<PathBuf>,
    /// Path of the page that `trace` draws.
    pub svg: Option<PathBuf>,
    /// True if `predict` says what multicast would bring.
    pub multicast: bool,
    /// True if `check` rejects a schedule without a kernel.
    pub emit: bool,
    /// The ranges that `check` covers instead of one shape.
    pub ranges: Option<Ranges>,
    pub bench: Options,
    /// The binary's `gemm`, if it has one: the product on each rank alone.
    pub baseline: Option<Program>,
}

impl Request {
    /// The machine to predict for without a GPU.
    pub(crate) fn machine(&self) -> Machine {
        self.machine.clone()
    }

    /// The machine that a GPU is, unless the user names another one.
    pub(crate) fn machine_of(&self, gpu: &str) -> Result<Machine, Error> {
        match self.named {
            true => Ok(self.machine()),
            false => machines::machine(gpu),
        }
    }
}
