//! What a command line says about measuring.

use crate::suite;
use counterflow_codegen::program::Setting;
use std::collections::BTreeMap;
use std::path::PathBuf;

/// How many variants take part.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Many {
    /// Every legal one.
    All,
    /// So many of the model's favourites for each shape, and the first of them in all orders: see `bench::variants`.
    Best(usize),
}

/// What a command line says about measuring.
#[derive(clap::Args, Clone, Debug, Default)]
#[command(next_help_heading = "Measuring")]
pub(crate) struct Options {
    /// Products to measure, rows x columns x depth on a rank, such as 4096x4096x4096,8192x8192x8192
    #[arg(long = "shape", value_name = "MxNxK", value_delimiter = ',', value_parser = suite::size)]
    pub shapes: Vec<[u32; 3]>,
    /// Products by name: all, squares, ragged, or llama70b, llama405b, gpt3 with -tp2, -tp4 or -tp8
    #[arg(long = "suite", value_name = "NAME", value_delimiter = ',')]
    pub suites: Vec<String>,
    /// What `--rows` gives: rows of a suite's products instead of 512 to 16384.
    #[arg(skip)]
    pub rows: Vec<u32>,
    /// Samples of each contender
    #[arg(long, value_name = "S", default_value = "30", value_parser = samples)]
    pub samples: usize,
    /// Turns before the samples, until the clocks have settled
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = seconds)]
    pub warm: f64,
    /// Seconds for each product on the average, its operands and checks included: fewer turns and samples, but ten
    #[arg(long, value_name = "SECONDS", value_parser = seconds, conflicts_with_all = ["sustained", "sweep"])]
    pub seconds_a_product: Option<f64>,
    /// Besides, each contender alone back to back for so long
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub sustained: Option<f64>,
    /// Which of a schedule's variants: all, or how many of those that the model ranks best, the first in all orders
    #[arg(long, value_name = "all|N", value_parser = many)]
    pub variants: Option<Many>,
    /// Measure the model's favourites and write down which won, for later runs to choose
    #[arg(long)]
    pub sweep: bool,
    /// Where to write winners, instead of the user's cache
    #[arg(long, value_name = "FILE")]
    pub tuned: Option<PathBuf>,
    /// NCCL and cuBLASLt one after the other, too; NCCL_NVLS_ENABLE=0 must be set
    #[arg(long)]
    pub nccl: bool,
    /// Write the JSON object to a file, too
    #[arg(long, value_name = "FILE")]
    pub save: Option<PathBuf>,
    /// Write a line for each product, and what they amount to, as Markdown tables
    #[arg(long, value_name = "FILE")]
    pub markdown: Option<PathBuf>,
    /// Choices given several times: each takes part
    #[arg(skip)]
    pub open: BTreeMap<String, Vec<Setting>>,
}

impl Options {
    /// Seconds that each contender runs back to back. A sweep's winners are found so, and in turns.
    pub(crate) fn seconds_in_a_row(&self) -> Option<f64> {
        const SWEEP: f64 = 0.5;
        self.sustained.or(self.sweep.then_some(SWEEP))
    }

    /// Keeps what is said more than once of a choice, and gives back what is said once.
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
        _ => Err("it is a whole number from 1 to 10000".into()),
    }
}

fn seconds(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(seconds) if seconds > 0.0 && seconds <= 600.0 => Ok(seconds),
        _ => Err("it is a number of seconds, up to 600".into()),
    }
}

/// `all`, or how many.
fn many(text: &str) -> Result<Many, String> {
    match (text, text.parse()) {
        ("all", _) => Ok(Many::All),
        (_, Ok(count)) if (1..=1000).contains(&count) => Ok(Many::Best(count)),
        _ => Err("it is `all`, or how many of the model's favourites".into()),
    }
}
