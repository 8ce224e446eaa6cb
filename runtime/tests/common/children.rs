//! Ranks that are processes: a test starts its own program once for every rank, with torchrun's variables, and reads what
//! each of them says.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

/// The variable that says what a rank does.
const PART: &str = "COUNTERFLOW_TEST_PART";
/// How long a rank may say nothing that is waited for.
const MOST: Duration = Duration::from_secs(240);

/// What this process, which another test started, is to do.
pub fn part() -> String {
    std::env::var(PART).expect("started by another test")
}

/// A rank's process, and what it says, with when.
pub struct Rank {
    pub process: Child,
    lines: Receiver<(Instant, String)>,
}

impl Drop for Rank {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Rank {
    /// The next line with that beginning.
    pub fn next(&self, start: &str) -> (Instant, String) {
        let mut said = Vec::new();
        loop {
            let Ok((at, line)) = self.lines.recv_timeout(MOST) else {
                panic!("no line with `{start}`, but {said:#?}");
            };
            if let Some(rest) = line.strip_prefix(start) {
                return (at, rest.to_owned());
            }
            said.push(line);
        }
    }
}

/// Starts that test, which is ignored otherwise, in a process for each rank.
pub fn started(test: &str, part: &str, world: usize, set: &[(&str, &str)]) -> Vec<Rank> {
    // A test may start the same part while another one runs it.
    static JOBS: AtomicUsize = AtomicUsize::new(0);
    let job = JOBS.fetch_add(1, Ordering::Relaxed);
    let run = format!("{part} {job} of {}", std::process::id());
    let rank = |rank: usize| {
        let mut process = Command::new(std::env::current_exe().expect("this program"))
            .args(["--exact", test, "--ignored", "--nocapture"])
            .env(PART, part)
            .env("RANK", rank.to_string())
            .env("LOCAL_RANK", rank.to_string())
            .env("WORLD_SIZE", world.to_string())
            .env("LOCAL_WORLD_SIZE", world.to_string())
            .env("MASTER_ADDR", "127.0.0.1")
            .env("MASTER_PORT", "29500")
            .env("TORCHELASTIC_RUN_ID", &run)
            .envs(set.iter().copied())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .expect("started");
        let (say, lines) = channel();
        let said = BufReader::new(process.stdout.take().expect("piped"));
        std::thread::spawn(move || {
            for line in said.lines().map_while(Result::ok) {
                if say.send((Instant::now(), line)).is_err() {
                    break;
                }
            }
        });
        Rank { process, lines }
    };
    (0..world).map(rank).collect()
}
