//! The whole library with 1, 2, 8 and 32 hardware queues, at a rank a GPU and with several ranks on one; what cannot be
//! is refused at once, with the variable's name. The driver reads the variable when it starts, so every setting has a
//! process of its own, and a time: a hang fails, and ends.

use crate::case::{self, Case, Fill};
use crate::gpus::{here, loopback, turn, world};
use crate::right::KINDS;
use crate::{SCHEDULES, fine};
use counterflow::jit::Compiler;
use counterflow::{Shape, gpus};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

pub const QUEUES: &str = "CUDA_DEVICE_MAX_CONNECTIONS";
const BLOCKING: &str = "CUDA_LAUNCH_BLOCKING";
/// How many ranks share a GPU; 0: each has its own.
const SHARING: &str = "COUNTERFLOW_TEST_SHARING";
/// The schedule, if not all.
const ONLY: &str = "COUNTERFLOW_TEST_SCHEDULE";
/// The longest that a process may take; a wait in it gives up long before.
const MOST: Duration = Duration::from_secs(60);

/// Runs a test in a process of its own, with some variables set and the others unset.
pub fn apart(test: &str, set: &[(&str, &str)]) {
    let binary = std::env::current_exe().expect("this binary");
    let mut command = Command::new(binary);
    command
        .args(["--ignored", "--exact", test, "--nocapture"])
        .args(["--test-threads", "1"])
        .env_remove(QUEUES)
        .env_remove(BLOCKING)
        .env_remove(ONLY)
        .env("UB_TIMEOUT", "5")
        .envs(set.iter().copied())
        .stdin(Stdio::null());
    let mut child: Child = command.spawn().expect("a process");
    let start = Instant::now();
    loop {
        if let Some(ended) = child.try_wait().expect("a child") {
            assert!(ended.success(), "{test} with {set:?}: {ended}");
            return;
        }
        if start.elapsed() > MOST {
            let _ = child.kill();
            let _ = child.wait();
            panic!("{test} with {set:?} hangs");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Every schedule in the setting of this process: right, or refused where a rank's streams have no queue each.
#[test]
#[ignore = "a child process of the other tests of this file, which set its variables"]
fn in_this_setting() {
    let Some(gpus) = here() else { return };
    let sharing: u32 = std::env::var(SHARING).map_or(0, |ranks| ranks.parse().expect("a number"));
    let only = std::env::var(ONLY).unwrap_or_default();
    let queues = std::env::var(QUEUES).expect("ours, where nobody chose");
    let queues: u32 = queues.parse().expect("a number");
    let blocking = std::env::var_os(BLOCKING).is_some();
    let ranks_here = || match sharing {
        0 => world(gpus),
        ranks => loopback(ranks),
    };
    let Some(mut world) = ranks_here() else {
        return;
    };
    let ranks = world.ranks.len() as u32;
    let compiler = fine(Compiler::find());
    // Smaller where there are more settings; the first is where one queue hung.
    let size = if sharing == 0 { 512 } else { 128 };
    let shapes = [1111, 3, 640].map(|m| Shape::new(m, size, size).up_to(1111));
    let (mut right, mut refused) = (0, 0);
    for schedule in SCHEDULES {
        let program = schedule();
        if !only.is_empty() && program.name != only {
            continue;
        }
        let variant = case::variant(ranks, KINDS[1]);
        let case = Case::new(&program, &variant, &shapes, world.sharing);
        let waits = ranks > 1 && !case.kernel.counters.is_empty();
        let streams = case.pipeline.streams();
        let taken = match (world.sharing, streams) {
            (1, _) => streams,
            (sharing, 1) => sharing,
            (sharing, _) => 2 * sharing * streams,
        };
        let expected = match waits {
            true if blocking => Some(BLOCKING),
            true if world.sharing > 1 && taken > queues => Some(QUEUES),
            true | false => None,
        };
        let outcome = case.attempt(&world.ranks, &compiler, Fill::Uniform(10), 200);
        match (outcome, expected) {
            (Ok(outcome), None) => {
                for launch in 0..shapes.len() {
                    case.compare(&outcome, launch, Fill::Uniform(10));
                }
                // Launches that the host enqueues ahead of the GPU, one rank further than another: `run` times groups.
                let ahead = gpus::run(
                    &world.ranks,
                    &compiler,
                    &case.pipeline,
                    &case.series,
                    case.plans.iter().collect(),
                    10,
                );
                right += shapes.len() + fine(ahead).times.len();
            }
            (Err(error), Some(variable)) => {
                assert_eq!(error.kind(), "environment", "{error}");
                let told = error.to_string();
                assert!(told.starts_with(variable), "{told}");
                refused += 1;
                // An error of a rank's part ends the communicator.
                drop(world);
                let Some(next) = ranks_here() else { return };
                world = next;
            }
            (Ok(_), Some(variable)) => panic!("{} runs in spite of {variable}", program.name),
            (Err(error), None) => panic!("{}: {error}", program.name),
        }
    }
    println!(
        "  queues {queues:2}, {:24} {right:4} launches right, {refused} schedules refused{}",
        world.told(),
        if blocking { ", blocking" } else { "" }
    );
}

fn settings(sharing: &str, queues: &[Option<&str>]) {
    if here().is_none() {
        return;
    }
    let _turn = turn();
    for queues in queues {
        let mut set = vec![(SHARING, sharing)];
        set.extend(queues.map(|queues| (QUEUES, queues)));
        apart("queues::in_this_setting", &set);
    }
}

const ALL: [Option<&str>; 5] = [Some("1"), Some("2"), Some("8"), Some("32"), None];

#[test]
fn a_rank_a_gpu_is_right_with_any_number_of_queues() {
    settings("0", &ALL);
}

#[test]
fn two_ranks_on_a_gpu_are_right_with_a_queue_for_each_stream_or_refused() {
    settings("2", &ALL);
}

#[test]
fn five_ranks_on_a_gpu_are_right_with_a_queue_for_each_stream_or_refused() {
    settings("5", &[Some("1"), Some("8"), None]);
}

#[test]
fn eight_ranks_on_a_gpu_are_right_with_a_queue_for_each_stream_or_refused() {
    settings("8", &[Some("1"), Some("8"), None]);
}

#[test]
fn twelve_ranks_on_a_gpu_gather_where_nobody_chose() {
    if here().is_none() {
        return;
    }
    let _turn = turn();
    for queues in [None, Some("8")] {
        let mut set = vec![(SHARING, "12"), (ONLY, "ag_gemm")];
        set.extend(queues.map(|queues| (QUEUES, queues)));
        apart("queues::in_this_setting", &set);
    }
}

#[test]
fn launches_that_block_are_refused() {
    if here().is_none() {
        return;
    }
    let _turn = turn();
    apart(
        "queues::in_this_setting",
        &[(SHARING, "2"), (BLOCKING, "1")],
    );
}

/// With one queue, what ends the wait must not stand behind it.
#[test]
fn a_wait_that_holds_up_its_whole_gpu_is_ended_and_told() {
    let Some(gpus) = here() else { return };
    let _turn = turn();
    let test = "copies::copies_that_wait_for_a_rank_that_never_launches_name_it";
    // Two ranks on one GPU are refused with fewer.
    let queues: &[&str] = if gpus > 1 { &["1", "2", "8"] } else { &["8"] };
    for queues in queues {
        apart(test, &[(QUEUES, queues), ("UB_TIMEOUT", "1")]);
    }
}
