//! Random schedules with several free dimensions: what a series accepts never fails, whatever launches of it follow
//! each other.

use super::{interleave, lowered};
use crate::fixtures::wide::wide;
use counterflow_codegen::builder::*;
use counterflow_codegen::diag::Rule;
use counterflow_codegen::dtype::Dtype::Bf16;
use counterflow_codegen::machine::Machine;
use counterflow_codegen::plan::Plan;
use counterflow_codegen::program::Program;
use counterflow_codegen::shape::Shape;
use counterflow_codegen::verify::{self, Checked};
use counterflow_emulator::Numbers;

/// Numbers that a seed determines.
struct Draw(Numbers);

impl Draw {
    fn of(&mut self, count: u32) -> u32 {
        (self.0.draw() % u64::from(count)) as u32
    }

    fn rank(&mut self, world: u32) -> RankExpr {
        RankExpr::from(self.of(world) as i32)
    }
}

/// What tells the receiver of a chunk that it is there.
#[derive(Clone, Copy)]
enum Counted {
    /// A cell a chunk.
    Chunk(CountersRef),
    /// A cell a sender, whatever it sends.
    Sender(CountersRef),
    /// One cell for everything.
    One(CountersRef),
}

impl Counted {
    fn signal(self, s: &mut ScheduleBuilder, to: &RankExpr, p: Item) {
        match self {
            Counted::Chunk(cells) => s.signal(cells.on(to).at(p), 1),
            Counted::Sender(cells) => s.signal(cells.on(to).at(me()), 1),
            Counted::One(cells) => s.signal(cells.on(to), 1),
        }
    }

    fn wait(self, s: &mut ScheduleBuilder, from: &RankExpr, p: Item) {
        match self {
            Counted::Chunk(cells) => s.wait(cells.at(p)),
            Counted::Sender(cells) => s.wait(cells.at(from)),
            Counted::One(cells) => s.wait(cells),
        }
    }
}

/// Two gathers whose chunks tell of themselves in one of three ways, one sender perhaps in another way than the rest;
/// signals without data; and rows that go through scratch, or are left there.
fn schedule(draw: &mut Draw, world_size: u32) -> Program {
    let mut s = ScheduleBuilder::new("random");
    let tensors = [s.gathered("z1", Bf16), s.gathered("z2", Bf16)];
    let chunks = [
        s.chunks("of_z1", tensors[0], 2u32),
        s.chunks("of_z2", tensors[1], 2u32),
    ];
    let by_sender = s.counters("by_sender", [world().into()]);
    let one = s.counters("one", vec![]);
    let counted: Vec<Counted> = (0..2)
        .map(|which| {
            let by_chunk = s.counters(["by_z1", "by_z2"][which], [chunks[which].into()]);
            [
                Counted::Chunk(by_chunk),
                Counted::Chunk(by_chunk),
                Counted::Sender(by_sender),
                Counted::One(one),
            ][draw.of(4) as usize]
        })
        .collect();
    // One sender tells one receiver of one tensor by the one cell; one rank signals it for its chunks of the other.
    let (which, to) = (draw.of(2) as usize, draw.rank(world_size));
    let odd = (draw.of(2) == 0).then(|| (which, draw.rank(world_size), to.clone()));
    let pure = (draw.of(2) == 0).then(|| (1 - which, draw.rank(world_size), to));
    let scratch = s.symmetric("scratch", Bf16, tensors[0].whole(), world());
    let handed = s.counters("handed", [world().into(), chunks[0].into()]);
    let through = draw.of(12).saturating_sub(6);
    let is = |rank: &RankExpr, other: &RankExpr| Cond::compare(Comparison::Eq, rank, other);
    s.comm(2u32, |s| {
        for which in 0..2 {
            let (z, of, usual) = (tensors[which], chunks[which], counted[which]);
            s.for_ranks("peer", ranks().before_me(), |s, peer| {
                s.for_items("p", of.of(me()), |s, p| {
                    s.copy(z.on(&peer).at(p), z.at(p));
                    match &odd {
                        Some((at, from, to)) if *at == which => s.when_else(
                            is(&me(), from),
                            |s| {
                                s.when_else(
                                    is(&peer, to),
                                    |s| Counted::One(one).signal(s, &peer, p),
                                    |s| usual.signal(s, &peer, p),
                                );
                            },
                            |s| usual.signal(s, &peer, p),
                        ),
                        _ => usual.signal(s, &peer, p),
                    }
                });
            });
        }
        if let Some((which, from, to)) = &pure {
            s.when(is(&me(), from), |s| {
                s.for_items("q", chunks[*which].of(me()), |s, _| s.signal(one.on(to), 1));
            });
        }
        for which in 0..2 {
            s.for_ranks("shard", ranks().after_me(), |s, shard| {
                s.for_items("c", chunks[which].of(&shard), |s, c| match &odd {
                    Some((at, from, to)) if *at == which => s.when_else(
                        is(&shard, from),
                        |s| {
                            s.when_else(
                                is(&me(), to),
                                |s| Counted::One(one).wait(s, &shard, c),
                                |s| counted[which].wait(s, &shard, c),
                            );
                        },
                        |s| counted[which].wait(s, &shard, c),
                    ),
                    _ => counted[which].wait(s, &shard, c),
                });
            });
        }
    });
    if through > 0 {
        s.spare_warps(|s| {
            s.for_ranks("peer", ranks().after_me(), |s, peer| {
                s.for_items("c", chunks[0].of(me()), |s, c| {
                    let slot = if through == 4 {
                        RankExpr::from(0)
                    } else {
                        me()
                    };
                    s.copy(scratch.on(&peer).at(slot).at(c), z(&tensors, c));
                    s.signal(handed.on(&peer).at(me()).at(c), 1);
                });
            });
            // Left there, or read again; by whoever wrote a slot of its own, too.
            if through == 2 || through == 5 {
                s.for_items("c", chunks[0].of(me()), |s, c| {
                    s.copy(scratch.at(me()).at(c), z(&tensors, c));
                });
            }
            s.for_ranks("shard", ranks().after_me(), |s, shard| {
                s.for_items("c", chunks[0].of(&shard), |s, c| {
                    s.wait(handed.at(&shard).at(c))
                });
            });
        });
        if through >= 3 {
            s.copy_engine(|s| {
                s.for_ranks("shard", ranks().after_me(), |s, shard| {
                    s.for_items("c", chunks[0].of(&shard), |s, c| {
                        s.wait(handed.at(&shard).at(c));
                        s.copy(scratch.at(me()).at(c), scratch.at(&shard).at(c));
                    });
                });
            });
        }
    }
    s.finish()
}

