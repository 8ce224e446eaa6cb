//! Ranks that are real processes, on emulated GPUs: each test starts this program once for every rank, with torchrun's
//! variables, and reads what each of them says.

#[path = "../common/children.rs"]
mod children;

#[path = "../common/groups.rs"]
mod groups;

#[path = "../common/mod.rs"]
mod common;

mod faults;
mod leaves;
mod room;
#[path = "../emulated/schedules.rs"]
#[expect(dead_code, reason = "one of them is built here")]
mod schedules;
mod tunes;
#[path = "../../../codegen/tests/fixtures/wide.rs"]
mod wide;

use children::Rank;
use counterflow::op::{Op, Workspace};
use counterflow::prelude::bf16;
use counterflow::schedules::{AgGemmOp, GemmRsOp};
use counterflow::{Communicator, Error, Tensor, UserBuffer};
use counterflow_codegen::builder::{ranks, tune};
use schedules::{Sender, gather_in, gather_of_choices};
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::time::{Duration, Instant};

const WORLD: usize = 4;
/// What a rank says before its last words.
const READY: &str = "rank is ready";
const LAST: &str = "last words: ";
/// Behind them, what to do.
const HELP: &str = "help: ";

/// One rank of the tests below.
#[test]
#[ignore = "no test: the others start it as a child process, once for each rank"]
fn part() {
    let part = children::part();
    let joined = |part: &str| {
        Communicator::emulated_from_env().and_then(|rank| match part {
            "work" => work(&rank),
            "barrier" => barrier(&rank),
            "kernel" => kernel(&rank),
            "differ" => rank
                .allocate::<u8>("x", [rank.rank() as usize / 3])
                .map(drop),
            "orders" => orders(&rank),
            "leave" => leave(rank),
            "scratch" => scratch(&rank),
            "told" => told(&rank),
            "exit" => exit(rank),
            "files" => files(&rank),
            "adopts" => adopts(&rank),
            "split" => groups::layers(&rank, [256, 64], |rank, program| {
                rank.op(program).up_to(256, 64, 64).build()
            }),
            "apart" => match rank.rank() {
                2 => rank.barrier(),
                _ => rank.split(0, 0).map(drop),
            },
            other => panic!("{other}"),
        })
    };
    let done = faults::done(&part)
        .or_else(|| leaves::done(&part))
        .or_else(|| room::done(&part))
        .or_else(|| tunes::done(&part));
    let done = done.unwrap_or_else(|| joined(&part));
    match done {
        Ok(()) => println!("\n{LAST}fine"),
        Err(error) => says(&error),
    }
}

fn says(error: &Error) {
    let help = error.help().unwrap_or_default();
    println!("\n{LAST}{}: {error}\n{HELP}{help}", error.kind());
}

fn ready() {
    println!("\n{READY}");
}

/// Waits until somebody ends this process.
fn sleep() -> ! {
    ready();
    loop {
        std::thread::sleep(Duration::from_secs(1));
    }
}

fn values(rows: std::ops::Range<usize>, columns: usize) -> Vec<bf16> {
    let value =
        |at: usize| bf16::from_f32(((at / columns * 31 + at % columns * 7) % 61) as f32 - 30.0);
    (rows.start * columns..rows.end * columns)
        .map(value)
        .collect()
}

/// Allocations that come and go, and launches, replays among them, whose results are right.
fn work(rank: &Communicator) -> Result<(), Error> {
    const SIZE: [usize; 2] = [256, 64];
    let [m, side] = SIZE;
    rank.reserve(8 << 20)?;
    let op = rank.op_of::<AgGemmOp>().up_to(m, side, side).build()?;
    let (w, mut y) = (
        rank.zeros::<bf16>([side, side])?,
        rank.zeros::<bf16>([m, side])?,
    );
    let one = |at: usize| bf16::from_f32(if at / side == at % side { 1.0 } else { 0.0 });
    w.write(&(0..side * side).map(one).collect::<Vec<_>>())?;
    let stream = rank.gpu().stream()?;
    for round in 0..6 {
        // More than the heap holds at once: what was dropped is used again, at one place on all ranks.
        let big = rank.allocate::<u8>("big", [4 << 20])?;
        big.fill(round)?;
        drop(big);
        let x = rank.allocate::<bf16>("x", [m, side])?;
        x.write(&values(0..m, side))?;
        op.on(&stream).x(&x).w(&w).y(&mut y).launch()?.wait()?;
        assert!(y.read()? == values(0..m, side), "round {round}");
    }
    rank.barrier()
}

