//! Times of tensor-parallel layers at the sizes of Llama-3 70B, in the cases and by the rules of TransformerEngine's own measurement:
//! forward, and forward with backward; call by call, and as a captured graph; without overlap, with it, and without communication.
//!
//! Each case is `precision.rows.way.module`. A process builds the layers of one precision, number of rows and way, with a thread for each
//! GPU; it compares them with the layers without overlap, and then times them. Some processes build side by side, then take turns on the
//! GPUs, and then the next ones come (`--together`).
//! `cargo run --release -p counterflow-layers --example layer_times -- --gpus 2 --only bf16.8192`

#[path = "layer_times/apart.rs"]
mod apart;
#[path = "layer_times/case.rs"]
mod case;
#[path = "layer_times/clock.rs"]
mod clock;
#[path = "layer_times/job.rs"]
mod job;
#[path = "layer_times/model.rs"]
mod model;
#[path = "layer_times/table.rs"]
mod table;

use case::Job;
use clap::Parser;
use counterflow::Error;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, ExitCode, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

/// Times of tensor-parallel layers, with and without overlap
#[derive(Parser, Clone, Debug)]
pub struct Options {
    /// GPUs, with a rank on each
    #[arg(long, default_value_t = 2)]
    pub gpus: u32,
    /// Emulated ranks, at small sizes: times say nothing, results do
    #[arg(long)]
    pub emulated: bool,
    /// Seconds for everything: what did not fit is named
    #[arg(long, default_value_t = 150.0)]
    pub seconds: f64,
    /// Cases by their beginning (bf16.8192.none), or by words of theirs (fp8ds+swiglu); more than one with commas
    #[arg(long, default_value = "")]
    pub only: String,
    /// Samples of a time
    #[arg(long, default_value_t = 15)]
    pub samples: usize,
    /// Seconds of the steps before them
    #[arg(long, default_value_t = 0.25)]
    pub warm: f64,
    /// No captured graphs
    #[arg(long)]
    pub no_graph: bool,
    /// Processes that hold their layers at a time: as many as fit on a GPU
    #[arg(long, default_value_t = 4)]
    pub together: usize,
    /// File for results, written anew after each case
    #[arg(long)]
    pub json: Option<PathBuf>,
    /// What one process does: given by the program itself
    #[arg(long, hide = true)]
    pub job: Option<Job>,
}

/// A process without a line for so long is ended.
const SILENT: Duration = Duration::from_secs(60);
/// The same while many build at once.
const BUILDS: Duration = Duration::from_secs(150);

/// Nothing is begun with less time than this.
const LEAST: Duration = Duration::from_secs(5);
const LATE: &str = "left out (time)";

/// A process that has built its layers, or does so.
struct Worker {
    job: Job,
    process: Child,
    input: ChildStdin,
    lines: Receiver<String>,
}

impl Worker {
    fn start(job: &Job) -> Result<Worker, std::io::Error> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(std::env::args_os().skip(1));
        command.arg("--job").arg(job.to_string());
        let command = command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.spawn()?;
        let piped = || std::io::Error::other("a pipe is not there");
        let input = process.stdin.take().ok_or_else(piped)?;
        let output = process.stdout.take().ok_or_else(piped)?;
        let (to, lines): (Sender<String>, _) = channel();
        std::thread::spawn(move || {
            let lines = BufReader::new(output).lines().map_while(Result::ok);
            lines.map_while(|line| to.send(line).ok()).for_each(drop);
        });
        let job = job.clone();
        Ok(Worker {
            job,
            process,
            input,
            lines,
        })
    }

    /// The next line, or why there is none.
    fn next(&self, within: Duration) -> Result<String, String> {
        let next = self.lines.recv_timeout(within);
        next.map_err(|_| format!("no word for {} s, or it ended", within.as_secs()))
    }

    /// All cases of a job, once it may use the GPUs.
    fn run(mut self, left: Duration, results: &mut Results) {
        let begun = Instant::now();
        let told = writeln!(self.input, "go").map_err(|error| error.to_string());
        let mut ended = told.err();
        while ended.is_none() {
            let wait = left.saturating_sub(begun.elapsed()).min(SILENT);
            match self.next(wait) {
                Ok(line) if line == "end" => break,
                Ok(line) => match serde_json::from_str::<Value>(&line) {
                    Ok(of) => {
                        let name = of["name"].as_str().unwrap_or_default().to_owned();
                        eprintln!("{}", table::line(&name, &of));
                        results.insert(name, of);
                    }
                    Err(_) => eprintln!("{}: {line}", self.job),
                },
                Err(why) => ended = Some(why),
            }
        }
        let why = ended.unwrap_or_else(|| "it gave no result".into());
        for name in self.job.names() {
            if !results.found.contains_key(&name) {
                results.insert(name.clone(), json!({"name": name, "error": why}));
            }
        }
        self.end();
    }

    fn end(mut self) {
        // One that has ended by itself cannot be killed any more, and is waited for all the same.
        drop(self.process.kill());
        drop(self.process.wait());
    }
}

