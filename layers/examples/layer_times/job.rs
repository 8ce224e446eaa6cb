//! What one process does: it builds, compares and times the layers of a job.

use crate::Options;
use crate::case::{Job, Module, sizes};
use crate::clock::{Clock, Told};
use crate::model::{Given, Layer, Running, Which};
use counterflow::{Communicator, Error};
use counterflow_layers::overlap::Flags;
use counterflow_layers::{Initialize, QuantizationMode, Userbuffers};
use serde_json::{Map, Value, json};
use std::sync::{Arc, Mutex, PoisonError};

/// Results with and without overlap are apart by roundings: partial sums travel in bf16 in one and not in the other, and a code of FP8 is
/// the next one where an amax is another's.
const BOUND: [f64; 2] = [1e-2, 5e-2];

/// The next line of the input: whose turn it is.
struct Turn(Mutex<Option<bool>>);

/// Layers that are built, with those without overlap that they are compared with.
struct Built {
    module: Module,
    way: (Userbuffers, Layer),
    reference: Option<(Userbuffers, Layer)>,
}

/// All cases of a job, told line by line.
pub fn run(options: &Options, job: &Job) -> Result<(), Error> {
    let gpus: Vec<u32> = (0..options.gpus).collect();
    let ranks = match options.emulated {
        true => Communicator::emulated(options.gpus)?,
        false => Communicator::on(&gpus, None)?,
    };
    let told: Told = Mutex::new(vec![Vec::new(); gpus.len()]);
    let turn = Turn(Mutex::new(None));
    Communicator::each(&ranks, |world| of_rank(world, &told, &turn, (options, job)))?;
    Ok(())
}

fn of_rank(
    world: &Communicator,
    told: &Told,
    turn: &Turn,
    (options, job): (&Options, &Job),
) -> Result<(), Error> {
    let (own, parts) = (world.rank(), world.world());
    let rank = match job.has_communication() {
        true => world.split(0, own)?,
        false => world.split(own, 0)?,
    };
    let rank = Arc::new(rank);
    let sizes = sizes(options);
    let mode = match job.recipe() {
        Some(_) => QuantizationMode::Fp8,
        None => QuantizationMode::None,
    };
    let arguments = Initialize {
        ub_cfgs: vec![job.config()?],
        quantization_modes: vec![mode],
        ..Initialize::new([job.rows, sizes[0]], rank.world())
    };
    // Each has buffers of its own: the amaxes of FP8 layers that do not run are no part of another's step.
    let new = |module, flags| {
        let held = rank.heap_use().reserved;
        rank.reserve(held + arguments.heap_bytes() + (4 << 20))?;
        let buffers = Userbuffers::initialize(&rank, &arguments)?;
        let layer = Layer::new(&buffers, job, module, flags, sizes, parts as usize)?;
        Ok::<_, Error>((buffers, layer))
    };
    let mut built = Vec::new();
    for module in job.modules.iter().copied() {
        let plain = job.is_overlapped().then(|| new(module, Flags::default()));
        built.push(Built {
            module,
            way: new(module, job.flags())?,
            reference: plain.transpose()?,
        });
    }
    rank.synchronize()?;
    world.barrier()?;
    if own == 0 {
        println!("ready");
    }
    turn.wait()?;
    let clock = Clock {
        world,
        rank: &rank,
        told,
        options,
    };
    let tell = |module, mut result: Map<String, Value>| {
        if own == 0 {
            result.insert("name".into(), job.name(module).into());
            println!("{}", Value::Object(result));
        }
    };
    for built in built {
        let module = built.module;
        tell(module, case(&clock, job, built)?);
    }
    rank.synchronize()?;
    world.barrier()
}

impl Turn {
    /// Waits for a line, once for all ranks. The end of the input ends the process' work.
    fn wait(&self) -> Result<(), Error> {
        let mut come = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_there = come.get_or_insert_with(|| {
            let mut line = String::new();
            std::io::stdin()
                .read_line(&mut line)
                .is_ok_and(|read| read > 0)
        });
        match is_there {
            true => Ok(()),
            false => Err(Error::Usage {
                what: "no turn came".into(),
                legal: "the program that starts this one gives it a line".into(),
            }),
        }
    }
}