fn barrier(rank: &Communicator) -> Result<(), Error> {
    rank.barrier()?;
    if rank.rank() == 3 {
        sleep();
    }
    ready();
    rank.barrier()
}

/// Rank 3 never launches.
fn kernel(rank: &Communicator) -> Result<(), Error> {
    launched(rank, || {
        if rank.rank() == 3 {
            sleep();
        }
    })
}

/// Rank 3 drops all it has and ends, while its launch waits for that of rank 2.
fn exit(rank: Communicator) -> Result<(), Error> {
    let me = rank.rank();
    if me < 3 {
        return launched(&rank, || {
            if me == 2 {
                std::thread::sleep(Duration::from_millis(500));
            }
        });
    }
    let (op, x, w, mut y) = made(&rank)?;
    rank.synchronize().and_then(|()| rank.barrier())?;
    op.on(&rank).x(&x).w(&w).y(&mut y).launch()?;
    drop((op, x, w, y, rank));
    ready();
    std::process::exit(0)
}

type Made = (
    Op<AgGemmOp<'static>>,
    UserBuffer<bf16>,
    Tensor<bf16>,
    Tensor<bf16>,
);

fn made(rank: &Communicator) -> Result<Made, Error> {
    rank.reserve(8 << 20)?;
    // What it is made of is the same for all options, and each process chooses for itself.
    let op = rank.op_of::<AgGemmOp>().first_options();
    let op = op.up_to(256, 64, 64).build()?;
    let x = rank.allocate::<bf16>("x", [256, 64])?;
    Ok((op, x, rank.zeros([64, 64])?, rank.zeros([256, 64])?))
}

/// A launch of every rank, `before` which each does something.
fn launched(rank: &Communicator, before: impl FnOnce()) -> Result<(), Error> {
    let (op, x, w, mut y) = made(rank)?;
    rank.synchronize().and_then(|()| rank.barrier())?;
    before();
    let stream = rank.gpu().stream()?;
    let done = op.on(&stream).x(&x).w(&w).y(&mut y).launch()?;
    ready();
    done.wait()
}

/// Rank 2 has no file descriptor left while all reserve, and then has.
fn files(rank: &Communicator) -> Result<(), Error> {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    rank.reserve(2 << 20)?;
    let before = getrlimit(Resource::Nofile);
    if rank.rank() == 2 {
        let none = Rlimit {
            current: Some(3),
            ..before
        };
        setrlimit(Resource::Nofile, none).expect("set");
    }
    let refused = rank.reserve(8 << 20).expect_err("no descriptor");
    println!("\n{READY}{}: {refused}", refused.kind());
    setrlimit(Resource::Nofile, before).expect("set");
    rank.reserve(8 << 20)?;
    let x = rank.allocate::<u8>("x", [4 << 20])?;
    let next = (rank.rank() + 1) % rank.world();
    x.write_on(next, &vec![7; 4 << 20])?;
    rank.synchronize().and_then(|()| rank.barrier())?;
    assert!(x.read()?.iter().all(|byte| *byte == 7));
    rank.barrier()
}

/// Memory that cannot be in the heap, and then memory that can.
fn adopts(rank: &Communicator) -> Result<(), Error> {
    rank.reserve(2 << 20)?;
    let theirs = rank.zeros::<u8>([64])?;
    let adopt = |bytes: usize| {
        // SAFETY: nobody else uses it.
        unsafe { rank.adopt::<u8>("theirs", theirs.address().get(), [bytes]) }
    };
    let refused = adopt(64).expect_err("it is emulated");
    println!("\n{READY}{}: {refused}", refused.kind());
    let refused = adopt(32 + rank.rank() as usize / 3).expect_err("another size");
    println!("\n{READY}{}: {refused}", refused.kind());
    rank.allocate::<u8>("ours", [64])?.read()?;
    rank.barrier()
}

