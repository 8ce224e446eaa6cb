//! The table of faults: what every rank says of each, and after how long.
//!
//! What no process of the table can show has tests of its own: `jit::cache` damages each byte of an entry and cuts it
//! at each length; `jit::libraries` searches for NVRTC; `rendezvous::lobby` has two jobs of one name and folders that
//! others can enter; `rendezvous::tcp` has strangers who send garbage, half messages or nothing, and worlds of two
//! sizes; `rendezvous::secret` has files that others can read; `cuda::gpu` refuses GPUs without peer access or atomics.
//! A full `/dev/shm` is no fault here: processes share memory that is in no file system.

mod parts;

pub use parts::done;

use super::children::{self, Rank};
use super::{HELP, LAST, READY, WORLD, common};
use crate::wide::wide;
use counterflow::Error;
use counterflow::rendezvous::{Rendezvous, Secret, Tcp};
use counterflow_runtime::jit::{Cache, Source, Target};
use rustix::process::{Pid, Signal, kill_process};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::thread::{JoinHandle, sleep};
use std::time::{Duration, Instant};

/// The port at which rank 0 listens, where a fault is about that.
const PORT: &str = "COUNTERFLOW_TEST_PORT";
/// The time limit of faults that nothing else ends, in seconds.
const SHORT: u32 = 3;
/// How many of them are shown at a time.
const AT_ONCE: usize = 6;
/// The time limit of those that end earlier.
const LONG: u32 = 110;

