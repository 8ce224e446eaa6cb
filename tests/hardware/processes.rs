//! Ranks that are processes: on one GPU that they share, on a GPU each where there are several, and on emulated ones.
//!
//! The driver lets the kernels of processes that share a GPU run in turn. So every wait for a peer takes milliseconds, and
//! their limits are longer than those of ranks in one process.

use crate::adopted;
use crate::children::{self, Rank, started};
use crate::fine;
use crate::gpus::{both_ways, here, runs, turn};
use crate::groups;
use crate::jobs;
use crate::op::{Operands, SIZE, built, right};
use crate::queues::QUEUES;
use crate::soak;
use crate::wide::wide;
use counterflow::prelude::bf16;
use counterflow::rendezvous::{Job, Rendezvous};
use counterflow::{Communicator, Error, UserBuffer, schedules};
use std::time::{Duration, Instant};

/// The variable that says which GPUs the ranks have.
pub const WAY: &str = "COUNTERFLOW_TEST_WAY";
/// What a rank says before it waits for others, and at last.
const READY: &str = "rank is ready";
pub const LAST: &str = "last words: ";

/// Which GPUs, of those that this run asks for.
pub fn ways(world: usize) -> Vec<&'static str> {
    let ranks = world as u32;
    let Some(count) = here() else {
        return vec!["emulated"];
    };
    // Ranks without a GPU are left out with worlds.
    let emulated = runs(ranks, 0).then_some("emulated");
    let shared = runs(ranks, 1).then_some("on one GPU");
    let each = (count >= ranks && runs(ranks, count)).then_some("on a GPU each");
    [emulated, shared, each].into_iter().flatten().collect()
}

/// This process's rank.
fn joined() -> Result<Communicator, Error> {
    match &std::env::var(WAY).expect("started by another test")[..] {
        "emulated" => Communicator::emulated_from_env(),
        "on one GPU" => Communicator::from_env_sharing(),
        "on a GPU each" => Communicator::from_env(),
        other => panic!("{other}"),
    }
}

/// Starts all ranks.
pub fn ranks(part: &str, way: &str, world: usize, seconds: &str) -> Vec<Rank> {
    ranks_with(part, way, world, &[("UB_TIMEOUT", seconds)])
}

/// The same, with these variables.
fn ranks_with(part: &str, way: &str, world: usize, more: &[(&str, &str)]) -> Vec<Rank> {
    let mut set = [&[(WAY, way)], more].concat();
    match way {
        "emulated" => set.push(("CUDA_VISIBLE_DEVICES", "")),
        "on one GPU" => set.push(("CUDA_VISIBLE_DEVICES", "0")),
        _ => {}
    }
    started("processes::part", part, world, &set)
}

/// One rank of the tests below.
#[test]
#[ignore = "the other tests start it, once for every rank"]
fn part() {
    match done() {
        Ok(told) => println!("\n{LAST}fine: {told}"),
        Err(error) => println!("\n{LAST}{}: {error}", error.kind()),
    }
}

/// The same rank where a launcher started it, which is told by the exit code. The first rank says what ran.
#[test]
#[ignore = "a launcher starts it, once for every rank"]
fn rank() {
    let job = fine(Job::from_env()).expect("a launcher starts it");
    let told = fine(done());
    if job.rank == 0 {
        let way = std::env::var(WAY).unwrap_or_default();
        println!("\n  world {} as processes {way}: {told}", job.world);
    }
}

fn done() -> Result<String, Error> {
    match &children::part()[..] {
        "work" => work(),
        "schedules" => jobs::schedules(&joined()?),
        "adopted" => adopted::gathers(&joined()?),
        "replays" => jobs::replays(&joined()?),
        "soak" => soak::in_a_process(&joined()?),
        "late" => late(),
        "killed" => killed(),
        "groups" => groups::layers(&joined()?, SIZE, built).map(|()| "32 launches right".into()),
        "unshared" => Communicator::from_env().map(|_| String::new()),
        other => panic!("{other}"),
    }
}

/// All that a rank does, in a communicator and then in another one.
fn work() -> Result<String, Error> {
    let mut told = String::new();
    for again in [false, true] {
        let rank = joined()?;
        heap(&rank)?;
        told = layers(&rank, again)?;
    }
    Ok(told)
}

/// Memory that others write and read, dropped and given out again.
fn heap(rank: &Communicator) -> Result<(), Error> {
    const MANY: usize = 1 << 16;
    let (me, world) = (rank.rank(), rank.world());
    rank.reserve(8 << 20)?;
    let first: UserBuffer<u64> = rank.allocate("first", [MANY])?;
    rank.reserve(24 << 20)?;
    let x: UserBuffer<u64> = rank.allocate("x", [MANY])?;
    x.write_on((me + 1) % world, &vec![u64::from(me) + 5; MANY])?;
    rank.synchronize().and_then(|()| rank.barrier())?;
    let from = u64::from((me + world - 1) % world) + 5;
    assert!(x.read()?.iter().all(|value| *value == from), "from a peer");
    let theirs = x.read_on((me + 1) % world)?;
    assert!(theirs.iter().all(|value| *value == u64::from(me) + 5));
    assert!(first.read()?.iter().all(|value| *value == 0), "cleared");
    rank.barrier()?;
    let offset = x.offset();
    drop(x);
    let again: UserBuffer<u64> = rank.allocate("again", [MANY])?;
    assert_eq!(again.offset(), offset, "what all dropped is given out");
    assert!(again.read()?.iter().all(|value| *value == 0), "cleared");
    rank.barrier()
}