/// One rank drops a kernel whose scratch the others still have, and all load another that can share it.
fn scratch(rank: &Communicator) -> Result<(), Error> {
    const SIDE: usize = 256;
    rank.reserve(16 << 20)?;
    let build = || rank.op_of::<GemmRsOp>().up_to(SIDE, SIDE, SIDE).build();
    let mut first = Some(build()?);
    if rank.rank() == 1 {
        first = None;
    }
    let second = build()?;
    let rows = SIDE / WORLD;
    let x = rank.zeros::<bf16>([SIDE, SIDE])?;
    let w = rank.zeros::<bf16>([SIDE, SIDE])?;
    x.write(&vec![bf16::ONE; SIDE * SIDE])?;
    w.write(&vec![bf16::ONE; SIDE * SIDE])?;
    let mut y = rank.allocate::<bf16>("y", [rows, SIDE])?;
    let stream = rank.gpu().stream()?;
    for _ in 0..3 {
        y.fill(0xff)?;
        second.on(&stream).x(&x).w(&w).y(&mut y).launch()?.wait()?;
        let wanted = bf16::from_f32((SIDE * WORLD) as f32);
        assert!(y.read()?.iter().all(|sum| *sum == wanted));
    }
    drop(first);
    rank.barrier()
}

/// Before the memory that a rank is told.
const TOLD: &str = "told: ";

/// Ranks drop an op of which the counters lie near others' at different times, and ask what more ops would take.
fn told(rank: &Communicator) -> Result<(), Error> {
    rank.reserve(64 << 20)?;
    // Of four such ops the counters do not lie near each other.
    let op = || {
        let op = rank.op_of::<GemmRsOp>().first_options();
        op.up_to(1 << 16, 8, 64)
    };
    let more = |count: usize| {
        let each = op().workspace()?;
        Ok::<u64, Error>(Workspace::together(vec![each; count]).heap)
    };
    let mut all = vec![more(1)?, more(2)?];
    let mut ops = vec![op().build()?, op().build()?, op().build()?];
    if rank.rank() == 1 {
        ops.remove(1);
    }
    all.push(more(2)?);
    rank.barrier()?;
    if rank.rank() != 1 {
        ops.remove(1);
    }
    all.push(more(2)?);
    // A collective call finds what is unused on all ranks.
    rank.synchronize()?;
    rank.barrier()?;
    let _x = rank.allocate::<u8>("x", [1])?;
    all.push(more(1)?);
    drop(ops);
    rank.synchronize()?;
    rank.barrier()?;
    let _y = rank.allocate::<u8>("y", [1])?;
    all.push(more(2)?);
    println!("\n{TOLD}{all:?}");
    rank.barrier()
}

/// An order that each process has its own of.
fn orders(rank: &Communicator) -> Result<(), Error> {
    static ODD: AtomicU32 = AtomicU32::new(0);
    fn own(me: u32, step: u32, world: u32) -> u32 {
        (me + step * (1 + 2 * ODD.load(SeqCst))) % world
    }
    ODD.store(rank.rank() / 3, SeqCst);
    rank.reserve(8 << 20)?;
    let gather = gather_in(
        ranks().by(own),
        "moody_gather",
        Sender::Ctas(4),
        tune([(128, 128)]),
    );
    rank.op(&gather).up_to(256, 64, 64).build().map(drop)
}

fn leave(rank: Communicator) -> Result<(), Error> {
    rank.barrier()?;
    match rank.rank() {
        1 => Ok(()),
        _ => rank.barrier(),
    }
}

/// All ranks, as torchrun starts them.
fn started(part: &str, seconds: u32) -> Vec<Rank> {
    let seconds = seconds.to_string();
    let set = [("CUDA_VISIBLE_DEVICES", ""), ("UB_TIMEOUT", &seconds)];
    children::started("part", part, WORLD, &set)
}

fn last_words(ranks: &[Rank]) -> Vec<String> {
    ranks.iter().map(|rank| rank.next(LAST).1).collect()
}

#[test]
fn processes_allocate_launch_and_are_right() {
    assert_eq!(last_words(&started("work", 110)), ["fine"; WORLD]);
}

#[test]
fn groups_of_two_in_four_processes_launch_beside_each_other() {
    assert_eq!(last_words(&started("split", 60)), ["fine"; WORLD]);
    for told in last_words(&started("apart", 60)) {
        let split = "splits by color 0 and key 0";
        let wanted = format!(
            "mismatch: the ranks make different calls: rank 0 {split}, rank 1 {split}, rank 2 is at a barrier, rank 3 {split}"
        );
        assert_eq!(told, wanted);
    }
}

#[test]
fn memory_that_one_process_cannot_share_is_refused_to_all_and_they_go_on() {
    let ranks = started("files", 20);
    for rank in &ranks {
        let (_, told) = rank.next(READY);
        let wanted = "too_large: rank 2: a file descriptor for memory that processes share: ";
        assert!(told.starts_with(wanted), "{told}");
    }
    assert_eq!(last_words(&ranks), ["fine"; WORLD]);
}

