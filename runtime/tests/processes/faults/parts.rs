//! What a rank does for one of the faults.

use super::{ONE, PORT, REBUILT, SHORT};
use crate::{exit, launched, made, ready, says, sleep};
use counterflow::prelude::bf16;
use counterflow::rendezvous::{Callbacks, Job, Rendezvous, Secret, Tcp};
use counterflow::schedules::{AgGemmOp, GemmRsOp};
use counterflow::{Communicator, Error};
use counterflow_runtime::jit::{Cache, Cached, Compiler, Source, Target};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

/// What a rank does for one of them, if it is one of these.
pub fn done(part: &str) -> Option<Result<(), Error>> {
    let last = || Job::from_env().map(|job| job.is_some_and(|job| job.rank == 3));
    Some(match part {
        "absent" => last().and_then(|last| match last {
            true => std::process::exit(0),
            false => Communicator::emulated_from_env().map(drop),
        }),
        "secret" | "port" | "jobs" => by_tcp(part == "secret"),
        "version" => of_two_versions(),
        "table" => Communicator::emulated_from_env().and_then(|rank| {
            rank.reserve(8 << 20)?;
            ready();
            let op = rank.op_of::<AgGemmOp>().up_to(256, 64, 64);
            // The others ask for no winners.
            let op = if rank.rank() < 3 {
                op.first_options()
            } else {
                op
            };
            op.build().map(drop)
        }),
        "world" => Job::from_env().and_then(|job| {
            let mut job = job.expect("as torchrun says");
            if job.rank == 3 {
                (job.world, job.local_world) = (5, 5);
            }
            ready();
            let limit = Duration::from_secs(60);
            job.rendezvous(limit)?.barrier(limit)
        }),
        "cache" | "sealed" | "compiler" => Communicator::emulated_from_env().and_then(|rank| {
            ready();
            if rank.rank() == 3 {
                compiles()?;
            }
            rank.barrier()
        }),
        "driver" | "gpu" => last().and_then(|last| match last {
            true => Communicator::from_env().map(drop),
            false => Communicator::emulated_from_env().map(drop),
        }),
        "descriptors" | "addresses" => last().and_then(|last| {
            let (resource, most) = match part {
                "descriptors" => (Resource::Nofile, 3),
                _ => (Resource::As, 6 << 30),
            };
            if last {
                few(resource, most);
            }
            Communicator::emulated_from_env().map(drop)
        }),
        "rows" | "order" | "schedule" | "size" => {
            let told = Communicator::emulated_from_env().and_then(|rank| differs(&rank, part));
            let told = told.expect_err("rank 3 differs");
            says(&told);
            // Nothing of it is left: the same processes make another one.
            let again = Communicator::emulated_from_env().and_then(|rank| launched(&rank, || {}));
            again.map(|()| println!("\n{REBUILT}"))
        }
        "refused" => Communicator::emulated_from_env().and_then(|rank| {
            let (op, x, w, mut y) = made(&rank)?;
            ready();
            rank.synchronize().and_then(|()| rank.barrier())?;
            // That ends nothing, until the rank leaves without the launch that the others wait for.
            let launch = op.on(&rank).x(&x).y(&mut y);
            let launch = match rank.rank() {
                3 => launch,
                _ => launch.w(&w),
            };
            launch.launch()?.wait()
        }),
        "fabric" => Communicator::emulated_from_env().and_then(|rank| {
            ready();
            let before = (rank.rank() == 3).then(|| few(Resource::Nofile, 3));
            let told = rank.reserve(4 << 20);
            if let Some(before) = before {
                setrlimit(Resource::Nofile, before).expect("set");
            }
            // It is refused to all, who go on.
            rank.reserve(4 << 20).and_then(|()| rank.barrier())?;
            told
        }),
        "allocates" | "idle" | "ends" | "panics" | "drops" => {
            Communicator::emulated_from_env().and_then(|rank| ends(rank, part))
        }
        _ => return None,
    })
}

/// So few of something from now on, and how many it were.
fn few(resource: Resource, most: u64) -> Rlimit {
    let before = getrlimit(resource);
    let few = Rlimit {
        current: Some(most),
        ..before
    };
    setrlimit(resource, few).expect("set");
    before
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

/// The others get what rank 3 says as another version says it, and it gets what they say in the same way.
fn of_two_versions() -> Result<(), Error> {
    const OURS: &str = concat!("counterflow ", env!("CARGO_PKG_VERSION"), " ");
    const OTHER: &str = "counterflow 0.0.1-other ";
    fn swapped(message: &[u8]) -> Vec<u8> {
        let replaced = |from: &str, to: &str| {
            let mut all = message.windows(from.len());
            let at = all.position(|part| part == from.as_bytes())?;
            let (before, after) = (&message[..at], &message[at + from.len()..]);
            Some([before, to.as_bytes(), after].concat())
        };
        let other = replaced(OURS, OTHER).or_else(|| replaced(OTHER, OURS));
        other.expect("a rank says its version")
    }
    ready();
    let job = Job::from_env()?.expect("as torchrun says");
    let ranks = job.rendezvous(Duration::from_secs(60))?;
    if job.rank < 3 {
        return Communicator::join_emulated(&ranks).map(drop);
    }
    let other = Callbacks::new(job.rank, job.world, move |mine, limit| {
        let all = ranks.all_gather(&swapped(mine), limit);
        let all = all.map_err(|error| error.to_string())?;
        Ok(all.iter().map(|message| swapped(message)).collect())
    })?;
    Communicator::join_emulated(&other).map(drop)
}

/// As building an op does before the ranks meet, on a GPU. The entry in the cache is damaged.
fn compiles() -> Result<(), Error> {
    let source = Source::new("one", ONE);
    let compile = |compiler: Compiler| compiler.compile(&source, Target::Sm90a);
    let found = compile(Compiler::find()?)?;
    assert_eq!(found.cached, Cached::Stored, "compiled anew");
    let anew = compile(Compiler::find()?.with_cache(Cache::off()))?;
    assert!(found.cubin() == anew.cubin(), "the damage is gone");
    Ok(())
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
    // Rank 3 may launch before another one is out of the barrier, which then ends in an error.
    ready();
    rank.synchronize().and_then(|()| rank.barrier())?;
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
    let by_itself = matches!(part, "panics" | "drops");
    if by_itself {
        ready();
    }
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
        "panics" if last => panic!("as a test wants"),
        _ if last => Ok(()),
        _ => rank.barrier(),
    }
}
