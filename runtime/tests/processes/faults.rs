//! The table of faults: what every rank says of each, and after how long.

use super::children::{self, Rank};
use super::{LAST, READY, WORLD, exit, launched, made, ready, sleep};
use counterflow::prelude::bf16;
use counterflow::rendezvous::{Job, Rendezvous, Secret, Tcp};
use counterflow::schedules::{AgGemmOp, GemmRsOp};
use counterflow::{Communicator, Error};
use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, kill_process, setrlimit};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::time::{Duration, Instant};

/// The port at which rank 0 listens, where a fault is about that.
const PORT: &str = "COUNTERFLOW_TEST_PORT";
/// The time limit of faults that nothing else ends, in seconds.
const SHORT: u32 = 3;
/// The time limit of those that end earlier.
const LONG: u32 = 110;

/// What a rank says that has launched in a new communicator.
const REBUILT: &str = "rank is in a new communicator";

/// What happens to rank 3 from outside.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Act {
    Nothing,
    Kill,
    Stop,
}

/// A fault, and what rank 3 and the others say of it.
struct Fault {
    name: &'static str,
    part: &'static str,
    act: Act,
    limit: u32,
    /// None where it can say nothing.
    last: Option<&'static str>,
    others: &'static str,
}

const fn fault(
    name: &'static str,
    part: &'static str,
    (act, limit): (Act, u32),
    last: Option<&'static str>,
    others: &'static str,
) -> Fault {
    Fault {
        name,
        part,
        act,
        limit,
        last,
        others,
    }
}

/// What is here is somewhere in what a rank says.
const FAULTS: [Fault; 18] = {
    use Act::{Kill, Nothing, Stop};
    const ENDED: &str = "aborted: rank 3 ended early: its process";
    const CALLS: &str = "mismatch: the ranks make different calls: rank 0";
    const LAUNCH: &str = "mismatch: the ranks differ in launch 0: rank";
    const LATE: &str = "rank 3 did not join within 3s";
    const FULL: &str = "too_large: rank 3: map 8589934592 bytes that processes share";
    [
        fault(
            "a signal is withheld",
            "kernel",
            (Nothing, SHORT),
            None,
            "stalled: rank",
        ),
        fault(
            "killed, peers' kernels wait",
            "kernel",
            (Kill, LONG),
            None,
            ENDED,
        ),
        fault(
            "killed, peers at a barrier",
            "barrier",
            (Kill, LONG),
            None,
            ENDED,
        ),
        fault(
            "killed, peers allocate",
            "allocates",
            (Kill, LONG),
            None,
            ENDED,
        ),
        fault("killed, peers idle", "idle", (Kill, LONG), None, ENDED),
        fault(
            "stopped beyond the limit",
            "kernel",
            (Stop, SHORT),
            None,
            "stalled: rank",
        ),
        fault(
            "ends before its launches",
            "ends",
            (Nothing, LONG),
            None,
            ENDED,
        ),
        fault("panics", "panics", (Nothing, LONG), None, "aborted: rank 3"),
        fault(
            "drops its communicator",
            "drops",
            (Nothing, LONG),
            Some("fine"),
            "aborted: rank 3 ended early",
        ),
        fault("never started", "absent", (Nothing, SHORT), None, LATE),
        fault("another M", "rows", (Nothing, LONG), Some(LAUNCH), LAUNCH),
        fault(
            "another order",
            "order",
            (Nothing, LONG),
            Some(LAUNCH),
            LAUNCH,
        ),
        fault(
            "another schedule",
            "schedule",
            (Nothing, LONG),
            Some(CALLS),
            CALLS,
        ),
        fault("another size", "size", (Nothing, LONG), Some(CALLS), CALLS),
        fault(
            "a wrong secret",
            "secret",
            (Nothing, SHORT),
            Some("it does not know this job's secret"),
            LATE,
        ),
        fault(
            "another job on the port",
            "port",
            (Nothing, SHORT),
            Some("rank 3 did not reach rank 0 within 3s"),
            "rendezvous: rank",
        ),
        fault(
            "no file descriptor left",
            "descriptors",
            (Nothing, SHORT),
            Some("Too many open files"),
            LATE,
        ),
        fault(
            "no addresses left",
            "addresses",
            (Nothing, LONG),
            Some(FULL),
            FULL,
        ),
    ]
};

/// What a rank does for one of them, if it is one of these.
pub fn part(part: &str) -> Option<Result<(), Error>> {
    let last = || Job::from_env().map(|job| job.is_some_and(|job| job.rank == 3));
    Some(match part {
        "absent" => last().and_then(|last| match last {
            true => std::process::exit(0),
            false => Communicator::emulated_from_env().map(drop),
        }),
        "secret" | "port" => by_tcp(part == "secret"),
        "descriptors" | "addresses" => last().and_then(|last| {
            let (resource, most) = match part {
                "descriptors" => (Resource::Nofile, 3),
                _ => (Resource::As, 6 << 30),
            };
            if last {
                let before = getrlimit(resource);
                let few = Rlimit {
                    current: Some(most),
                    ..before
                };
                setrlimit(resource, few).expect("set");
            }
            Communicator::emulated_from_env().map(drop)
        }),
        "rows" | "order" | "schedule" | "size" => {
            let told = Communicator::emulated_from_env().and_then(|rank| differs(&rank, part));
            let told = told.expect_err("rank 3 differs");
            println!("\n{LAST}{}: {told}", told.kind());
            // Nothing of it is left: the same processes make another one.
            let again = Communicator::emulated_from_env().and_then(|rank| launched(&rank, || {}));
            again.map(|()| println!("\n{REBUILT}"))
        }
        "allocates" | "idle" | "ends" | "panics" | "drops" => {
            Communicator::emulated_from_env().and_then(|rank| ends(rank, part))
        }
        _ => return None,
    })
}

