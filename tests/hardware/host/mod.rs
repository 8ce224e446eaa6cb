//! What a launch costs the host: the time of the call, beside that of the driver's calls that it is made of.
//!
//! A rank measures while the others wait, and then all at once: ranks that share a GPU share the driver's context, whose
//! calls take turns.

pub mod calls;

use crate::fine;
use crate::gpus::both_ways;
use crate::op::{Operands, SIZE, built};
use counterflow::cuda::{CudaSlice, CudaStream};
use counterflow::prelude::bf16;
use counterflow::{Communicator, Dtype, Error, Op, UserBuffer, schedules};
use std::sync::Arc;
use std::time::Instant;

/// How often the streams are empty at first.
const BATCHES: usize = 60;
/// Calls one after another. Launches whose data copy engines move wait for the GPU when eight are enqueued.
pub const QUEUED: usize = 16;
const QUEUED_COPIES: usize = 6;

/// Microseconds of a call.
#[derive(Clone, Copy, Default)]
pub struct Spread {
    median: f64,
    p10: f64,
    p90: f64,
}

impl Spread {
    pub fn of(mut all: Vec<f64>) -> Spread {
        all.sort_by(f64::total_cmp);
        let at = |part: usize| all.get(all.len() * part / 10).copied().unwrap_or_default();
        Spread {
            median: at(5),
            p10: at(1),
            p90: at(9),
        }
    }
}

impl std::fmt::Display for Spread {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Spread { median, p10, p90 } = self;
        write!(f, "{median:6.2} [{p10:5.2}, {p90:6.2}]")
    }
}

/// A call's times on one rank: alone, and with all ranks at once.
pub type Times = [Spread; 2];

/// The times of `call`, `queued` in a row.
pub fn timed(
    rank: &Communicator,
    queued: usize,
    mut call: impl FnMut() -> Result<(), Error>,
) -> Result<Times, Error> {
    let mut took = [Vec::new(), Vec::new()];
    for batch in 0..=BATCHES {
        let mut calls = |took: &mut Vec<f64>| {
            for _ in 0..queued {
                let start = Instant::now();
                call()?;
                // The first batch is a warm-up.
                if batch > 0 {
                    took.push(start.elapsed().as_secs_f64() * 1e6);
                }
            }
            Ok::<_, Error>(())
        };
        rank.synchronize()?;
        for turn in 0..rank.world() {
            rank.barrier()?;
            if turn == rank.rank() {
                calls(&mut took[0])?;
            }
        }
        rank.synchronize()?;
        rank.barrier()?;
        calls(&mut took[1])?;
    }
    rank.synchronize()?;
    Ok(took.map(Spread::of))
}

/// A stream that did something: where ranks share a GPU, the driver may put a stream's first work behind a peer's wait.
fn stream(rank: &Communicator) -> Result<Arc<CudaStream>, Error> {
    let stream = rank.gpu().cuda()?.context().new_stream().expect("a stream");
    stream.alloc_zeros::<u8>(1).expect("memory");
    stream.synchronize().expect("done");
    Ok(stream)
}

/// Operands of cudarc's, each of a stream of its own.
struct Foreign {
    w: CudaSlice<bf16>,
    y: CudaSlice<bf16>,
}

impl Foreign {
    fn new(rank: &Communicator) -> Result<Foreign, Error> {
        let [m, side] = SIZE;
        let (w, y) = (stream(rank)?, stream(rank)?);
        let (own, other) = (w.clone(), y.clone());
        let foreign = Foreign {
            w: w.alloc_zeros(side * side).expect("memory"),
            y: y.alloc_zeros(m * side).expect("memory"),
        };
        own.synchronize().expect("done");
        other.synchronize().expect("done");
        Ok(foreign)
    }
}

