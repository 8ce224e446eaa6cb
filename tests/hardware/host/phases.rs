//! Where the time of a launch in its rank's own order goes: between the driver's calls, and in each of them, beside the same
//! calls made raw in the same state of the queues. For raw calls to be as busy, they launch the same kernel: whoever replays
//! a graph does the same, and all ranks do it as often.

use super::driver::{Call, Stamp, mark, stamped};
use super::raw::{Raw, same};
use super::{BATCHES, QUEUED, Spread, every_way, last};
use crate::fine;
use crate::gpus::{World, both_ways};
use crate::op::{Operands, built};
use counterflow::{Communicator, Error, schedules};
use std::collections::BTreeMap;
use std::time::Instant;

/// What a call is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Ours,
    Same,
    Empty,
}

/// What is called one after another, and whether the streams are empty before each.
const ROWS: [(&str, &[Kind], bool); 6] = [
    ("launches of ours", &[Kind::Ours], false),
    ("the same kernel, raw", &[Kind::Same], false),
    (
        "ours and the same kernel, by turns",
        &[Kind::Ours, Kind::Same],
        false,
    ),
    ("an empty kernel, raw", &[Kind::Empty], false),
    ("ours, each when the GPU is idle", &[Kind::Ours], true),
    (
        "the same kernel, raw, each when the GPU is idle",
        &[Kind::Same],
        true,
    ),
];

/// A part of a call: its place among the parts, and what it is.
type Part = (Kind, usize, String);

/// The microseconds of each part, call by call, and of the first call of each batch.
#[derive(Default)]
struct Parts(BTreeMap<Part, Vec<f64>>);

impl Parts {
    /// Adds a call's: from its first mark to its last.
    fn add(&mut self, kind: Kind, first: bool, stamps: &[Stamp]) {
        let [start, calls @ .., end] = stamps else {
            panic!("a call has two marks");
        };
        let mut place = 0;
        let mut part = |name: String, from: Instant, to: Instant| {
            let took = to.duration_since(from).as_secs_f64() * 1e6;
            self.0.entry((kind, place, name)).or_default().push(took);
            place += 1;
        };
        let all = match first {
            true => "all of the first in a row",
            false => "all of it",
        };
        part(all.into(), start.to, end.from);
        if first {
            return;
        }
        let mut before = start.to;
        for call in calls {
            let name = call.name().expect("a call of the driver");
            part(format!("  until {name}"), before, call.from);
            part(format!("  {name}"), call.from, call.to);
            before = call.to;
        }
        part("  until the end".into(), before, end.from);
    }
}

/// The parts of one rank's calls in a row of the table. Only this rank calls meanwhile.
fn parts(
    rank: &Communicator,
    (kinds, idle, queued): (&[Kind], bool, usize),
    mut call: impl FnMut(Kind) -> Result<(), Error>,
) -> Result<Parts, Error> {
    let mut parts = Parts::default();
    let mut calls = |measured: bool| {
        let mut seen = Vec::with_capacity(queued);
        for _ in 0..queued {
            if idle {
                rank.synchronize()?;
            }
            let batch = || {
                for kind in kinds {
                    mark();
                    call(*kind)?;
                    mark();
                }
                Ok::<_, Error>(())
            };
            let (done, stamps) = stamped(64, batch);
            done?;
            seen.push(stamps);
        }
        for (at, stamps) in seen.iter().enumerate().filter(|_| measured) {
            // Between two marks there is one call.
            let mut stamps = &stamps[..];
            for kind in kinds {
                let mut marks = stamps.iter().enumerate().filter(|(_, one)| one.is_mark());
                let (end, _) = marks.nth(1).expect("a mark at the end");
                parts.add(*kind, at == 0, &stamps[..=end]);
                stamps = &stamps[end + 1..];
            }
        }
        Ok::<_, Error>(())
    };
    // The first is a warm-up.
    for batch in 0..=BATCHES {
        rank.synchronize()?;
        for turn in 0..rank.world() {
            rank.barrier()?;
            if turn == rank.rank() {
                calls(batch > 0)?;
            }
        }
    }
    rank.synchronize()?;
    rank.barrier()?;
    Ok(parts)
}

/// All rows of a rank.
fn measured(rank: &Communicator) -> Result<Vec<(&'static str, Parts)>, Error> {
    let op = built(rank, &schedules::ag_gemm())?;
    let Operands { x, w, mut y } = Operands::new(rank)?;
    let raw = Raw::new(rank)?;
    let mut ours = || {
        let launch = op.on(rank).tensor("x", &x).tensor("w", &w);
        launch.tensor("y", &mut y).launch().map(drop)
    };
    let calls = last(QUEUED, &mut ours)?;
    rank.synchronize()?;
    rank.barrier()?;
    let named = |name: &str| calls.iter().find(|call: &&Call| call.name == name);
    let mut select = raw.again(named(super::SELECT).expect("it selects the GPU"));
    let launch = named(super::LAUNCH).expect("it launches");
    let mut empty = raw.again(launch);
    // SAFETY: all ranks do the same below, and the tensors are there.
    let mut same = unsafe { same(launch) };
    let rows = ROWS
        .into_iter()
        .filter(|(_, _, idle)| !idle || rank.world() == 1);
    let rows = rows.map(|(name, kinds, idle)| {
        let row = parts(rank, (kinds, idle, QUEUED), |kind| {
            match kind {
                Kind::Ours => ours()?,
                Kind::Same => {
                    select();
                    same();
                }
                Kind::Empty => {
                    select();
                    empty();
                }
            }
            Ok(())
        });
        Ok((name, row?))
    });
    rows.collect()
}

/// A table: of each row its name, and what each rank measured.
fn print(world: &World, ranks: &[Vec<(&str, Parts)>]) {
    println!(
        "  {}: host time in µs, median [p10, p90], rank by rank",
        world.told()
    );
    for (row, (name, first)) in ranks[0].iter().enumerate() {
        println!("  {name}");
        for part in first.0.keys() {
            let (kind, _, what) = part;
            let whose = match kind {
                Kind::Ours => "ours",
                Kind::Same => "raw",
                Kind::Empty => "empty",
            };
            let of = |rank: &Vec<(&str, Parts)>| {
                let all = rank[row].1.0.get(part).cloned();
                Spread::of(all.unwrap_or_default()).to_string()
            };
            let spreads: Vec<String> = ranks.iter().map(of).collect();
            println!("    {whose:5} {what:34} {}", spreads.join("  "));
        }
    }
}

#[test]
#[ignore = "a measurement: run it alone, --ignored --exact"]
fn where_the_time_of_a_launch_goes() {
    for world in both_ways(1).chain(both_ways(2)) {
        print(&world, &fine(Communicator::each(&world.ranks, measured)));
    }
}

#[test]
#[ignore = "a measurement: run it alone, --ignored --exact"]
fn where_the_time_of_each_way_goes() {
    for world in both_ways(2) {
        let ranks = fine(Communicator::each(&world.ranks, |rank| {
            let mut rows = Vec::new();
            every_way(rank, |way, launch| {
                let row = parts(rank, (&[Kind::Ours], false, way.queued), |_| launch())?;
                rows.push((way.name, row));
                Ok(())
            })?;
            Ok(rows)
        }));
        print(&world, &ranks);
    }
}