fn case(clock: &Clock<'_>, job: &Job, built: Built) -> Result<Map<String, Value>, Error> {
    let Clock {
        world,
        rank,
        options,
        ..
    } = clock;
    let (buffers, layer) = built.way;
    let given = Given::new(&buffers, &layer, job.rows, world.rank())?;
    let reference = built.reference.map(|(buffers, layer)| {
        let mut reference = Running::new(&buffers, layer, &given)?;
        reference.settle()?;
        Ok::<_, Error>(reference)
    });
    let reference = reference.transpose()?;
    let mut running = Running::new(&buffers, layer, &given)?;
    let mut result = Map::new();
    let products: Vec<String> = (running.layer.products().iter())
        .map(|product| {
            let layer = product.layer.as_deref().unwrap_or_default();
            let fused = if product.overlaps { ", fused" } else { "" };
            let (pass, schedule, variant) =
                (product.pass.name(), &product.schedule, &product.variant);
            format!("{layer}_{pass}: {schedule}{fused} ({variant})")
        })
        .collect();
    result.insert("products".into(), json!(products));
    // Right before the timing, and right after it.
    let compared = |running: &mut Running| {
        running.settle()?;
        rank.synchronize()?;
        let apart = reference.as_ref().map(|other| running.compare(other));
        apart
            .transpose()?
            .map(|apart| clock.most(apart))
            .transpose()
    };
    let bound = BOUND[usize::from(job.recipe().is_some())];
    let wrong = |apart: &Option<Vec<f64>>| {
        let apart = apart.iter().flatten();
        apart
            .copied()
            .step_by(2)
            .any(|norm| norm.is_nan() || norm > bound)
    };
    let before = compared(&mut running)?;
    result.insert("err".into(), json!(before));
    if wrong(&before) {
        result.insert(
            "error".into(),
            "WRONG: other results than without overlap".into(),
        );
        return Ok(result);
    }
    let mut cells = Map::new();
    let all: [(&str, Step); 4] = [
        ("f", |running| running.forward(Which::All)),
        ("b", Running::both),
        ("q", |running| running.forward(Which::First)),
        ("p", |running| running.forward(Which::Second)),
    ];
    let steps = match built.module {
        Module::QkvProj => &all[..],
        Module::SwiGlu | Module::Gelu => &all[..2],
    };
    let mut taken = Vec::new();
    for (name, step) in steps {
        step(&mut running)?;
        rank.synchronize()?;
        // Steps after the first allocate nothing, and their host waits for nothing.
        let counted = || [rank.tensors_allocated(), rank.host_waits()];
        let before = counted();
        for _ in 0..2 {
            step(&mut running)?;
        }
        let after = counted();
        taken.extend([0, 1].map(|at| (after[at] - before[at]) as f64));
        let times = clock.steps(|| step(&mut running))?;
        cells.insert(format!("{name}e"), json!(times));
        let host = clock.host(|| step(&mut running))?;
        cells.insert(format!("{name}h"), json!(host));
    }
    for (name, step) in steps {
        // A schedule that the host takes part in is refused, on every rank.
        if options.no_graph || result.contains_key("graph_error") {
            break;
        }
        rank.synchronize()?;
        world.barrier()?;
        let graph = rank.capture_own(|| step(&mut running));
        let failed = clock.most(vec![f64::from(u8::from(graph.is_err()))])?[0] > 0.0;
        match graph {
            Ok(graph) if !failed => {
                let times = clock.steps(|| graph.launch(&**rank).map(drop))?;
                cells.insert(format!("{name}g"), json!(times));
                rank.synchronize()?;
                world.barrier()?;
            }
            Ok(_) => drop(result.insert("graph_error".into(), "on another rank".into())),
            Err(error) => drop(result.insert("graph_error".into(), error.to_string().into())),
        }
    }
    result.insert("taken".into(), json!(clock.most(taken)?));
    let after = compared(&mut running)?;
    result.insert("err2".into(), json!(after));
    match wrong(&after) {
        true => result.insert("error".into(), "WRONG after the timing".into()),
        false => result.insert("cells".into(), Value::Object(cells)),
    };
    rank.synchronize()?;
    // No rank frees memory while a peer's kernel may still use it.
    world.barrier()?;
    Ok(result)
}

type Step = fn(&mut Running) -> Result<(), Error>;