/// The rows of the table that are launches.
fn launches(rank: &Communicator) -> Result<Vec<(&'static str, Times)>, Error> {
    let op = built(rank, &schedules::ag_gemm())?;
    let pull = pulling(rank)?;
    let Operands { x, w, mut y } = Operands::new(rank)?;
    let [m, side] = SIZE;
    let pulled: UserBuffer<bf16> = rank.allocate("pulled", [m, side])?;
    let mut foreign = Foreign::new(rank)?;
    let (on, graphed) = (stream(rank)?, stream(rank)?);
    let mut same = on.alloc_zeros::<bf16>(side * side).expect("memory");
    on.memset_zeros(&mut same).expect("zeroed");
    on.synchronize().expect("done");
    let graph = rank.capture(|s| {
        let launch = op.on(s).tensor("x", &x).tensor("w", &w);
        launch.tensor("y", &mut y).launch().map(drop)
    })?;
    rank.synchronize()?;
    rank.barrier()?;

    let mut rows = Vec::new();
    let own = timed(rank, QUEUED, || {
        let launch = op.on(rank).tensor("x", &x).tensor("w", &w);
        launch.tensor("y", &mut y).launch().map(drop)
    })?;
    rows.push(("in the rank's own order", own));
    let outside = timed(rank, QUEUED, || {
        let launch = op.on(&on).tensor("x", &x).tensor("w", &w);
        launch.tensor("y", &mut y).launch().map(drop)
    })?;
    rows.push(("on a caller's stream", outside));
    let one_same = timed(rank, QUEUED, || {
        let launch = op.on(&on).tensor("x", &x).tensor("w", &same);
        launch.tensor("y", &mut y).launch().map(drop)
    })?;
    rows.push(("with a slice of that stream", one_same));
    let one = timed(rank, QUEUED, || {
        let launch = op.on(&on).tensor("x", &x).tensor("w", &foreign.w);
        launch.tensor("y", &mut y).launch().map(drop)
    })?;
    rows.push(("with a slice of another stream", one));
    let two = timed(rank, QUEUED, || {
        let launch = op.on(&on).tensor("x", &x).tensor("w", &foreign.w);
        launch.tensor("y", &mut foreign.y).launch().map(drop)
    })?;
    rows.push(("with slices of two other streams", two));
    let copies = timed(rank, QUEUED_COPIES, || {
        let launch = pull.on(&on).tensor("x", &pulled).tensor("w", &w);
        launch.tensor("y", &mut y).launch().map(drop)
    })?;
    rows.push(("with copies by copy engine", copies));
    let replay = timed(rank, QUEUED, || graph.launch(&graphed).map(drop))?;
    rows.push(("replay of a graph of one launch", replay));
    rank.barrier()?;
    Ok(rows)
}

/// A schedule whose data copy engines move.
fn pulling(rank: &Communicator) -> Result<Op, Error> {
    let [m, side] = SIZE;
    let schedule = schedules::ag_gemm_pull();
    let builder = rank.op(&schedule).dtype(Dtype::Bf16).up_to(m, side, side);
    let builder = builder.set("tiles", (128, 256)).first_options();
    rank.reserve((m * side * 8) as u64 + 4 * builder.workspace()?.heap + (16 << 20))?;
    builder.build()
}

/// The slowest rank's, row by row.
fn slowest(ranks: Vec<Vec<(&'static str, Times)>>) -> Vec<(&'static str, Times)> {
    let mut ranks = ranks.into_iter();
    let mut rows = ranks.next().unwrap_or_default();
    for other in ranks {
        for ((_, rows), (_, other)) in rows.iter_mut().zip(other) {
            for (row, other) in rows.iter_mut().zip(other) {
                if other.median > row.median {
                    *row = other;
                }
            }
        }
    }
    rows
}

#[test]
#[ignore = "a measurement: run it alone, --ignored --exact"]
fn the_cost_of_a_launch() {
    for world in both_ways(2).chain(both_ways(4)) {
        let rows = fine(Communicator::each(&world.ranks, |rank| {
            let mut rows = launches(rank)?;
            rows.extend(calls::driver(rank)?);
            Ok(rows)
        }));
        println!(
            "  {}: host time in µs, median [p10, p90] of the slowest rank",
            world.told()
        );
        println!("  {:42} {:>24} {:>24}", "", "a rank alone", "all at once");
        for (name, [alone, together]) in slowest(rows) {
            println!("  {name:42} {alone:>24} {together:>24}");
        }
    }
}