/// A kernel to compile.
const ONE: &str = "extern \"C\" __global__ void one(float* x) { x[threadIdx.x] = 1; }";

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
const FAULTS: [Fault; 29] = {
    use Act::{Kill, Nothing, Stop};
    const ENDED: &str = "aborted: rank 3 ended early: its process";
    const LEFT: &str = "aborted: rank 3 ended early: its communicator was dropped";
    const REFUSED: &str = "its communicator was dropped (it was refused ag_gemm: ";
    const CALLS: &str = "mismatch: the ranks make different calls: rank 0";
    const LAUNCH: &str = "mismatch: the ranks differ in launch 0: rank";
    const LATE: &str = "rank 3 did not join within 3s";
    const FABRIC: &str = "driver: rank 3: hand memory to other processes, by a fabric handle";
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
        fault(
            "is refused a launch, and leaves",
            "refused",
            (Nothing, LONG),
            Some("usage: "),
            REFUSED,
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
            "another version",
            "version",
            (Nothing, LONG),
            Some("mismatch: rank 3 is counterflow"),
            "and rank 3 is counterflow 0.0.1-other on host",
        ),
        fault(
            "its job wants another's port",
            "jobs",
            (Nothing, SHORT),
            Some("it does not know this job's secret"),
            "it does not know this job's secret",
        ),
        fault(
            "a damaged cache",
            "cache",
            (Nothing, LONG),
            Some("fine"),
            "fine",
        ),
        fault(
            "a damaged cache, no compiler",
            "sealed",
            (Nothing, LONG),
            Some(".cubin, which has one, is damaged"),
            LEFT,
        ),
        fault(
            "a broken file of winners",
            "table",
            (Nothing, LONG),
            Some("tuned.toml: it is no file of winners"),
            "tuned.toml: rank 3: it is no file of winners",
        ),
        fault(
            "another number of ranks",
            "world",
            (Nothing, LONG),
            Some("rank 0 counts another number of ranks than 5"),
            "rank 3 says that there are 5 ranks, and rank 0 that there are 4",
        ),
        fault(
            "no NVRTC",
            "compiler",
            (Nothing, LONG),
            Some("nvidia-cuda-nvrtc"),
            LEFT,
        ),
        fault(
            "an old driver",
            "driver",
            (Nothing, LONG),
            Some("install driver 580 (CUDA 13.0) or later"),
            "rank 3 ended early: device cuda: the NVIDIA driver is too old: it has no cuMem",
        ),
        fault(
            "no GPU",
            "gpu",
            (Nothing, LONG),
            Some("no_device: device cuda: "),
            "rank 3 ended early: device cuda: ",
        ),
        fault(
            "something else at the port",
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
            "may not hand over a fabric handle",
            "fabric",
            (Nothing, LONG),
            Some(FABRIC),
            FABRIC,
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

/// Who has the port, or where kernels lie, before the ranks start.
struct Prepared {
    port: u16,
    folder: PathBuf,
    _taken: Option<TcpListener>,
    /// Another job, of which one rank listens.
    other: Option<JoinHandle<Result<(), Error>>>,
}

/// The other job of two.
fn other_job(rank: u32, port: u16) -> Result<(), Error> {
    let limit = Duration::from_secs(LONG.into());
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let job = Tcp::join(
        rank,
        2,
        address,
        &Secret::of(b"the other job's secret"),
        limit,
    )?;
    job.barrier(limit)
}

/// None where there is no compiler to fill a cache.
fn prepared(fault: &Fault) -> Option<Prepared> {
    let part = fault.part;
    let taken = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
    let port = taken.local_addr().expect("bound").port();
    let taken = (part == "port").then_some(taken);
    let other = (part == "jobs").then(|| {
        let other = std::thread::spawn(move || other_job(0, port));
        while TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_err() {
            assert!(!other.is_finished(), "it listens");
            sleep(Duration::from_millis(1));
        }
        other
    });
    let folder = common::folder(&fault.name.replace(|c: char| !c.is_alphanumeric(), "-"));
    if part == "table" {
        std::fs::create_dir_all(&folder).expect("made");
        std::fs::write(folder.join("tuned.toml"), "winner = 3").expect("written");
    }
    if ["cache", "sealed"].contains(&part) {
        filled_and_damaged(&folder)?;
    }
    Some(Prepared {
        port,
        folder,
        _taken: taken,
        other,
    })
}

fn filled_and_damaged(folder: &Path) -> Option<()> {
    let compiler = common::compiler()?.with_cache(Cache::at(folder));
    let compiled = compiler.compile(&Source::new("one", ONE), Target::Sm90a);
    compiled.expect("compiled");
    compiler.seal().expect("sealed");
    for entry in std::fs::read_dir(folder).expect("there") {
        let path = entry.expect("readable").path();
        if path.extension().is_some_and(|end| end == "cubin") {
            let mut bytes = std::fs::read(&path).expect("read");
            *bytes.last_mut().expect("some") ^= 1;
            std::fs::write(&path, bytes).expect("written");
        }
    }
    Some(())
}

/// A folder with a driver that has none of its functions, before the folders that are searched anyway.
fn with_an_old_driver(folder: &Path) -> String {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("read");
    let mut mapped = maps.split_whitespace().filter(|word| word.starts_with('/'));
    // A compiler that this program has loaded may have loaded the driver.
    let is = |path: &str| path.contains("/libc.so") || path.contains("/libc-");
    let other = mapped.find(|path| is(path));
    let other = other.expect("this program has a C library");
    std::fs::create_dir_all(folder).expect("made");
    for name in ["libcuda.so", "libcuda.so.1"] {
        std::os::unix::fs::symlink(other, folder.join(name)).expect("linked");
    }
    let before = std::env::var("LD_LIBRARY_PATH").unwrap_or_default();
    format!("{}:{before}", folder.display())
}

/// What a rank said, what to do about it, and when after the fault.
type Told = (String, String, Duration);

/// Starts it, does what happens from outside, and says what each rank said, and when after that.
fn told(fault: &Fault, before: &Prepared) -> Vec<Option<Told>> {
    let (port, seconds) = (before.port.to_string(), fault.limit.to_string());
    let folder = before.folder.to_str().expect("a name");
    let mut set = vec![
        ("CUDA_VISIBLE_DEVICES", ""),
        ("UB_TIMEOUT", &seconds),
        (PORT, &port),
        ("COUNTERFLOW_CACHE", folder),
        // A panic's rank leaves once it has printed where it was, for which a busy machine reads debug information for seconds.
        ("RUST_BACKTRACE", "0"),
    ];
    let libraries = (fault.part == "driver").then(|| with_an_old_driver(&before.folder));
    if let Some(libraries) = &libraries {
        set.push(("LD_LIBRARY_PATH", libraries));
    }
    match fault.part {
        "sealed" => set.push(("COUNTERFLOW_NVRTC", "off")),
        "fabric" => set.push(("COUNTERFLOW_HANDLES", "fabric")),
        "compiler" => set.push(("COUNTERFLOW_NVRTC", folder)),
        _ => {}
    }
    let begun = Instant::now();
    let mut ranks = children::started("part", fault.part, WORLD, &set);
    let ready = |rank: &Rank| rank.next(READY).0;
    let mut since = match fault.part {
        "absent" | "descriptors" | "addresses" | "driver" | "gpu" => begun,
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
            return None;
        }
        let (at, told) = process.next(LAST);
        let help = match &told[..] {
            "fine" => String::new(),
            _ => process.next(HELP).1,
        };
        Some((told, help, at.saturating_duration_since(since)))
    });
    let said = said.collect();
    if ["rows", "order", "schedule", "size"].contains(&fault.part) {
        ranks.iter().for_each(|rank| drop(rank.next(REBUILT)));
    }
    said
}