#[test]
fn memory_of_another_library_that_cannot_be_shared_is_refused_to_all_and_they_go_on() {
    let ranks = started("adopts", 20);
    for rank in &ranks {
        assert_eq!(
            rank.next(READY).1,
            "usage: rank 0: memory of an emulated GPU"
        );
        let wanted =
            "mismatch: the ranks make different calls: rank 0 adopts theirs, [32] of u8 (32 bytes)";
        let (_, told) = rank.next(READY);
        assert!(told.starts_with(wanted), "{told}");
    }
    assert_eq!(last_words(&ranks), ["fine"; WORLD]);
}

#[test]
fn a_process_may_drop_a_kernel_whose_scratch_its_peers_still_have() {
    assert_eq!(last_words(&started("scratch", 20)), ["fine"; WORLD]);
}

#[test]
fn processes_are_told_the_same_memory_whoever_has_dropped_what() {
    let ranks = started("told", 60);
    let all: Vec<String> = ranks.iter().map(|rank| rank.next(TOLD).1).collect();
    assert!(all.iter().all(|told| told == &all[0]), "{all:?}");
    let numbers = all[0].trim_matches(['[', ']']).split(", ");
    let numbers: Vec<u64> = numbers.map(|told| told.parse().expect("bytes")).collect();
    let [one, shared, full, still, again, free] = numbers[..] else {
        panic!("{numbers:?}");
    };
    assert!(shared < 2 * one, "two share scratch: {numbers:?}");
    assert_eq!([full, still], [2 * one; 2], "no room for two: {numbers:?}");
    assert_eq!([again, free], [one, shared], "room again: {numbers:?}");
    assert_eq!(last_words(&ranks), ["fine"; WORLD]);
}

#[test]
fn processes_that_ask_for_different_things_are_told() {
    let told = last_words(&started("differ", 110));
    for told in &told {
        assert!(
            told.starts_with("mismatch: the ranks make different calls: rank 0 allocates x, [0]"),
            "{told}"
        );
        assert!(told.contains("rank 3 allocates x, [1] of u8"), "{told}");
    }
}

#[test]
fn processes_with_other_orders_by_closure_are_told_which() {
    let ranks = started("orders", 60);
    for (what, help) in ranks
        .iter()
        .map(|rank| (rank.next(LAST).1, rank.next(HELP).1))
    {
        let said = "in step 1 rank 0 visits rank 1 as rank 0 has it, and rank 3 as rank 3 has it";
        assert!(
            what.starts_with("mismatch: the order of `shard` in moody_gather ("),
            "{what}"
        );
        assert!(what.ends_with(said), "{what}");
        assert!(help.contains("before any rank builds"), "{help}");
    }
}

#[test]
fn a_rank_that_leaves_early_is_named() {
    let told = last_words(&started("leave", 110));
    assert_eq!(told[1], "fine");
    for rank in [0, 2, 3] {
        let named =
            told[rank].starts_with("aborted: rank 1 ended early: its communicator was dropped");
        assert!(named, "{}", told[rank]);
    }
}

/// Kills rank 3 while the others wait: each has an error within a second.
fn kills(part: &str) {
    let mut ranks = started(part, 110);
    for rank in &ranks {
        rank.next(READY);
    }
    let mut last = ranks.pop().expect("four");
    let start = Instant::now();
    last.process.kill().expect("killed");
    for (at, told) in ranks.iter().map(|rank| rank.next(LAST)) {
        assert!(
            told.starts_with("aborted: rank 3 ended early: its process"),
            "{told}"
        );
        let took = at.saturating_duration_since(start);
        assert!(took < Duration::from_secs(1), "{took:?}");
    }
}

#[test]
fn a_killed_rank_ends_its_peers_at_a_barrier_within_a_second() {
    kills("barrier");
}

#[test]
fn a_killed_rank_ends_its_peers_kernels_within_a_second() {
    kills("kernel");
}

#[test]
fn a_rank_that_ends_before_its_launches_is_named_within_a_second() {
    let ranks = started("exit", 110);
    let (start, _) = ranks[3].next(READY);
    for rank in &ranks[..3] {
        let (at, told) = rank.next(LAST);
        let wanted = "aborted: rank 3 ended early: its process ended before its launches had ended";
        assert_eq!(told, wanted);
        // Rank 2 launches half a second later.
        let took = at.saturating_duration_since(start);
        assert!(took < Duration::from_millis(1500), "{took:?}");
    }
}