/// Both layers, by launches of several M and by replays.
fn layers(rank: &Communicator, again: bool) -> Result<String, Error> {
    let [m, side] = SIZE;
    let replays = if rank.gpu().is_emulated() { 5 } else { 300 };
    rank.reserve(64 << 20)?;
    let gather = built(rank, &schedules::ag_gemm())?;
    let scatter = built(rank, &schedules::gemm_rs())?;
    let Operands { x, w, mut y } = Operands::new(rank)?;
    let rows = m / rank.world() as usize;
    let mut z: UserBuffer<bf16> = rank.allocate("z", [rows, side])?;
    let whole = rank.zeros([m, side])?;
    whole.write(Operands::all())?;
    let stream = rank.gpu().stream()?;
    rank.synchronize().and_then(|()| rank.barrier())?;
    for m in [SIZE[0], 7, 640, 1] {
        x.write(&Operands::given(rank, m))?;
        y.fill(0xff)?;
        rank.synchronize().and_then(|()| rank.barrier())?;
        let launch = gather.on(&stream).tensor("x", &x).tensor("w", &w);
        launch.tensor("y", &mut y).rows(m).launch()?.wait()?;
        right(&y.read()?, m);
        rank.barrier()?;
    }
    let summed = |z: &UserBuffer<bf16>| -> Result<(), Error> {
        let (first, world) = (rank.rank() as usize * rows * side, rank.world() as f32);
        let all = Operands::all();
        let moved = |at: usize| all[first + at / side * side + (at % side + 1) % side];
        for (at, sum) in z.read()?.iter().enumerate() {
            assert_eq!(sum.to_f32(), moved(at).to_f32() * world, "element {at}");
        }
        Ok(())
    };
    let launch = scatter.on(&stream).tensor("x", &whole).tensor("w", &w);
    launch.tensor("y", &mut z).launch()?.wait()?;
    summed(&z)?;
    x.write(Operands::all())?;
    rank.synchronize().and_then(|()| rank.barrier())?;
    let graph = rank.capture(|s| {
        let launch = gather.on(s).tensor("x", &x).tensor("w", &w);
        launch.tensor("y", &mut y).launch()?;
        let launch = scatter.on(s).tensor("x", &whole).tensor("w", &w);
        launch.tensor("y", &mut z).launch().map(drop)
    })?;
    rank.barrier()?;
    let start = Instant::now();
    for replay in 0..replays {
        let check = replay % 50 == 49 || replay + 1 == replays;
        if check {
            y.fill(0xff)?;
            z.fill(0xff)?;
        }
        let done = graph.launch(&stream)?;
        if check {
            done.wait()?;
            right(&y.read()?, m);
            summed(&z)?;
        }
    }
    let each = start.elapsed() / replays;
    rank.barrier()?;
    let when = if again { "rebuilt, " } else { "" };
    Ok(format!(
        "{} launches right, {when}{each:?} a replay",
        5 + 2 * replays
    ))
}

/// A launch of all ranks but the last.
fn but_the_last(rank: &Communicator) -> Result<(), Error> {
    let op = built(rank, &schedules::ag_gemm())?;
    let ([m, side], world) = (SIZE, rank.world() as usize);
    let x: UserBuffer<bf16> = rank.allocate("x", [m.div_ceil(world) * world, side])?;
    let (w, mut y) = (Operands::moves(rank)?, rank.zeros::<bf16>([m, side])?);
    rank.synchronize().and_then(|()| rank.barrier())?;
    println!("\n{READY}");
    if rank.rank() + 1 == rank.world() {
        loop {
            std::thread::sleep(Duration::from_secs(1));
        }
    }
    let launch = op.on(rank).tensor("x", &x).tensor("w", &w);
    launch.tensor("y", &mut y).launch()?.wait()
}

fn late() -> Result<String, Error> {
    but_the_last(&joined()?).map(|()| String::new())
}

