//! What a launch costs the host: the time of the call, and that of exactly the driver's calls that it makes.
//!
//! A rank measures while the others wait, and then all at once: ranks that share a GPU share the driver's context, whose
//! calls take turns.

pub mod driver;
mod phases;
pub mod raw;

use crate::fine;
use crate::gpus::both_ways;
use crate::op::{Operands, SIZE, built};
use counterflow::cuda::{CudaSlice, CudaStream};
use counterflow::prelude::bf16;
use counterflow::{Communicator, Dtype, Error, Op, UserBuffer, schedules};
use driver::{Call, asked, told};
use raw::Raw;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
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

/// A way to launch.
struct Way {
    name: &'static str,
    /// Microseconds that it may take.
    bar: f64,
    /// How many are enqueued at once.
    queued: usize,
    /// What it asks of the driver.
    asks: &'static [&'static str],
}

/// Whether this thread's GPU is the right one.
const SELECT: &str = "cuCtxGetCurrent";
/// Whether a stream records a graph.
const RECORDS: &str = "cuStreamIsCapturing";
/// Whose CTAs come first.
const PRIORITY: &str = "cuStreamGetPriority";
const MARK: &str = "cuEventRecord";
const WAIT: &str = "cuStreamWaitEvent";
const LAUNCH: &str = "cuLaunchKernelEx";
const CELLS: &str = "cuStreamBatchMemOp_v2";
const COPY: &str = "cuMemcpyBatchAsync_v2";

/// cudarc selects the GPU for each of its own calls: a slice's last use is waited for, and the launch marked as its use.
const WAYS: [Way; 10] = [
    Way {
        name: "in the rank's own order",
        bar: 6.0,
        queued: QUEUED,
        asks: &[SELECT, LAUNCH],
    },
    Way {
        name: "the same, asked for later",
        bar: 6.0,
        queued: QUEUED,
        asks: &[SELECT, MARK, LAUNCH],
    },
    Way {
        name: "on a caller's stream",
        bar: 8.0,
        queued: QUEUED,
        asks: &[SELECT, RECORDS, PRIORITY, MARK, WAIT, LAUNCH, MARK, WAIT],
    },
    Way {
        name: "with a slice of that stream",
        bar: 10.0,
        queued: QUEUED,
        asks: &[
            SELECT, RECORDS, PRIORITY, SELECT, WAIT, MARK, WAIT, LAUNCH, MARK, WAIT, SELECT, MARK,
        ],
    },
    Way {
        name: "with a slice of another stream",
        bar: 10.0,
        queued: QUEUED,
        asks: &[
            SELECT, RECORDS, PRIORITY, RECORDS, MARK, WAIT, SELECT, WAIT, MARK, WAIT, LAUNCH, MARK,
            WAIT, WAIT, SELECT, MARK,
        ],
    },
    Way {
        name: "with slices of two other streams",
        bar: 12.0,
        queued: QUEUED,
        asks: &[
            SELECT, RECORDS, PRIORITY, RECORDS, RECORDS, MARK, WAIT, MARK, WAIT, SELECT, WAIT,
            SELECT, WAIT, SELECT, WAIT, MARK, WAIT, LAUNCH, MARK, WAIT, WAIT, WAIT, SELECT, MARK,
            SELECT, MARK,
        ],
    },
    Way {
        name: "with copies by copy engine",
        bar: 12.0,
        queued: QUEUED_COPIES,
        asks: &[SELECT, MARK, WAIT, CELLS, COPY, CELLS, LAUNCH, MARK, WAIT],
    },
    Way {
        name: "the same on a caller's stream",
        bar: 14.0,
        queued: QUEUED_COPIES,
        asks: &[
            SELECT, RECORDS, PRIORITY, MARK, WAIT, MARK, WAIT, CELLS, COPY, CELLS, LAUNCH, MARK,
            WAIT, MARK, WAIT,
        ],
    },
    Way {
        name: "replay of a graph of one launch",
        bar: 8.0,
        queued: QUEUED,
        asks: &[SELECT, RECORDS, MARK, WAIT, "cuGraphLaunch", MARK, WAIT],
    },
    Way {
        name: "a step without a kernel",
        bar: 1.0,
        queued: QUEUED,
        asks: &[SELECT],
    },
];
type Launch<'a> = &'a mut dyn FnMut() -> Result<(), Error>;

