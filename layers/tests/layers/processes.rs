//! The case matrix with a process for each rank: emulated, or with `REQUIRE_GPU=n` on n GPUs. `counterflow-run -n 2 -- THIS --test-threads=1
//! peers:: products::` is the same by hand. All processes come to the same tests in the same order, and each runs its own rank.

use super::{alone, gpus};
use crate::wide::wide;
use counterflow::rendezvous::Job;
use counterflow::{Communicator, Error};
use std::net::{Ipv4Addr, TcpListener};
use std::process::{Command, Stdio};
use std::sync::{Arc, OnceLock};

/// This process's rank of the job that a launcher started it in, if one did.
pub fn job() -> Option<&'static Communicator> {
    static JOB: OnceLock<Option<Communicator>> = OnceLock::new();
    let join = || {
        Job::from_env().expect("a launcher's variables")?;
        let joined = match gpus() {
            Some(_) => Communicator::from_env(),
            None => Communicator::emulated_from_env(),
        };
        Some(joined.expect("all processes come"))
    };
    JOB.get_or_init(join).as_ref()
}

/// Runs it on this process's rank, in a group of its own.
pub fn on_own<T>(
    job: &Communicator,
    run: impl FnOnce(&Arc<Communicator>) -> Result<T, Error>,
) -> Result<T, Error> {
    let _alone = alone();
    let group = Arc::new(job.split(0, job.rank())?);
    let found = run(&group).inspect_err(|error| job.abort(error))?;
    drop(group);
    job.barrier()?;
    Ok(found)
}

#[test]
fn the_matrix_has_the_same_numbers_with_a_process_for_each_rank() {
    if job().is_some() {
        return;
    }
    const WORLD: u32 = 2;
    let _alone = gpus().map(|_| alone());
    let run = format!("layers' matrix of {}", std::process::id());
    // One that is free now, of those that the system gives.
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
    let port = listener.local_addr().expect("its address").port();
    drop(listener);
    // Each process chooses its ops by itself, which takes most of the time: a sample, without `WIDE=1`.
    let (tests, least) = match wide() {
        true => (&["peers::", "products::"][..], 5),
        false => (
            &["peers::layers_have", "products::split", "products::bulk"][..],
            3,
        ),
    };
    let start = |rank: u32| {
        let mut command = Command::new(std::env::current_exe().expect("this program"));
        command.arg("--test-threads=1").args(tests);
        let numbers = [("RANK", rank), ("LOCAL_RANK", rank)];
        let worlds = [("WORLD_SIZE", WORLD), ("LOCAL_WORLD_SIZE", WORLD)];
        for (name, number) in numbers.into_iter().chain(worlds) {
            command.env(name, number.to_string());
        }
        command.env("MASTER_ADDR", "127.0.0.1");
        command.env("MASTER_PORT", port.to_string());
        command.env("TORCHELASTIC_RUN_ID", &run);
        let command = command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().expect("started")
    };
    let ranks: Vec<_> = (0..WORLD).map(start).collect();
    for rank in ranks {
        let done = rank.wait_with_output().expect("ended");
        let said =
            [done.stdout, done.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
        assert!(done.status.success(), "{}\n{}", said[0], said[1]);
        let passed = said[0]
            .lines()
            .find(|line| line.starts_with("test result: ok. "));
        let passed = passed.and_then(|line| line.split(' ').nth(3)?.parse::<usize>().ok());
        assert!(passed.is_some_and(|passed| passed >= least), "{}", said[0]);
    }
}