/// Results by case, in a file that has all of them at any time.
struct Results {
    found: BTreeMap<String, Value>,
    begun: Instant,
    options: Options,
}

impl Results {
    fn insert(&mut self, name: String, of: Value) {
        self.found.insert(name, of);
        if let Err(error) = self.write() {
            eprintln!("results are not written: {error}");
        }
    }

    fn fail(&mut self, job: &Job, why: &str) {
        for name in job.names() {
            self.insert(name.clone(), json!({"name": name, "error": why}));
        }
    }

    fn seconds(&self) -> f64 {
        self.begun.elapsed().as_secs_f64()
    }

    /// In one step, so that a reader sees whole results.
    fn write(&self) -> Result<(), std::io::Error> {
        let Options {
            json: Some(path),
            gpus,
            samples,
            ..
        } = &self.options
        else {
            return Ok(());
        };
        let all = json!({"gpus": gpus, "samples": samples, "seconds": self.seconds(), "results": self.found});
        let draft = path.with_extension("draft");
        std::fs::write(&draft, format!("{all:#}\n"))?;
        std::fs::rename(draft, path)
    }
}

/// Jobs that fit together: they build side by side, and then take turns.
fn together(jobs: &[Job], end: Instant, results: &mut Results) {
    let builders = std::thread::available_parallelism().map_or(1, usize::from) / 2;
    let (mut building, mut ready, mut next) = (Vec::new(), Vec::new(), jobs.iter());
    let begun = Instant::now();
    if end.saturating_duration_since(begun) < LEAST {
        jobs.iter().for_each(|job| results.fail(job, LATE));
        return;
    }
    loop {
        while building.len() < builders.max(1)
            && let Some(job) = next.next()
        {
            match Worker::start(job) {
                Ok(worker) => building.push(worker),
                Err(error) => results.fail(job, &error.to_string()),
            }
        }
        if building.is_empty() {
            break;
        }
        // In the order in which they will run: later ones go on meanwhile.
        let worker: Worker = building.remove(0);
        let left = end.saturating_duration_since(Instant::now()).min(BUILDS);
        let told = loop {
            match worker.next(left) {
                Ok(line) if line == "ready" => break Ok(()),
                Ok(line) if line.starts_with('{') => break Err(line),
                Ok(line) => eprintln!("{}: {line}", worker.job),
                Err(why) => break Err(format!("while it was built: {why}")),
            }
        };
        match told {
            Ok(()) => ready.push(worker),
            Err(why) => {
                let why = serde_json::from_str::<Value>(&why).map_or(why, |of| {
                    of["error"].as_str().unwrap_or_default().to_owned()
                });
                eprintln!("{}: {why}", worker.job);
                results.fail(&worker.job, &why);
                worker.end();
            }
        }
    }
    eprintln!(
        "{} jobs built in {:.1} s",
        ready.len(),
        begun.elapsed().as_secs_f64()
    );
    for worker in ready {
        let left = end.saturating_duration_since(Instant::now());
        match left < LEAST {
            true => {
                results.fail(&worker.job, LATE);
                worker.end();
            }
            false => worker.run(left, results),
        }
    }
}

fn measure(options: &Options) -> Result<ExitCode, std::io::Error> {
    let jobs = case::jobs(options);
    let mut results = Results {
        found: BTreeMap::new(),
        begun: Instant::now(),
        options: options.clone(),
    };
    let end = results.begun + Duration::from_secs_f64(options.seconds);
    for some in jobs.chunks(options.together.max(1)) {
        together(some, end, &mut results);
    }
    results.write()?;
    let names: Vec<String> = jobs.iter().flat_map(Job::names).collect();
    for name in &names {
        println!("{}", table::line(name, &results.found[name]));
    }
    for line in table::best(&results.found) {
        println!("{line}");
    }
    println!("{:.0} s", results.seconds());
    let is_right = !names.is_empty() && results.found.values().all(|of| of["cells"].is_object());
    Ok(ExitCode::from(u8::from(!is_right)))
}

fn worker(options: &Options, job: &Job) -> Result<ExitCode, Error> {
    match job::run(options, job) {
        Ok(()) => println!("end"),
        Err(error) => {
            let help = error.help().unwrap_or_default();
            println!("{}", json!({"error": format!("{error} ({help})")}));
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn main() -> ExitCode {
    let options = Options::parse();
    let done = match &options.job {
        Some(job) => worker(&options, job).map_err(|error| error.to_string()),
        None => measure(&options).map_err(|error| error.to_string()),
    };
    done.unwrap_or_else(|error| {
        eprintln!("error: {error}");
        ExitCode::FAILURE
    })
}