fn by_tcp(other_secret: bool) -> Result<(), Error> {
    let job = Job::from_env()?.expect("as torchrun says");
    let port = std::env::var(PORT).expect("a port");
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port.parse().expect("a number")));
    let word: &[u8] = match other_secret && job.rank == 3 {
        true => b"another job's secret",
        false => b"this job's secret",
    };
    let limit = Duration::from_secs(SHORT.into());
    ready();
    let ranks = Tcp::join(job.rank, job.world, address, &Secret::of(word), limit)?;
    ranks.barrier(limit)
}

/// Rank 3 does something else than the others.
fn differs(rank: &Communicator, part: &str) -> Result<(), Error> {
    let other = rank.rank() == 3;
    if part == "size" {
        ready();
        return rank.allocate::<u8>("x", [1 + usize::from(other)]).map(drop);
    }
    let (op, x, w, mut y) = made(rank)?;
    if part == "schedule" {
        ready();
        return match other {
            true => rank
                .op_of::<GemmRsOp>()
                .up_to(256, 64, 64)
                .build()
                .map(drop),
            false => rank
                .op_of::<AgGemmOp>()
                .up_to(256, 64, 64)
                .build()
                .map(drop),
        };
    }
    let second = rank.op_of::<AgGemmOp>().up_to(256, 64, 64).build()?;
    rank.synchronize().and_then(|()| rank.barrier())?;
    ready();
    let (op, rows) = match (part, other) {
        ("rows", true) => (&op, 100),
        ("order", true) => (&second, 256),
        _ => (&op, 256),
    };
    let launch = op.on(rank).x(&x).w(&w).y(&mut y).rows(rows);
    launch.launch()?.wait()
}

/// Rank 3 ends, or is ended.
fn ends(rank: Communicator, part: &str) -> Result<(), Error> {
    let last = rank.rank() == 3;
    rank.reserve(4 << 20)?;
    rank.barrier()?;
    match part {
        "allocates" | "idle" if last => sleep(),
        "allocates" => {
            ready();
            rank.allocate::<bf16>("x", [64]).map(drop)
        }
        "idle" => {
            ready();
            loop {
                std::thread::sleep(Duration::from_millis(20));
                rank.synchronize()?;
            }
        }
        "ends" => exit(rank),
        _ => {
            ready();
            match (last, part) {
                (true, "panics") => panic!("as a test wants"),
                (true, _) => Ok(()),
                (false, _) => rank.barrier(),
            }
        }
    }
}

/// Starts it, does what happens from outside, and says what each rank said, and when after that.
fn told(fault: &Fault) -> Vec<(Option<String>, Duration)> {
    // Another job listens there, or nobody does any more.
    let taken = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
    let port = taken.local_addr().expect("bound").port().to_string();
    let _taken = (fault.part == "port").then_some(taken);
    let seconds = fault.limit.to_string();
    let set = [
        ("CUDA_VISIBLE_DEVICES", ""),
        ("UB_TIMEOUT", &seconds),
        (PORT, &port),
    ];
    let begun = Instant::now();
    let mut ranks = children::started("part", fault.part, WORLD, &set);
    let ready = |rank: &Rank| rank.next(READY).0;
    let mut since = match fault.part {
        "absent" | "descriptors" | "addresses" => begun,
        // Rank 2 launches half a second after it.
        "ends" => ready(&ranks[3]) + Duration::from_millis(500),
        _ => ranks.iter().map(ready).max().expect("ranks"),
    };
    if fault.act != Act::Nothing {
        since = Instant::now();
    }
    match fault.act {
        Act::Nothing => {}
        Act::Kill => ranks[3].process.kill().expect("killed"),
        Act::Stop => {
            kill_process(Pid::from_child(&ranks[3].process), Signal::STOP).expect("stopped");
        }
    }
    let said = ranks.iter().enumerate().map(|(rank, process)| {
        if rank == 3 && fault.last.is_none() {
            return (None, Duration::ZERO);
        }
        let (at, told) = process.next(LAST);
        (Some(told), at.saturating_duration_since(since))
    });
    let said = said.collect();
    if ["rows", "order", "schedule", "size"].contains(&fault.part) {
        ranks.iter().for_each(|rank| drop(rank.next(REBUILT)));
    }
    said
}

#[test]
fn each_fault_is_told_to_every_rank_in_time() {
    println!("| fault of rank 3 | what each rank says | seconds |\n|---|---|---|");
    for fault in &FAULTS {
        let told = told(fault);
        for (rank, (told, took)) in told.iter().enumerate() {
            let Some(told) = told else { continue };
            let name = fault.name;
            println!(
                "| {name} | rank {rank}: {told} | {:.1} |",
                took.as_secs_f64()
            );
            let wanted = if rank == 3 {
                fault.last.unwrap_or_default()
            } else {
                fault.others
            };
            // Rank 0 of a job whose port is taken says so itself.
            let own = fault.part == "port" && rank == 0 && told.contains("rank 0 cannot listen at");
            assert!(own || told.contains(wanted), "{name}, rank {rank}: {told}");
            // A closed socket is seen at once; else the limit ends it, and who waits for the record of another.
            let most = match fault.limit {
                SHORT => Duration::from_secs(u64::from(SHORT) + 3),
                _ => Duration::from_secs(1),
            };
            // Processes take their time to start.
            let starts = fault.part == "addresses";
            assert!(starts || *took < most, "{name}, rank {rank}: {took:?}");
        }
    }
}
