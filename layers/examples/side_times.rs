//! Times of side kernels, each beside a copy of as many bytes within the GPU, on one GPU and in one run: values first, bit for bit those of
//! the twin, in the first two rows, the middle one and the last one, of gradients of a norm's weights in the first and last columns; then
//! kernel and copy in turns.
//! `cargo run --release -p counterflow-layers --example side_times -- --rows 8192,2048`

#[path = "side_times/cases.rs"]
mod cases;
#[path = "side_times/numbers.rs"]
mod numbers;

use cases::Case;
use clap::Parser;
use counterflow::driver::Event;
use counterflow::prelude::bf16;
use counterflow::{Communicator, Error, Tensor};
use serde_json::{Map, Value, json};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Times of side kernels, each beside a copy of as many bytes
#[derive(Parser, Clone, Debug)]
pub struct Options {
    /// Rows of this rank
    #[arg(long, value_delimiter = ',', default_value = "8192,2048")]
    pub rows: Vec<usize>,
    /// Hidden size, columns between the MLP's products and of qkv on this rank: those of Llama-3 70B on two
    #[arg(long, value_delimiter = ',', default_value = "8192,14336,5120")]
    pub columns: Vec<usize>,
    /// An emulated rank, at small sizes: times say nothing, values do
    #[arg(long)]
    pub emulated: bool,
    /// Kernels by a part of their name; more than one with commas
    #[arg(long, default_value = "")]
    pub only: String,
    /// Samples of a time
    #[arg(long, default_value_t = 25)]
    pub samples: usize,
    /// Seconds for everything: what did not fit is named
    #[arg(long, default_value_t = 55.0)]
    pub seconds: f64,
    /// File for results
    #[arg(long)]
    pub json: Option<PathBuf>,
}

/// The least time of a sample: launches behind each other.
const SAMPLE: Duration = Duration::from_micros(500);
/// Bytes that launches go through before they come to the same ones again: more than a cache has.
pub const AROUND: usize = 1 << 29;

/// Median, p10 and p90.
fn spread(mut of: Vec<f64>) -> [f64; 3] {
    of.sort_by(f64::total_cmp);
    let last = of.len().saturating_sub(1);
    [of[last / 2], of[last / 10], of[last * 9 / 10]]
}

/// Events in front of `count` launches and behind them.
fn sample(
    rank: &Communicator,
    count: usize,
    run: &mut dyn FnMut(usize) -> Result<(), Error>,
) -> Result<(Event, Event), Error> {
    let begun = Event::record(rank.stream())?;
    for at in 0..count {
        run(at)?;
    }
    Ok((begun, Event::record(rank.stream())?))
}

/// A kernel's times and the copy's, in turns.
fn times(
    rank: &Communicator,
    options: &Options,
    case: &mut Case<'_>,
) -> Result<[Vec<f64>; 2], Error> {
    // A copy reads as many bytes as it writes.
    let elements = case.bytes / 2 / size_of::<bf16>();
    let sets = (AROUND / case.bytes.max(1)).max(1);
    let both = [
        rank.zeros::<bf16>([sets, elements])?,
        rank.zeros::<bf16>([sets, elements])?,
    ];
    let views = |of: &Tensor<bf16>| (0..sets).map(|at| of.rows(at..at + 1)).collect();
    let [from, to]: [Result<Vec<_>, Error>; 2] = both.each_ref().map(views);
    let (from, to) = (from?, to?);
    let mut copy = |at: usize| to[at % sets].copy_from(&from[at % sets]);
    let mut runs: [&mut dyn FnMut(usize) -> Result<(), Error>; 2] = [&mut case.run, &mut copy];
    let mut counts = [1; 2];
    for (run, count) in runs.iter_mut().zip(&mut counts) {
        for at in 0..5 {
            run(at)?;
        }
        let (begun, ended) = sample(rank, 5, run)?;
        rank.synchronize()?;
        let one = ended.since(&begun)? / 5;
        *count = (SAMPLE.as_secs_f64() / one.as_secs_f64().max(1e-6)).ceil() as usize;
        *count = if options.emulated {
            1
        } else {
            (*count).clamp(1, 64)
        };
    }
    let mut events = Vec::new();
    for _ in 0..options.samples {
        for (run, count) in runs.iter_mut().zip(counts) {
            events.push(sample(rank, count, run)?);
        }
    }
    rank.synchronize()?;
    let mut found = [Vec::new(), Vec::new()];
    for (at, (begun, ended)) in events.iter().enumerate() {
        let time = 1e3 * ended.since(begun)?.as_secs_f64() / counts[at % 2] as f64;
        found[at % 2].push(time);
    }
    Ok(found)
}