/// Faults with that limit. Without `WIDE` each so many, and a rank that is stopped. What each rank says is printed as a table.
fn with_limit(limit: u32, each: usize) -> Vec<&'static Fault> {
    println!("| fault of rank 3 | what each rank says | seconds |\n|---|---|---|");
    assert!(
        FAULTS
            .iter()
            .all(|fault| [SHORT, LONG].contains(&fault.limit))
    );
    let each = if wide() { 1 } else { each };
    let all = FAULTS.iter().filter(|fault| fault.limit == limit);
    let some = all
        .enumerate()
        .filter(|(at, fault)| at % each == 0 || fault.act == Act::Stop);
    some.map(|(_, fault)| fault).collect()
}

/// They do little but wait for the limit: several at a time.
#[test]
fn each_fault_that_the_limit_ends_is_told_to_every_rank_in_time() {
    for some in with_limit(SHORT, 3).chunks(AT_ONCE) {
        std::thread::scope(|scope| {
            for fault in some {
                scope.spawn(|| is_told_in_time(fault));
            }
        });
    }
}

#[test]
fn each_fault_that_ends_at_once_is_told_to_every_rank_in_time() {
    with_limit(LONG, 2).into_iter().for_each(is_told_in_time);
}

fn is_told_in_time(fault: &Fault) {
    let name = fault.name;
    let Some(before) = prepared(fault) else {
        println!("| {name} | not shown: there is no NVRTC | |");
        return;
    };
    let told = told(fault, &before);
    // The job that was there first goes on.
    if let Some(first) = before.other {
        other_job(1, before.port).expect("it joins");
        let first = first.join().expect("no panic");
        first.expect("it is joined");
    }
    for (rank, told) in told.iter().enumerate() {
        let Some((told, help, took)) = told else {
            continue;
        };
        println!(
            "| {name} | rank {rank}: {told} | {:.1} |",
            took.as_secs_f64()
        );
        assert!(told == "fine" || !help.is_empty(), "{name}: what to do");
        let wanted = if rank == 3 {
            fault.last.unwrap_or_default()
        } else {
            fault.others
        };
        // Rank 0 of a job whose port is taken says so itself.
        let own = ["port", "jobs"].contains(&fault.part)
            && rank == 0
            && told.contains("rank 0 cannot listen at");
        assert!(
            own || [told, help].iter().any(|said| said.contains(wanted)),
            "{name}, rank {rank}: {told}"
        );
        // A closed socket is seen at once; else the limit ends it, and who waits for the record of another.
        let most = match fault.limit {
            SHORT => Duration::from_secs(u64::from(SHORT) + 3),
            // Rank 0 tells for a second all that come.
            _ if fault.part == "world" => Duration::from_secs(3),
            _ => Duration::from_secs(1),
        };
        // Processes take their time to start, and a compiler or a proof its own: still a part of any limit.
        let starts = ["addresses", "cache", "driver", "gpu", "table"].contains(&fault.part);
        let most = if starts {
            most.max(Duration::from_secs(20))
        } else {
            most
        };
        assert!(*took < most, "{name}, rank {rank}: {took:?}");
    }
    let _ = std::fs::remove_dir_all(&before.folder);
}
