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
use super::render::{self, Console};
use crate::communicator::Communicator;
use crate::cuda::Nccl;
use crate::error::Error;
use crate::gpus;
use crate::jit::Compiler;
use crate::tuned::{self, Key, Tuned};
use counterflow_codegen::model::{Machine, Volume};
use counterflow_codegen::program::{Program, Setting};
use counterflow_codegen::shape::Shape;
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
    /// Measure the model's favourites and write down which won, for later runs to choose
    #[arg(long)]
    sweep: bool,
    /// Where to write winners, instead of the user's cache
    #[arg(long, value_name = "FILE")]
    tuned: Option<PathBuf>,
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
    let mut setup = Setup::new(world, &request.machine)?;
    if options.nccl && side.is_some() {
        setup.add_nccl()?;
    }
    console.say(setup.describe());
    let base = Variant {
        world,
        ..request.variant.clone()
    };
    let mut field = Field::new(&request.program, base.clone(), options)?;
    // The product on each rank by itself, where the schedule does more.
    let free = Variant {
        choices: BTreeMap::new(),
        ..base
    };
    let alone = request.yardstick.as_ref().filter(|_| side.is_some());
    let mut alone = alone.map(|program| Field::chosen(program, free));
    let bar = console.bar(cases.len() as u64, "measuring");
    let mut results = Vec::new();
    let mut notes = Vec::new();
    for case in &cases {
        bar.say(&case.to_string());
        let (ours, refused) = field.take(case, &setup)?;
        match refused {
            Some(error) if ours.is_empty() => return Err(error),
            Some(error) => notes.push(format!("{case}: {error}")),
            None => {}
        }
        let beside = match &mut alone {
            Some(field) => field.take(case, &setup)?.0,
            None => Vec::new(),
        };
        results.push(setup.measure(request, case, &ours, beside.first())?);
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
    if options.sweep {
        console.say(setup.keep(request, world, &results)?);
    }
    let mut measured = table::object(&results);
    measured["gpu"] = setup.gpu().into();
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

/// The kernels of one schedule that may take part.
struct Field<'a> {
    program: &'a Program,
    base: Variant,
    built: Vec<Built>,
    many: Option<Many>,
}

impl<'a> Field<'a> {
    /// As the command line says: given choices, all of them or the model's favourites; otherwise what is chosen for
    /// each shape.
    fn new(program: &'a Program, base: Variant, given: &Options) -> Result<Field<'a>, Error> {
        let many = match given.variants {
            Some(many) => Some(many),
            None if given.sweep => Some(FAVOURITES),
            None if !given.open.is_empty() => Some(Many::All),
            None => return Ok(Field::chosen(program, base)),
        };
        let every = given.variants.is_some() || given.sweep;
        let known = tuned::choices(program);
        if let Some(name) = given
            .open
            .keys()
            .find(|name| !known.contains_key(&name[..]))
        {
            return Err(Error::Usage {
                what: format!("{} has no choice `{name}`", program.name),
                legal: format!(
                    "it has {}",
                    known.into_keys().collect::<Vec<_>>().join(", ")
                ),
            });
        }
        let mut base = base;
        for (name, options) in known {
            if !every
                && !given.open.contains_key(name)
                && let Some(first) = options.first()
            {
                base.choices.entry(name.into()).or_insert(*first);
            }
        }
        let mut built = Vec::new();
        let mut refused = None;
        for variant in tuned::combinations(program, &base, &given.open) {
            match variants::build(program, &variant) {
                Ok(one) => built.push(one),
                Err(error) => {
                    refused.get_or_insert(error);
                }
            }
        }
        match refused {
            Some(error) if built.is_empty() || !every => Err(error),
            Some(_) | None => Ok(Field {
                program,
                base,
                built,
                many,
            }),
        }
    }

    /// One variant for each shape: what was measured nearby, or the model's favourite.
    fn chosen(program: &'a Program, base: Variant) -> Field<'a> {
        Field {
            program,
            base,
            built: Vec::new(),
            many: None,
        }
    }

    /// Those for one product, and the first refusal, if any.
    fn take(
        &mut self,
        case: &Case,
        setup: &Setup,
    ) -> Result<(Vec<Planned<'_>>, Option<Error>), Error> {
        if let Some(many) = self.many {
            return Ok(variants::contenders(
                &self.built,
                case,
                &setup.machine,
                many,
            ));
        }
        let [m, n, k] = case.size;
        let shape = Shape::new(m, n, k);
        let (tables, gpu) = (&setup.tables, setup.gpu());
        let choice = tuned::select(
            tables,
            gpu,
            self.program,
            &self.base,
            &shape,
            &setup.machine,
        )?;
        let same = |built: &Built| built.kernel.variant == choice.variant;
        let at = match self.built.iter().position(same) {
            Some(at) => at,
            None => {
                self.built
                    .push(variants::build(self.program, &choice.variant)?);
                self.built.len() - 1
            }
        };
        Ok((vec![self.built[at].plan(case, &setup.machine)?], None))
    }
}

/// How many of the model's favourites a sweep measures, unless it is said.
const FAVOURITES: Many = Many::Best(6);

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
    /// What was measured before: the user's, then the package's.
    tables: [Tuned; 2],
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
            tables: [Tuned::of_user()?, Tuned::embedded()?],
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

    fn gpu(&self) -> &str {
        self.ranks[0].gpu().name()
    }

    /// Writes down who won.
    fn keep(
        &self,
        request: &Request,
        world: u32,
        results: &[table::Result],
    ) -> Result<String, Error> {
        if self.sharing > 1 {
            return Ok(
                "  nobody won: times of ranks that share a GPU say nothing of others".into(),
            );
        }
        let given = request.bench.tuned.clone();
        let path = given.or_else(Tuned::place).ok_or_else(|| Error::Usage {
            what: "there is no place for the winners".into(),
            legal: "--tuned FILE, or a folder in COUNTERFLOW_CACHE".into(),
        })?;
        let variant = Variant {
            world,
            ..request.variant.clone()
        };
        let key = Key::new(self.gpu(), &request.program, &variant);
        let mut tuned = Tuned::read(&path)?;
        let winners = results.iter().filter_map(|result| result.kept(&key));
        winners.for_each(|winner| tuned.put(winner));
        tuned.write(&path)?;
        Ok(format!(
            "  **{}** known in {}",
            render::plural(tuned.len() as u64, "winner"),
            path.display()
        ))
    }

    fn describe(&self) -> String {
        let gpu = self.gpu();
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
        let mut names = vec![(table::CUBLAS.to_owned(), None)];
        names.extend(alone.map(|alone| (format!("{} alone", alone.name()), None)));
        names.extend(
            ours.iter()
                .map(|planned| (planned.name(), Some(planned.built.choices.clone()))),
        );
        if self.stations[0].nccl.is_some() {
            let name = if variants::side(&request.program) == Some(suite::Side::Columns) {
                "NCCL, then cuBLASLt"
            } else {
                "cuBLASLt, then NCCL"
            };
            names.push((name.into(), None));
        }
        let link = (self.ranks.len() > 1).then(|| {
            let bytes = Volume::of(kernel, &first.plan).least_of_a_link();
            bytes as f64 / self.machine.link_copy_engine
        });
        Ok(table::Result::of(case, &names, &measured, link))
    }
}