fn measure(options: &Options) -> Result<Map<String, Value>, Error> {
    let begun = Instant::now();
    let ranks = match options.emulated {
        true => Communicator::emulated(1)?,
        false => Communicator::local(1)?,
    };
    let rank = &Arc::new(ranks.into_iter().next().expect("one"));
    let sizes = match (options.emulated, &options.columns[..]) {
        (true, _) => [128, 256, 96],
        (false, [hidden, between, qkv]) => [*hidden, *between, *qkv],
        (false, _) => {
            return Err(Error::Usage {
                what: format!("{} numbers of columns", options.columns.len()),
                legal: "give three: --columns 8192,14336,5120".into(),
            });
        }
    };
    let rows = if options.emulated {
        vec![66]
    } else {
        options.rows.clone()
    };
    let mut results = Map::new();
    for rows in rows {
        let data = cases::Data::new(rank, rows, sizes, options.emulated)?;
        for mut case in cases::all(rank, &data)? {
            let name = case.name.clone();
            let mut only = options
                .only
                .split(',')
                .filter(|of| !of.is_empty())
                .peekable();
            if only.peek().is_some() && !only.any(|of| name.contains(of)) {
                continue;
            }
            let key = format!("{rows}.{name}");
            if begun.elapsed().as_secs_f64() > options.seconds {
                println!("{key:32} left out (time)");
                results.insert(key, json!({"error": "left out (time)"}));
                continue;
            }
            (case.run)(0)?;
            rank.synchronize()?;
            if let Err(why) = (case.check)() {
                println!("{key:32} WRONG {why}");
                results.insert(key, json!({"error": why.to_string()}));
                continue;
            }
            let [own, copy] = times(rank, options, &mut case)?;
            let ratios = own.iter().zip(&copy).map(|(own, copy)| copy / own);
            let ratios = spread(ratios.collect());
            let (own, copy) = (spread(own), spread(copy));
            let rate = case.bytes as f64 / own[0] / 1e9;
            println!(
                "{key:32} right | {:.4} ms [{:.4}..{:.4}] {rate:.2} TB/s | copy {:.4} [{:.4}..{:.4}] | of its rate {:.2} [{:.2}..{:.2}]",
                own[0], own[1], own[2], copy[0], copy[1], copy[2], ratios[0], ratios[1], ratios[2]
            );
            let found = json!({"bytes": case.bytes, "ms": own, "copy_ms": copy, "of_copy": ratios});
            results.insert(key, found);
        }
    }
    println!("{:.0} s", begun.elapsed().as_secs_f64());
    Ok(results)
}

fn main() -> ExitCode {
    let options = Options::parse();
    let done = measure(&options).map_err(|error| error.to_string());
    let written = done.and_then(|found| {
        if let Some(path) = &options.json {
            let text = format!("{:#}\n", Value::Object(found.clone()));
            std::fs::write(path, text).map_err(|error| error.to_string())?;
        }
        Ok(found)
    });
    match written {
        Ok(found) => {
            let is_right = !found.is_empty() && found.values().all(|of| of["ms"].is_array());
            ExitCode::from(u8::from(!is_right))
        }
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}