/// Launches of one rank in every way: `on` makes as many as it wants.
fn every_way(
    rank: &Communicator,
    mut on: impl FnMut(&Way, Launch<'_>) -> Result<(), Error>,
) -> Result<(), Error> {
    let op = built(rank, &schedules::ag_gemm())?;
    let pull = pulling(rank)?;
    let Operands { x, w, mut y } = Operands::new(rank)?;
    let [m, side] = SIZE;
    let pulled: UserBuffer<bf16> = rank.allocate("pulled", [m, side])?;
    let mut foreign = Foreign::new(rank)?;
    let (stream, graphed) = (stream(rank)?, stream(rank)?);
    let mut same = stream.alloc_zeros::<bf16>(side * side).expect("memory");
    stream.memset_zeros(&mut same).expect("zeroed");
    stream.synchronize().expect("done");
    let graph = rank.capture(|s| {
        let launch = op.on(s).tensor("x", &x).tensor("w", &w);
        launch.tensor("y", &mut y).launch().map(drop)
    })?;
    rank.synchronize()?;
    rank.barrier()?;

    let mut ways = WAYS.iter();
    let mut way = |launch: Launch<'_>| {
        on(ways.next().expect("a way"), launch)?;
        rank.synchronize()?;
        // Other streams have been used, too.
        rank.gpu().cuda()?.synchronize()?;
        rank.barrier()
    };
    way(&mut || {
        let launch = op.on(rank).tensor("x", &x).tensor("w", &w);
        launch.tensor("y", &mut y).launch().map(drop)
    })?;
    let mut kept = None;
    way(&mut || {
        let launch = op.on(rank).tensor("x", &x).tensor("w", &w);
        kept = Some(launch.tensor("y", &mut y).launch()?);
        Ok(())
    })?;
    drop(kept);
    way(&mut || {
        let launch = op.on(&stream).tensor("x", &x).tensor("w", &w);
        launch.tensor("y", &mut y).launch().map(drop)
    })?;
    way(&mut || {
        let launch = op.on(&stream).tensor("x", &x).tensor("w", &same);
        launch.tensor("y", &mut y).launch().map(drop)
    })?;
    way(&mut || {
        let launch = op.on(&stream).tensor("x", &x).tensor("w", &foreign.w);
        launch.tensor("y", &mut y).launch().map(drop)
    })?;
    way(&mut || {
        let launch = op.on(&stream).tensor("x", &x).tensor("w", &foreign.w);
        launch.tensor("y", &mut foreign.y).launch().map(drop)
    })?;
    way(&mut || {
        let launch = pull.on(rank).tensor("x", &pulled).tensor("w", &w);
        launch.tensor("y", &mut y).launch().map(drop)
    })?;
    way(&mut || {
        let launch = pull.on(&stream).tensor("x", &pulled).tensor("w", &w);
        launch.tensor("y", &mut y).launch().map(drop)
    })?;
    way(&mut || graph.launch(&graphed).map(drop))?;
    way(&mut || {
        let step = rank.step(rank);
        // SAFETY: no kernel is launched.
        unsafe { step.launch(|_| Ok(())) }.map(drop)
    })
}

/// The driver's calls of the last of some launches.
fn last(queued: usize, launch: Launch<'_>) -> Result<Vec<Call>, Error> {
    let mut calls = Vec::new();
    for _ in 0..queued {
        let (launched, made) = asked(&mut *launch);
        launched?;
        calls = made;
    }
    Ok(calls)
}

/// A way to launch, measured on one rank.
struct Row {
    name: &'static str,
    bar: f64,
    /// What it takes.
    launch: Times,
    /// What the driver's calls of it take alone.
    driver: Times,
    /// Which they are, and how many.
    calls: (String, usize),
}

