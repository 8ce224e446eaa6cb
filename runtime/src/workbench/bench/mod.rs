//! `bench`: kernels of ours beside cuBLASLt, in one process, in turns, on random data, checked before they are timed.

mod contenders;
mod meter;
mod station;
mod stats;
mod suite;
mod table;
mod turns;
mod variants;

use super::Outcome;
use super::args::Request;
use super::render::Console;
use crate::communicator::Communicator;
use crate::cuda::Nccl;
use crate::error::Error;
use crate::gpus;
use crate::jit::Compiler;
use counterflow_codegen::model::{Machine, Volume};
use counterflow_codegen::program::{Program, Setting};
use counterflow_codegen::variant::Variant;
use serde_json::{Map, json};
use station::{Station, Task};
use std::collections::BTreeMap;
use std::path::PathBuf;
use suite::Case;
use turns::Exchange;
use variants::{Built, Many, Planned};

/// What a command line says about measuring.
#[derive(clap::Args, Clone, Debug, Default)]
#[command(next_help_heading = "Measuring")]
pub(super) struct Options {
    /// Products to measure, rows x columns x depth on a rank, such as 4096x4096x4096,8192x8192x8192
    #[arg(long = "shape", value_name = "MxNxK", value_delimiter = ',', value_parser = suite::size)]
    shapes: Vec<[u32; 3]>,
    /// Products by name: squares, or llama70b, llama405b, gpt3 with -tp2, -tp4 or -tp8
    #[arg(long = "suite", value_name = "NAME", value_delimiter = ',')]
    suites: Vec<String>,
    /// Rows of a suite's products instead of 512 to 16384
    #[arg(long, value_name = "M", value_delimiter = ',', value_parser = super::args::number)]
    rows: Vec<u32>,
    /// Samples of each contender
    #[arg(long, value_name = "S", default_value = "30", value_parser = samples)]
    samples: usize,
    /// Turns before the samples, until the clocks have settled
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = seconds)]
    warm: f64,
    /// Besides, each contender alone back to back for so long
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    sustained: Option<f64>,
    /// Which of a schedule's variants: all, or how many of those that the model ranks best
    #[arg(long, value_name = "all|N", value_parser = variants::many)]
    variants: Option<Many>,
    /// NCCL and cuBLASLt one after the other, too; NCCL_NVLS_ENABLE=0 must be set
    #[arg(long)]
    nccl: bool,
    /// Write the JSON object to a file, too
    #[arg(long, value_name = "FILE")]
    save: Option<PathBuf>,
    /// Choices given several times: each takes part
    #[arg(skip)]
    open: BTreeMap<String, Vec<Setting>>,
}

impl Options {
    /// Keeps what is said more than once of a choice, and gives back what is said once.
    pub(super) fn take_open(&mut self, said: Vec<(String, Setting)>) -> Vec<(String, Setting)> {
        let times = |name: &str| said.iter().filter(|(said, _)| said == name).count();
        let (often, once): (Vec<_>, Vec<_>) =
            said.iter().cloned().partition(|(name, _)| times(name) > 1);
        for (name, setting) in often {
            self.open.entry(name).or_default().push(setting);
        }
        once
    }
}

fn samples(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(samples) if (1..=10_000).contains(&samples) => Ok(samples),
        _ => Err("it is a whole number from 1 to 10000".into()),
    }
}

fn seconds(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(seconds) if seconds > 0.0 && seconds <= 600.0 => Ok(seconds),
        _ => Err("it is a number of seconds, up to 600".into()),
    }
}

pub(super) fn bench(request: &Request, console: &mut Console<'_>) -> Result<Outcome, Error> {
    let options = &request.bench;
    let side = variants::side(&request.program);
    let world = if side.is_some() {
        request.variant.world
    } else {
        1
    };
    let cases = cases(request, side, world)?;
    let base = Variant {
        world,
        ..request.variant.clone()
    };
    let all = built(&request.program, &base, options)?;
    let alone = match (&request.yardstick, side) {
        (Some(program), Some(_)) => Some(variants::build(
            program,
            &Variant {
                choices: BTreeMap::new(),
                ..base.clone()
            },
        )?),
        (_, _) => None,
    };
    let mut setup = Setup::new(world, &request.machine)?;
    if options.nccl && side.is_some() {
        setup.add_nccl()?;
    }
    console.say(setup.describe());
    let many = options.variants.unwrap_or(Many::All);
    let bar = console.bar(cases.len() as u64, "measuring");
    let mut results = Vec::new();
    let mut notes = Vec::new();
    for case in &cases {
        bar.say(&case.to_string());
        let (ours, refused) = variants::contenders(&all, case, &setup.machine, many);
        match refused {
            Some(error) if ours.is_empty() => return Err(error),
            Some(error) => notes.push(format!("{case}: {error}")),
            None => {}
        }
        let alone = alone
            .as_ref()
            .map(|built| built.plan(case, &setup.machine))
            .transpose()?;
        results.push(setup.measure(request, case, &ours, alone.as_ref())?);
        bar.step();
    }
    drop(bar);
    console.say(table::text(&results));
    if let Some(text) = table::sustained(&results) {
        console.say(text);
    }
    console.say(table::summary_text(&results));
    for note in &notes {
        console.say(format!("  left out at {note}"));
    }
    let mut measured = table::object(&results);
    measured["gpu"] = setup.ranks[0].gpu().name().into();
    measured["world"] = world.into();
    measured["ranks_sharing_a_gpu"] = setup.sharing.into();
    measured["cublaslt"] = setup.stations[0].blas.version().into();
    measured["nccl"] = setup.stations[0].nccl.as_ref().map(Nccl::version).into();
    measured["left_out"] = json!(notes);
    if let Some(path) = &options.save {
        std::fs::write(path, format!("{measured}\n")).map_err(|source| Error::File {
            path: path.clone(),
            source,
        })?;
    }
    Ok(Outcome {
        good: !table::wrong(&results),
        fields: Map::from_iter([("measured".into(), measured)]),
    })
}