fn z(tensors: &[TensorRef; 2], p: Item) -> PlaceRef {
    tensors[0].at(p)
}

fn shape(draw: &mut Draw, most: [u32; 3]) -> Shape {
    let [z1, z2, columns] = most.map(|most| 1 + draw.of(2) * draw.of(most));
    let shape = Shape::new(1, 8, 8).dim("z1.rows", z1).dim("z2.rows", z2);
    shape.dim("z1.columns", 8 * columns).dim("z2.columns", 8)
}

#[derive(Default, Debug)]
struct Tally {
    accepted: u32,
    refused: u32,
    not_schedules: u32,
}

/// The first series that is accepted and fails by that rule, or any, and how many were judged.
fn first_failure(cases: u64, mut last: impl FnMut(Rule) -> bool) -> (Option<String>, Tally) {
    let mut tally = Tally::default();
    for case in 0..cases {
        let mut draw = Draw(Numbers::new(case));
        let world = 2 + draw.of(3);
        let program = schedule(&mut draw, world);
        let most = [1 + draw.of(9), 1 + draw.of(9), 1 + draw.of(2)];
        let largest = Shape::new(1, 8, 8)
            .dim("z1.rows", most[0])
            .dim("z2.rows", most[1]);
        let largest = largest.dim("z1.columns", 8 * most[2]).dim("z2.columns", 8);
        let Ok(kernel) = lowered(&program, world) else {
            tally.not_schedules += 1;
            continue;
        };
        let Ok(series) = verify::series(&kernel, &largest, &Machine::h200()) else {
            tally.refused += 1;
            continue;
        };
        let plans: Vec<Checked<Plan>> = (0..8)
            .filter_map(|_| series.plan(&shape(&mut draw, most)).ok())
            .collect();
        tally.accepted += 1;
        if let Err(failure) = interleave(&series, &plans.iter().collect::<Vec<_>>(), 0..12)
            && last(failure.kind.rule())
        {
            let shapes: Vec<_> = plans.iter().map(|plan| plan.shape.to_string()).collect();
            let failed = format!("case {case}, world {world}, {shapes:?}: {failure}\n{program:#?}");
            return (Some(failed), tally);
        }
    }
    (None, tally)
}

#[test]
fn no_launches_of_an_accepted_series_fail() {
    let usual = if wide() { 600 } else { 150 };
    let cases = std::env::var("SERIES_CASES")
        .ok()
        .and_then(|text| text.parse().ok());
    let (failed, tally) = first_failure(cases.unwrap_or(usual), |_| true);
    println!("{tally:?}");
    assert!(failed.is_none(), "{}", failed.unwrap_or_default());
    assert!(tally.accepted * 5 > tally.refused, "{tally:?}");
}

#[cfg(debug_assertions)]
#[test]
fn without_the_rule_some_do() {
    use counterflow_codegen::undo::{Fix, undoing};
    let mut missing = vec![Rule::Reuse, Rule::Attribution];
    let both = |rule| {
        missing.retain(|of| *of != rule);
        missing.is_empty()
    };
    let (failed, tally) = undoing(Fix::Dimensions, || first_failure(2000, both));
    println!("{tally:?}\n{}", failed.as_deref().unwrap_or_default());
    assert!(failed.is_some(), "no failure of {missing:?}: {tally:?}");
}