/// The time of these calls without anything around them.
fn alone(rank: &Communicator, raw: &Raw, queued: usize, calls: &[Call]) -> Result<Times, Error> {
    let mut again: Vec<_> = calls.iter().map(|call| raw.again(call)).collect();
    timed(rank, queued, || {
        again.iter_mut().for_each(|call| call());
        Ok(())
    })
}

/// Calls of the driver, each with what it takes alone.
type Calls = Vec<(String, Times)>;

/// Every way to launch, and each of the driver's calls in them alone.
fn measured(rank: &Communicator) -> Result<(Vec<Row>, Calls), Error> {
    let raw = Raw::new(rank)?;
    let mut rows = Vec::new();
    let mut each: BTreeMap<String, Times> = BTreeMap::new();
    every_way(rank, |way, launch| {
        let times = timed(rank, way.queued, &mut *launch)?;
        let calls = last(way.queued, launch)?;
        rank.synchronize()?;
        rank.barrier()?;
        rows.push(Row {
            name: way.name,
            bar: way.bar,
            launch: times,
            driver: alone(rank, &raw, way.queued, &calls)?,
            calls: (told(&calls), calls.len()),
        });
        for call in &calls {
            if let Entry::Vacant(new) = each.entry(call.told()) {
                new.insert(alone(
                    rank,
                    &raw,
                    QUEUED_COPIES,
                    std::slice::from_ref(call),
                )?);
            }
        }
        Ok(())
    })?;
    Ok((rows, each.into_iter().collect()))
}

/// A schedule whose data copy engines move.
pub fn pulling(rank: &Communicator) -> Result<Op, Error> {
    let [m, side] = SIZE;
    let schedule = schedules::ag_gemm_pull();
    let builder = rank.op(&schedule).dtype(Dtype::Bf16).up_to(m, side, side);
    let builder = builder.set("tiles", (128, 256)).first_options();
    rank.reserve((m * side * 8) as u64 + 4 * builder.workspace()?.heap + (16 << 20))?;
    builder.build()
}

/// The slowest rank's, row by row.
fn slowest<R>(ranks: Vec<Vec<R>>, median: impl Fn(&R) -> f64) -> Vec<R> {
    let mut ranks = ranks.into_iter();
    let mut rows = ranks.next().unwrap_or_default();
    for other in ranks {
        for (row, other) in rows.iter_mut().zip(other) {
            if median(&other) > median(row) {
                *row = other;
            }
        }
    }
    rows
}

#[test]
#[ignore = "a measurement: run it alone, --ignored --exact"]
fn the_cost_of_a_launch() {
    for world in both_ways(2).chain(both_ways(4)) {
        let ranks = fine(Communicator::each(&world.ranks, measured));
        let (rows, each): (Vec<_>, Vec<_>) = ranks.into_iter().unzip();
        println!(
            "  {}: host time in µs, median [p10, p90] of the slowest rank",
            world.told()
        );
        println!("  {:42} {:>24} {:>24}", "", "a rank alone", "all at once");
        for row in slowest(rows, |row| row.launch[0].median) {
            let ([alone, together], (calls, count)) = (row.launch, row.calls);
            println!("  {:42} {alone:>24} {together:>24}", row.name);
            let [alone, together] = row.driver;
            let exceeds = match alone.median > row.bar {
                true => "exceeds",
                false => "is within",
            };
            println!("    {:40} {alone:>24} {together:>24}", "the driver alone");
            let bar = row.bar;
            println!("    which {exceeds} {bar} µs: {count} calls, {calls}");
        }
        for (name, [alone, together]) in slowest(each, |(_, times)| times[0].median) {
            println!("  {name:42} {alone:>24} {together:>24}");
        }
    }
}

/// Each call of the driver costs a good part of a microsecond, so a launch makes none that it can do without.
#[test]
fn a_launch_asks_the_driver_for_what_it_needs_and_no_more() {
    for world in both_ways(2) {
        fine(Communicator::each(&world.ranks, |rank| {
            every_way(rank, |way, launch| {
                let calls = last(way.queued, launch)?;
                let names: Vec<&str> = calls.iter().map(|call| call.name.as_str()).collect();
                assert_eq!(names, way.asks, "{}", way.name);
                Ok(())
            })
        }));
    }
}
