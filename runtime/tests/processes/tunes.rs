//! Two jobs on one machine that measure candidates at once, and keep what won in one table.

use super::{LAST, children, gather_of_choices};
use counterflow::tuned::{Key, Tuned, Winner};
use counterflow::tuning::Tuning;
use counterflow::{Communicator, Error};
use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt;

const JOB: &str = "COUNTERFLOW_TEST_JOB";
const WORLD: usize = 2;
/// Rows of a job's ops: those of the other one lie between them.
const ROWS: [u32; 3] = [128, 256, 512];

/// What a process does for the test below, if it is that.
pub fn done(part: &str) -> Option<Result<(), Error>> {
    (part == "tunes").then(|| tunes(&Communicator::emulated_from_env()?))
}

/// Measures candidates for some ops, and keeps the winners, as ops on GPUs do: an emulated GPU's time is worth no row.
fn tunes(rank: &Communicator) -> Result<(), Error> {
    let job: u32 = std::env::var(JOB).expect("set").parse().expect("a number");
    let program = gather_of_choices(false);
    rank.reserve(16 << 20)?;
    for m in ROWS.map(|rows| rows + 32 * job) {
        let builder = rank.op(&program).tuning(Tuning::Quick);
        let op = builder.up_to(m as usize, 256, 64).build()?;
        assert_eq!(op.unmeasured(m as usize), None);
        if rank.rank() > 0 {
            continue;
        }
        let choices = op.variant().choices.iter();
        let winner = Winner {
            key: Key::new("an emulated GPU", &program, op.variant()),
            m,
            n: 256,
            k: 64,
            microseconds: 1.0,
            p10: 1.0,
            p90: 1.0,
            cublaslt: 0.0,
            choices: choices
                .map(|(name, setting)| (name.clone(), setting.to_string()))
                .collect(),
        };
        Tuned::keep(&Tuned::place().expect("a cache"), [winner])?;
    }
    rank.barrier()
}

#[test]
fn two_jobs_that_tune_at_once_end_and_lose_no_winner() {
    let dir = std::env::temp_dir().join(format!("counterflow-two-jobs-{}", std::process::id()));
    std::fs::create_dir_all(&dir).expect("made");
    std::fs::set_permissions(&dir, PermissionsExt::from_mode(0o700)).expect("set");
    let cache = dir.to_str().expect("a path");
    let started = ["0", "1"].map(|job| {
        let set = [
            ("CUDA_VISIBLE_DEVICES", ""),
            ("UB_TIMEOUT", "60"),
            ("COUNTERFLOW_CACHE", cache),
            (JOB, job),
        ];
        children::started("part", "tunes", WORLD, &set)
    });
    for rank in started.iter().flatten() {
        assert_eq!(rank.next(LAST).1, "fine");
    }
    let table = Tuned::read(&dir.join("tuned.toml")).expect("a table");
    let rows: BTreeSet<u32> = table.winners().map(|winner| winner.m).collect();
    let all = [0, 1]
        .into_iter()
        .flat_map(|job| ROWS.map(|rows| rows + 32 * job));
    assert_eq!(rows, all.collect());
    std::fs::remove_dir_all(&dir).expect("gone");
}