/// What is to be measured: shapes, then suites, else the one shape of the command line.
fn cases(request: &Request, side: Option<suite::Side>, world: u32) -> Result<Vec<Case>, Error> {
    let options = &request.bench;
    let mut cases: Vec<Case> = options.shapes.iter().copied().map(suite::single).collect();
    for name in &options.suites {
        cases.extend(suite::named(
            name,
            &options.rows,
            side,
            side.map(|_| world),
        )?);
    }
    if cases.is_empty() {
        let shape = &request.shape;
        cases.push(suite::single([shape.m, shape.n, shape.k]));
    }
    Ok(cases)
}

/// The kernels that may take part. A variant that no stage refuses is enough.
fn built(program: &Program, base: &Variant, options: &Options) -> Result<Vec<Built>, Error> {
    let open = options.variants.is_some();
    let mut all = Vec::new();
    let mut refused = None;
    for variant in variants::combinations(program, base, &options.open, open) {
        match variants::build(program, &variant) {
            Ok(built) => all.push(built),
            Err(error) => {
                refused.get_or_insert(error);
            }
        }
    }
    match refused {
        Some(error) if all.is_empty() || !open => Err(error),
        Some(_) | None => Ok(all),
    }
}

/// GPUs, compiler and libraries, for all products.
struct Setup {
    ranks: Vec<Communicator>,
    stations: Vec<Station>,
    compiler: Compiler,
    exchange: Exchange,
    /// Ranks on the first GPU.
    sharing: usize,
    /// As much of a GPU as a rank has.
    machine: Machine,
}

impl Setup {
    fn new(world: u32, machine: &Machine) -> Result<Setup, Error> {
        let ranks = gpus::ranks(world)?;
        let gpu = ranks[0].gpu();
        gpu.must_be_hopper()?;
        let sharing = ranks
            .iter()
            .filter(|rank| rank.gpu().ordinal() == gpu.ordinal())
            .count();
        let machine = Machine {
            sms: gpu.sms() / sharing as u32,
            ..machine.clone()
        };
        let compiler = Compiler::find()?;
        let stations = Communicator::each(&ranks, |rank| Station::new(rank, &compiler))?;
        Ok(Setup {
            exchange: Exchange::new(ranks.len()),
            ranks,
            stations,
            compiler,
            sharing,
            machine,
        })
    }

    fn add_nccl(&mut self) -> Result<(), Error> {
        let ranks = self.ranks.iter();
        let ranks: Vec<_> = ranks
            .map(|rank| (rank.gpu().clone(), rank.stream().clone()))
            .collect();
        for (station, nccl) in self.stations.iter_mut().zip(Nccl::all(&ranks)?) {
            station.nccl = Some(nccl);
        }
        Ok(())
    }

    fn describe(&self) -> String {
        let gpu = self.ranks[0].gpu().name();
        let place = match (self.ranks.len(), self.sharing) {
            (1, _) => gpu.to_owned(),
            (count, 1) => format!("{count} x {gpu}"),
            (count, _) => format!(
                "{count} ranks that share one {gpu}, so that no time here is that of {count} GPUs"
            ),
        };
        let mut text = format!(
            "**measuring** on {place}, beside cuBLASLt {}, compiled by {}",
            self.stations[0].blas.version(),
            self.compiler.describe()
        );
        if let Some(nccl) = &self.stations[0].nccl {
            text.push_str(&format!(", NCCL {}", nccl.version()));
        }
        if let Err(why) = meter::library() {
            text.push_str(&format!("\n  no clocks and no power: {why}"));
        }
        text
    }

    fn measure(
        &self,
        request: &Request,
        case: &Case,
        ours: &[Planned<'_>],
        alone: Option<&Planned<'_>>,
    ) -> Result<table::Result, Error> {
        let first = &ours[0];
        let (kernel, roles) = (&first.built.kernel, first.built.roles);
        let task = Task {
            case,
            dtype: kernel.buffers[roles.x.index()].dtype,
            layout: kernel.variant.layout,
            ours,
            alone,
            compiler: &self.compiler,
            samples: request.bench.samples,
            warm: request.bench.warm,
            sustained: request.bench.sustained,
            seed: request.seed,
            exchange: &self.exchange,
        };
        let measured = Communicator::each(&self.ranks, |rank| {
            self.stations[rank.rank() as usize].measure(rank, &task)
        })?;
        let mut names = vec![(table::CUBLAS.to_owned(), false)];
        names.extend(alone.map(|alone| (format!("{} alone", alone.built.kernel.name), false)));
        names.extend(ours.iter().map(|planned| (planned.name(), true)));
        if self.stations[0].nccl.is_some() {
            let name = if variants::side(&request.program) == Some(suite::Side::Columns) {
                "NCCL, then cuBLASLt"
            } else {
                "cuBLASLt, then NCCL"
            };
            names.push((name.into(), false));
        }
        let link = (self.ranks.len() > 1).then(|| {
            let bytes = Volume::of(kernel, &first.plan).least_of_a_link();
            bytes as f64 / self.machine.link_copy_engine
        });
        Ok(table::Result::of(case, &names, &measured, link))
    }
}
