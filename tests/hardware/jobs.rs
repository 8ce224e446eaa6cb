//! What each rank of a job does, whoever started it: every schedule of the library, and replays of a graph.

use crate::SCHEDULES;
use crate::case::{Case, Fill, variant_of};
use crate::gpus::turn;
use crate::op::{Operands, SIZE, built, right};
use crate::processes::{LAST, ranks, ways};
use crate::right::JITTERED;
use crate::wide::wide;
use counterflow::codegen::interp::{Outcome, Policy};
use counterflow::jit::Compiler;
use counterflow::prelude::bf16;
use counterflow::{Communicator, Error, Shape, UserBuffer, schedules};
use std::time::{Duration, Instant};

/// How many launches or replays, where that variable does not say it.
pub fn count(variable: &str, otherwise: u64) -> u64 {
    let Ok(text) = std::env::var(variable) else {
        return otherwise;
    };
    text.parse()
        .unwrap_or_else(|_| panic!("{variable}={text}: how many?"))
}

/// Whether this process has a GPU that others have, too.
pub fn shares() -> bool {
    std::env::var(crate::processes::WAY).is_ok_and(|way| way == "on one GPU")
}

/// Launches of every schedule with a new M each. Every output of this rank is compared with the reference.
pub fn schedules(rank: &Communicator) -> Result<String, Error> {
    let emulated = rank.gpu().is_emulated();
    let compiler = (!emulated).then(Compiler::find).transpose()?;
    let few = emulated && !wide();
    let (kinds, rows) = match few {
        true => (&JITTERED[..1], &[130, 1][..]),
        false => (&JITTERED[..], &[257, 1, 130][..]),
    };
    let (n, k) = if few { (72, 40) } else { (136, 200) };
    let shapes = rows.iter().map(|m| Shape::new(*m, n, k).up_to(rows[0]));
    let shapes: Vec<Shape> = shapes.collect();
    let mut launches = 0;
    // Each process proves what it launches.
    let all = (0..).zip(SCHEDULES).step_by(if few { 7 } else { 1 });
    let count = all.clone().count();
    for (number, schedule) in all {
        let program = schedule();
        for kind in kinds {
            let variant = variant_of(&program, rank.world(), *kind);
            // The driver gives the whole GPU to one process after another.
            let case = Case::new(&program, &variant, &shapes, 1);
            let fill = Fill::Uniform(number);
            let outputs = case.on_rank(rank, compiler.as_ref(), fill, 200)?;
            let outcome = Outcome {
                outputs,
                steps: 0,
                policy: Policy::of_seed(0, 1, 1),
            };
            for launch in 0..shapes.len() {
                case.compare_own(&outcome, rank.rank(), launch, fill);
                launches += 1;
            }
        }
    }
    rank.barrier()?;
    Ok(format!("{count} schedules, {launches} launches right"))
}

/// A graph of both layers of tensor parallelism, replayed without a wait between, and compared now and then.
pub fn replays(rank: &Communicator) -> Result<String, Error> {
    let most = match (rank.gpu().is_emulated(), shares()) {
        (true, _) => 4,
        (false, true) => 1000,
        (false, false) => 10_000,
    };
    let (replays, [m, side]) = (count("COUNTERFLOW_REPLAYS", most), SIZE);
    rank.reserve(64 << 20)?;
    let gather = built(rank, &schedules::ag_gemm())?;
    let scatter = built(rank, &schedules::gemm_rs())?;
    let Operands { x, w, mut y } = Operands::new(rank)?;
    x.write(&Operands::given(rank, m))?;
    let rows = m.div_ceil(rank.world() as usize);
    let whole = rank.zeros::<bf16>([m, side])?;
    whole.write(&vec![bf16::ONE; m * side])?;
    let mut z: UserBuffer<bf16> = rank.allocate("z", [rows, side])?;
    let stream = rank.gpu().stream()?;
    rank.synchronize().and_then(|()| rank.barrier())?;
    let graph = rank.capture(|s| {
        let launch = gather.on(s).tensor("x", &x).tensor("w", &w);
        launch.tensor("y", &mut y).launch()?;
        let launch = scatter.on(s).tensor("x", &whole).tensor("w", &w);
        launch.tensor("y", &mut z).launch().map(drop)
    })?;
    rank.barrier()?;
    let sum = bf16::from_f32(rank.world() as f32);
    let held = m.saturating_sub(rank.rank() as usize * rows).min(rows);
    let start = Instant::now();
    for replay in 0..replays {
        let check = replay % 100 == 99 || replay + 1 == replays;
        if check {
            y.fill(0xff)?;
            z.fill(0xff)?;
            // Both are filled in the order of the rank's own stream.
            rank.synchronize()?;
        }
        let done = graph.launch(&stream)?;
        if check {
            done.wait()?;
            right(&y.read()?, m);
            let z = z.read()?;
            assert!(z[..held * side].iter().all(|value| *value == sum), "sums");
        }
    }
    let each = start.elapsed() / replays.max(1) as u32;
    rank.barrier()?;
    Ok(format!("{} launches right, {each:?} a replay", 2 * replays))
}

/// A job of that part in every world, each way that this machine can; with emulated ranks in one of them.
fn in_worlds(part: &str, worlds: &[usize], emulated: usize) {
    let _turn = turn();
    for world in worlds {
        for way in ways(*world) {
            if way == "emulated" && *world != emulated && !wide() {
                continue;
            }
            for (rank, process) in ranks(part, way, *world, "60").iter().enumerate() {
                let (_, told) = process.next(LAST);
                let right = told.strip_prefix("fine: ");
                let right = right.unwrap_or_else(|| panic!("{part} {way}, rank {rank}: {told}"));
                if rank == 0 {
                    println!("  world {world} as processes {way}: {right}");
                }
            }
        }
    }
}

#[test]
fn every_schedule_is_right_in_processes() {
    in_worlds("schedules", &[1, 2, 3, 4], 3);
}

#[test]
fn replays_of_processes_are_right() {
    in_worlds("replays", &[2, 4], 2);
}

#[test]
fn launches_of_processes_with_another_m_each_are_right() {
    in_worlds("soak", &[2, 4], 2);
}

/// The longest that a soak may take.
pub fn limit() -> Duration {
    Duration::from_secs(count("COUNTERFLOW_SECONDS", 400))
}
