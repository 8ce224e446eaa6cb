//! `counterflow-run -n 4 -- program arguments`: one process for each rank, on this host.
//!
//! A rank gets the variables that torchrun sets, so a program that runs under torchrun runs under this. The job ends as
//! one: when a rank fails, or somebody interrupts the launcher, no rank stays behind, nor what a rank started in its
//! process group. If the launcher itself is killed, the system kills the ranks, and what a rank started may stay.

#![forbid(unsafe_code)]

mod ended;
mod ranks;
mod say;

use clap::Parser;
use ended::Ended;
use ranks::{Ranks, become_rank};
use rustix::process::Signal;
use say::say;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::ffi::OsString;
use std::process::ExitCode;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Starts a program once for each rank on this host, with torchrun's variables (RANK, WORLD_SIZE, LOCAL_RANK,
/// LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT). Exits with the code of the rank that failed first, or with 128 and the
/// number of the signal that ended it.
#[derive(Parser)]
#[command(name = "counterflow-run", version)]
struct Command {
    /// Number of ranks.
    #[arg(short = 'n', long, aliases = ["nproc-per-node", "nproc_per_node"], value_parser = clap::value_parser!(u32).range(1..=128))]
    ranks: u32,
    /// Seconds that the others have to end by themselves after a rank failed. They need it to say why.
    #[arg(long, default_value_t = 10)]
    grace: u64,
    /// The port that MASTER_PORT names, for programs that listen there. Ranks of counterflow on one host need none.
    #[arg(long, default_value_t = 29500)]
    port: u16,
    /// torchrun's number of hosts, which is 1 here.
    #[arg(long, hide = true, value_parser = one_host)]
    nnodes: Option<u32>,
    /// Set by the launcher for itself: become a rank of the launcher that has this process number.
    #[arg(long, hide = true)]
    rank_of: Option<u32>,
    /// The program and its arguments. Options of the launcher stand before it.
    #[arg(required = true, trailing_var_arg = true)]
    program: Vec<OsString>,
}

fn one_host(number: &str) -> Result<u32, String> {
    match number {
        "1" => Ok(1),
        _ => Err(
            "this starts the ranks of one host; torchrun, mpirun and srun start those of several"
                .into(),
        ),
    }
}

/// Time between two looks at the ranks.
const STEP: Duration = Duration::from_millis(10);
/// Time that a rank may take from SIGTERM to its end.
const AFTER_TERM: Duration = Duration::from_secs(5);

fn main() -> ExitCode {
    let command = Command::parse();
    if let Some(launcher) = command.rank_of {
        return become_rank(launcher, &command.program);
    }
    match run(&command) {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            say(&error);
            ExitCode::FAILURE
        }
    }
}

/// Signal that was sent to the ranks that still run.
enum Asked {
    Nothing,
    /// By themselves until then.
    Wait(Instant),
    /// SIGTERM; SIGKILL then.
    Term(Instant),
}

fn run(command: &Command) -> std::io::Result<u8> {
    // Before the first rank: an interrupt from now on ends them all.
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP])?;
    let mut ranks = Ranks::start(command.ranks, command.port, &command.program)?;
    let mut asked = Asked::Nothing;
    let mut interrupted = None;
    while ranks.look()? {
        if let Some(signal) = signals.pending().last() {
            // Who interrupts twice does not want to wait.
            if interrupted.replace(signal).is_some() {
                ranks.signal(Signal::KILL);
            } else {
                ranks.signal(Signal::TERM);
                asked = Asked::Term(Instant::now() + AFTER_TERM);
            }
        }
        asked = match asked {
            Asked::Nothing if ranks.first_failure().is_some() => {
                Asked::Wait(Instant::now() + Duration::from_secs(command.grace))
            }
            Asked::Wait(until) if Instant::now() >= until => {
                ranks.signal(Signal::TERM);
                Asked::Term(Instant::now() + AFTER_TERM)
            }
            Asked::Term(until) if Instant::now() >= until => {
                ranks.signal(Signal::KILL);
                Asked::Term(until)
            }
            asked => asked,
        };
        sleep(STEP);
    }
    // What ranks started and left behind.
    ranks.signal(Signal::KILL);
    let first = ranks.first_failure();
    for ended in ranks.failures() {
        say(&ended);
    }
    Ok(match (interrupted, first) {
        (Some(signal), _) => 128 + signal as u8,
        (None, first) => first.map_or(0, Ended::code),
    })
}
