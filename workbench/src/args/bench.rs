//! The command line's options for `bench`.

use crate::suite;
use counterflow_codegen::program::Setting;
use std::collections::BTreeMap;
use std::path::PathBuf;

/// Number of variants that take part.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Many {
    /// Every legal one.
    All,
    /// This many for each shape: the model's favourite of each kind of tile, then others.
    Best(usize),
}

/// The options of `bench`.
#[derive(clap::Args, Clone, Debug, Default)]
#[command(next_help_heading = "Measuring")]
pub(crate) struct Options {
    /// Products to measure, rows x columns x depth on a rank, such as 4096x4096x4096,8192x8192x8192
    #[arg(long = "shape", value_name = "MxNxK", value_delimiter = ',', value_parser = suite::size)]
    pub shapes: Vec<[u32; 3]>,
    /// Products by name: all, squares, ragged, fp8, or llama70b, llama405b, gpt3 with -tp2, -tp4 or -tp8
    #[arg(long = "suite", value_name = "NAME", value_delimiter = ',')]
    pub suites: Vec<String>,
    /// The value of `--rows`: rows of a suite's products instead of 512 to 16384.
    #[arg(skip)]
    pub rows: Vec<u32>,
    /// Samples of each candidate
    #[arg(long, value_name = "S", default_value = "30", value_parser = samples)]
    pub samples: usize,
    /// Warm-up before the samples, until the clocks have settled
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = seconds)]
    pub warm: f64,
    /// Average seconds for each product, with its operands and checks: less warm-up and fewer samples, but at least ten
    #[arg(long, value_name = "SECONDS", value_parser = seconds, conflicts_with_all = ["sustained", "sweep"])]
    pub seconds_a_product: Option<f64>,
    /// Also run each candidate alone, back to back, for this long
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub sustained: Option<f64>,
    /// Variants to measure: all, or N: the model's favourite of each kind of tile, then others and other tile orders
    #[arg(long, value_name = "all|N", value_parser = many)]
    pub variants: Option<Many>,
    /// Candidates of a family to measure, with the model's favourites of each (--variants, otherwise 2): all, or their names
    #[arg(long, value_name = "all|NAME", value_delimiter = ',')]
    pub candidates: Vec<String>,
    /// Measure what an op would that may take its time (--variants 32), and record the winners, for later runs
    #[arg(long)]
    pub sweep: bool,
    /// File for the winners, instead of the user's cache
    #[arg(long, value_name = "FILE")]
    pub tuned: Option<PathBuf>,
    /// Also measure NCCL and cuBLASLt one after the other; needs a GPU for every rank, and NCCL_NVLS_ENABLE=0
    #[arg(long)]
    pub nccl: bool,
    /// Also write the JSON object to a file
    #[arg(long, value_name = "FILE")]
    pub save: Option<PathBuf>,
    /// Write a line for each product, and the means, as Markdown tables
    #[arg(long, value_name = "FILE")]
    pub markdown: Option<PathBuf>,
    /// Choices given several times: each value is measured
    #[arg(skip)]
    pub open: BTreeMap<String, Vec<Setting>>,
}

impl Options {
    /// Seconds that each candidate runs back to back. A sweep picks winners by these times and by interleaved samples.
    pub(crate) fn seconds_in_a_row(&self) -> Option<f64> {
        const SWEEP: f64 = 0.5;
        self.sustained.or(self.sweep.then_some(SWEEP))
    }

    /// Keeps choices that are given several times, and returns those given once.
    pub(crate) fn take_open(&mut self, said: Vec<(String, Setting)>) -> Vec<(String, Setting)> {
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
        _ => Err("expected a whole number from 1 to 10000".into()),
    }
}

fn seconds(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(seconds) if seconds > 0.0 && seconds <= 600.0 => Ok(seconds),
        _ => Err("expected a number of seconds, up to 600".into()),
    }
}

/// `all`, or a number.
fn many(text: &str) -> Result<Many, String> {
    match (text, text.parse()) {
        ("all", _) => Ok(Many::All),
        (_, Ok(count)) if (1..=1000).contains(&count) => Ok(Many::Best(count)),
        _ => Err("expected `all`, or how many of the model's favourites".into()),
    }
}