/// Who is left goes on without the last.
fn killed() -> Result<String, Error> {
    let rank = joined()?;
    let told = but_the_last(&rank).expect_err("the last is killed");
    let (gpu, emulated) = (rank.gpu().ordinal(), rank.gpu().is_emulated());
    println!("\n{READY}{}: {told}", told.kind());
    drop(rank);
    let job = Job::from_env()?.expect("as torchrun says");
    let job = Job {
        world: job.world - 1,
        local_world: job.world - 1,
        name: format!("{} again", job.name),
        ..job
    };
    let ranks = job.rendezvous(Duration::from_secs(60))?;
    assert_eq!(ranks.world(), job.world);
    let rank = match emulated {
        true => Communicator::join_emulated(&ranks)?,
        false => Communicator::join_sharing(&ranks, gpu)?,
    };
    let op = built(&rank, &schedules::ag_gemm())?;
    let Operands { x, w, mut y } = Operands::new(&rank)?;
    x.write(&Operands::given(&rank, SIZE[0]))?;
    rank.synchronize().and_then(|()| rank.barrier())?;
    let launch = op.on(&rank).tensor("x", &x).tensor("w", &w);
    launch.tensor("y", &mut y).launch()?.wait()?;
    right(&y.read()?, SIZE[0]);
    rank.barrier()?;
    Ok(String::new())
}

#[test]
fn layers_are_right_replayed_and_rebuilt() {
    let _turn = turn();
    for world in [2, 4] {
        for way in ways(world) {
            // Four emulated ones are in groups of two below.
            if way == "emulated" && world == 4 && !wide() {
                continue;
            }
            let all = ranks("work", way, world, "60");
            for (rank, process) in all.iter().enumerate() {
                let (_, told) = process.next(LAST);
                let right = told.strip_prefix("fine: ");
                let right = right.unwrap_or_else(|| panic!("{way}, rank {rank}: {told}"));
                if rank == 0 {
                    println!("  world {world} as processes {way}: {right}");
                }
            }
        }
    }
}

/// A process has the queues of its context for itself.
#[test]
fn any_number_of_hardware_queues_is_right() {
    let _turn = turn();
    for way in ways(2).into_iter().filter(|way| *way != "emulated") {
        for queues in ["1", "8", "32"] {
            let more = [("UB_TIMEOUT", "60"), (QUEUES, queues)];
            for (rank, process) in ranks_with("work", way, 2, &more).iter().enumerate() {
                let (_, told) = process.next(LAST);
                let right = told.strip_prefix("fine: ");
                let right = right.unwrap_or_else(|| panic!("{way}, rank {rank}: {told}"));
                if rank == 0 {
                    println!("  {queues} hardware queues of each process {way}: {right}");
                }
            }
        }
    }
}

#[test]
fn groups_of_two_in_four_launch_beside_each_other() {
    for way in ways(4) {
        let _turn = turn();
        for process in &ranks("groups", way, 4, "60") {
            assert_eq!(process.next(LAST).1, "fine: 32 launches right", "{way}");
        }
        println!("  groups of two in four processes {way}: 32 launches right");
    }
    for world in both_ways(4) {
        fine(Communicator::each(&world.ranks, |rank| {
            groups::layers(rank, SIZE, built)
        }));
        println!("  groups of two: {}", world.told());
    }
}

#[test]
fn processes_gather_into_memory_of_another_library() {
    let _turn = turn();
    // Emulated GPUs have no such memory.
    for way in ways(2).into_iter().filter(|way| *way != "emulated") {
        for process in &ranks("adopted", way, 2, "60") {
            let (_, told) = process.next(LAST);
            assert!(told.starts_with("fine: "), "{way}: {told}");
        }
        println!("  20 launches right in memory of another library, processes {way}");
    }
}

#[test]
fn a_rank_that_never_launches_ends_the_others_waits_after_the_limit() {
    let _turn = turn();
    for way in ways(2) {
        let all = ranks("late", way, 2, "3");
        all[1].next(READY);
        let (start, _) = all[0].next(READY);
        let (at, told) = all[0].next(LAST);
        assert!(
            told.starts_with("stalled: rank 0 waited too long"),
            "{way}: {told}"
        );
        println!("  never launched, {way}: {:.1?}, {told}", at - start);
    }
}

#[test]
fn a_killed_rank_is_named_and_the_others_build_anew() {
    let _turn = turn();
    for way in ways(3) {
        let mut all = ranks("killed", way, 3, "60");
        for rank in &all {
            rank.next(READY);
        }
        // Their kernels wait by now.
        std::thread::sleep(Duration::from_millis(500));
        let mut last = all.pop().expect("three");
        let start = Instant::now();
        last.process.kill().expect("killed");
        for (rank, process) in all.iter().enumerate() {
            let (at, told) = process.next(READY);
            let named = told.starts_with("aborted: rank 2 ended early: its process ended");
            assert!(named, "{way}, rank {rank}: {told}");
            println!(
                "  killed, {way}: rank {rank} after {:.2?}: {told}",
                at - start
            );
        }
        for process in &all {
            assert_eq!(process.next(LAST).1, "fine: ", "{way}");
        }
    }
}

/// No rank waits for the limit: each is told at once.
#[test]
fn ranks_on_one_gpu_are_refused_unless_they_say_that_they_share() {
    if here().is_none() {
        return;
    }
    let _turn = turn();
    for process in &ranks("unshared", "on one GPU", 2, "60") {
        let (_, told) = process.next(LAST);
        assert!(
            told.starts_with("usage: ranks 0 and 1 on one GPU (GPU-"),
            "{told}"
        );
        println!("  not shared: {told}");
    }
}
