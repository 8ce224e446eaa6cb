//! Ranks that leave early and cleanly: nobody takes that for a death, and nobody's memory goes too soon.

use super::{LAST, WORLD, last_words, made, started};
use counterflow::driver::Event;
use counterflow::prelude::bf16;
use counterflow::schedules::AgGemmPullOp;
use counterflow::{Communicator, Error};
use std::time::{Duration, Instant};

/// What a rank does for one of the tests, if it is one of these.
pub fn done(part: &str) -> Option<Result<(), Error>> {
    let leaves: fn(Communicator) -> Result<(), Error> = match part {
        "quits" => quits,
        "forgets" => forgets,
        "keeps" => keeps,
        _ => return None,
    };
    Some(Communicator::emulated_from_env().and_then(leaves))
}

/// Whether nobody is told of an end, for longer than anybody would take to tell.
fn goes_on(rank: &Communicator) -> Result<(), Error> {
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(1) {
        rank.synchronize()?;
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// Rank 3 drops all that it has, copies of a copy engine's among it, and its process ends at once.
fn quits(rank: Communicator) -> Result<(), Error> {
    rank.reserve(8 << 20)?;
    let op = rank.op_of::<AgGemmPullOp>().up_to(256, 64, 64).build()?;
    let x = rank.allocate::<bf16>("x", [256, 64])?;
    let (w, mut y) = (
        rank.zeros::<bf16>([64, 64])?,
        rank.zeros::<bf16>([256, 64])?,
    );
    op.on(&rank).x(&x).w(&w).y(&mut y).launch()?.wait()?;
    rank.synchronize().and_then(|()| rank.barrier())?;
    if rank.rank() < 3 {
        return goes_on(&rank);
    }
    drop((op, x, w, y, rank));
    println!("\n{LAST}fine");
    std::process::exit(0)
}

/// Rank 3 drops its communicator, and its process ends with buffers and an op of it.
fn forgets(rank: Communicator) -> Result<(), Error> {
    let (op, x, w, mut y) = made(&rank)?;
    op.on(&rank).x(&x).w(&w).y(&mut y).launch()?.wait()?;
    rank.synchronize().and_then(|()| rank.barrier())?;
    if rank.rank() < 3 {
        return goes_on(&rank);
    }
    drop(rank);
    std::mem::forget((op, x, w, y));
    println!("\n{LAST}fine");
    std::process::exit(0)
}

/// How many slots of heaps this process has mapped.
fn slots() -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("maps");
    let heap = |line: &&str| line.contains("counterflow heap");
    maps.lines().filter(heap).count()
}

/// Rank 3 leaves while its peers' streams have yet to come past what was launched.
fn keeps(rank: Communicator) -> Result<(), Error> {
    let other = rank.split(0, 0)?;
    let (first, x, w, mut y) = made(&rank)?;
    let (second, p, v, mut q) = made(&other)?;
    first.on(&rank).x(&x).w(&w).y(&mut y).launch()?.wait()?;
    rank.synchronize().and_then(|()| rank.barrier())?;
    if other.rank() < 3 {
        let done = second.on(&other).x(&p).w(&v).y(&mut q).launch()?;
        // Not past this before rank 3 launches there, too.
        rank.stream().wait(&Event::record(other.stream())?)?;
        other.barrier()?;
        done.wait()?;
        return other.barrier();
    }
    other.barrier()?;
    drop((first, x, w, y, rank));
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!(slots(), 2 * WORLD, "peers may write there");
    second.on(&other).x(&p).w(&v).y(&mut q).launch()?.wait()?;
    let start = Instant::now();
    while slots() > WORLD {
        assert!(start.elapsed() < Duration::from_secs(30), "it stays mapped");
        std::thread::sleep(Duration::from_millis(5));
    }
    other.barrier()
}

#[test]
fn a_process_that_leaves_and_ends_is_not_said_to_have_died() {
    // Beside each other: they wait for what does not come.
    let both = ["quits", "forgets"].map(|part| (part, started(part, 110)));
    for (part, ranks) in &both {
        assert_eq!(last_words(ranks), ["fine"; WORLD], "{part}");
    }
}

#[test]
fn memory_stays_until_all_peers_are_through_with_what_was_launched() {
    assert_eq!(last_words(&started("keeps", 60)), ["fine"; WORLD]);
}
