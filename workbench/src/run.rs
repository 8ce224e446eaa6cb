//! `run`: several launches on GPUs or emulated ranks with different M, each compared with an f64 reference.

use super::args::Request;
use super::outcome::Outcome;
use super::ready::{self, Ready};
use super::render::Console;
use super::{check, emulate, gpu, switch};
use counterflow_codegen::diag::Rule;
use counterflow_codegen::lower::lower;
use counterflow_codegen::machine::Machine;
use counterflow_codegen::program::{Program, RoleKind};
use counterflow_codegen::shape::Shape;
use counterflow_codegen::variant::Arch;
use counterflow_codegen::verify;
use counterflow_runtime::cuda::Gpu;
use counterflow_runtime::tuned::{self, Tuned};
use counterflow_runtime::{Device, Error, communicator};
use serde_json::{Map, json};

pub(super) fn run(request: &Request, console: &mut Console<'_>) -> Result<Outcome, Error> {
    if request.shape.m == 0 {
        return of_no_rows(request, console);
    }
    let request = &settled(request, console)?;
    let ready = ready::ready(request, &request.shape, console)?;
    let mut fields = check::proven(request, &ready, console);
    let Outcome { good, fields: ran } = on_device(request, &ready, console)?;
    fields.extend(ran);
    Ok(Outcome { good, fields })
}

/// Launches of no rows, of a kernel that would have some.
fn of_no_rows(request: &Request, console: &mut Console<'_>) -> Result<Outcome, Error> {
    let kernel = lower(&request.program, &request.variant).and_then(verify::kernel)?;
    if let Some(name) = request.shape.beside_rows(&kernel) {
        return Err(Error::Usage {
            what: format!("--m 0, where {name} has other rows"),
            legal: "launch at least one row".into(),
        });
    }
    let one = Shape {
        m: 1,
        ..request.shape.clone()
    };
    verify::series(&kernel, &one, &request.machine())?;
    console.say("**ran** nothing: a launch of no rows enqueues no kernel");
    let ran = json!({ "launches": [] });
    Ok(Outcome::good(Map::from_iter([("ran".into(), ran)])))
}

/// Settles device and choices: where the user says, else on GPUs, if there are any and the schedule has a kernel for
/// them.
pub(super) fn settled(request: &Request, console: &mut Console<'_>) -> Result<Request, Error> {
    if switch::needs_object(&request.program, &request.variant) {
        if request.device == Some(Device::Cuda) {
            return Err(switch::refused(request.verb, &request.program));
        }
        console.say("**device** is the emulator: no verb makes a multicast object");
        return chosen(request, Device::Cpu, console);
    }
    if let Some(device) = request.device {
        return chosen(request, device.open()?, console);
    }
    let for_gpus = console.may_use_gpus() && request.variant.arch != Arch::Cpu;
    if !for_gpus || Device::Cuda.open().is_err() {
        return chosen(request, Device::Cpu, console);
    }
    let on_gpus = chosen(request, Device::Cuda, console).and_then(|request| {
        let kernel = lower(&request.program, &request.variant).and_then(verify::kernel)?;
        verify::warps(&kernel)?;
        Ok(request)
    });
    match on_gpus {
        // Nothing is wrong with the schedule: this version has no kernel for it.
        Err(Error::Rejected(found)) if found.iter().all(|one| one.rule == Rule::Resources) => {
            let why = found.first().brief();
            console.say(format!(
                "**device** is the emulator, as GPUs have no kernel: {why}"
            ));
            chosen(request, Device::Cpu, console)
        }
        settled => settled,
    }
}

/// On a GPU, open choices become the fastest ones there.
fn chosen(request: &Request, device: Device, console: &mut Console<'_>) -> Result<Request, Error> {
    let mut request = request.clone();
    request.device = Some(device);
    if device == Device::Cpu {
        return Ok(request);
    }
    let gpu = Gpu::open(0)?;
    let world = request.variant.world;
    let sharing = if Gpu::count()? >= world { 1 } else { world };
    let machine = Machine {
        sms: communicator::share(gpu.sms(), sharing, copies(&request.program)),
        ..request.machine_of(gpu.name())?
    };
    let tables = [Tuned::of_user()?, Tuned::embedded()?];
    let Request {
        program,
        variant,
        shape,
        ..
    } = &request;
    let choice = tuned::select(&tables, gpu.name(), program, variant, shape, &machine)?;
    if !tuned::choices(program).is_empty() {
        let why = if choice.measured {
            "the measured winners, for this shape or one nearby"
        } else {
            "the model's: no measured variant nearby is as good here (`bench --sweep` measures)"
        };
        console.say(format!("**choices** are {why}"));
    }
    request.variant = choice.variant;
    Ok(request)
}

/// True if the host copies while the schedule's kernel runs.
pub(super) fn copies(program: &Program) -> bool {
    let mut roles = program.roles.iter();
    roles.any(|role| matches!(role.kind, RoleKind::CopyEngine))
}

/// Runs on the requested device.
pub(super) fn on_device(
    request: &Request,
    ready: &Ready,
    console: &mut Console<'_>,
) -> Result<Outcome, Error> {
    if request.device == Some(Device::Cpu) {
        emulate::run(request, ready, console)
    } else {
        gpu::run(request, ready, console)
    }
}
