//! The verifier's honesty, on random schedules: what it accepts never fails in the emulator, under any interleaving;
//! what it rejects fails under some, or is counted as conservative under the rule's name.
//!
//! A schedule is drawn from a string of bytes, of which zero always means "as it should be", so that proptest shrinks
//! towards a library schedule. `RANDOM_CASES` and `RANDOM_SEEDS` widen the test.

use counterflow_codegen::builder::*;
use counterflow_codegen::diag::Rule;
use counterflow_codegen::dtype::Dtype::Bf16;
use counterflow_codegen::interp::{self, Failure, Options};
use counterflow_codegen::kernel::Kernel;
use counterflow_codegen::lower::lower;
use counterflow_codegen::model::Machine;
use counterflow_codegen::plan::Plan;
use counterflow_codegen::program::Program;
use counterflow_codegen::shape::Shape;
use counterflow_codegen::variant::{Arch, Variant};
use counterflow_codegen::verify;
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use std::cell::RefCell;
use std::collections::BTreeMap;

/// Decisions read off a string of bytes.
struct Draw<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Draw<'_> {
    fn byte(&mut self) -> usize {
        self.at += 1;
        self.bytes.get(self.at - 1).copied().map_or(0, usize::from)
    }

    fn of(&mut self, count: usize) -> usize {
        self.byte() % count
    }

    /// Whether something is to be wrong here: about one time in fourteen.
    fn wrong(&mut self) -> bool {
        self.byte() > 237
    }

    /// `right`, or now and then one of the others.
    fn mostly<T: Clone>(&mut self, right: T, others: &[T]) -> T {
        if self.wrong() {
            others[self.of(others.len())].clone()
        } else {
            right
        }
    }

    fn order(&mut self, right: Ranks) -> Ranks {
        let others = [
            ranks(),
            ranks().from_me(),
            ranks().after_me(),
            ranks().before_me(),
            ring(1),
            ring(2),
            ranks().after_me().but_last(1),
            ranks().by(|me, step, _| me ^ step),
            ranks().by(|me, step, world| (me * 2 + step) % world),
        ];
        self.mostly(right, &others)
    }

    fn rank(&mut self, right: RankExpr, peer: &RankExpr) -> RankExpr {
        let next = (me() + 1) % world();
        let before = (me() - 1) % world();
        self.mostly(
            right,
            &[
                me(),
                peer.clone(),
                next,
                before,
                me() ^ 1,
                RankExpr::from(0),
            ],
        )
    }
}

/// The statements of one hand-off, perhaps in a wrong order, perhaps without one of them.
fn shuffled<T>(draw: &mut Draw<'_>, mut parts: Vec<T>) -> Vec<T> {
    if draw.wrong() && parts.len() > 1 {
        let (a, b) = (draw.of(parts.len()), draw.of(parts.len()));
        parts.swap(a, b);
    }
    if draw.wrong() {
        let gone = draw.of(parts.len());
        parts.remove(gone);
    }
    parts
}

/// A loop under a role, to be put in some order.
type Loop = Box<dyn FnOnce(&mut ScheduleBuilder, &mut Draw<'_>)>;

type Part<'a> = Box<dyn FnOnce(&mut ScheduleBuilder) + 'a>;

fn all_gather(draw: &mut Draw<'_>, s: &mut ScheduleBuilder) {
    let (x, w) = (s.gathered("x", Bf16), s.local("w", Bf16));
    let accumulated = draw.of(3) == 1;
    let y = if accumulated {
        s.accumulated("y", Bf16)
    } else {
        s.out("y", Bf16)
    };
    let pieces = s.pieces("pieces", x, 2u32);
    let tiles = s.tiles("tiles", y, (3, 4));
    let arrived = s.counters("arrived", [pieces.into()]);
    let kind = draw.of(5);
    let next = (me() + 1) % world();
    let move_data = |s: &mut ScheduleBuilder, draw: &mut Draw<'_>| match kind {
        // Push, by comm CTAs or by idle warps.
        0 | 1 => s.for_ranks("peer", draw.order(ranks().before_me()), |s, peer| {
            let chunk = draw.rank(me(), &peer);
            s.for_items("p", pieces.of(chunk), |s, p| {
                let (to, whom) = (
                    draw.rank(peer.clone(), &peer),
                    draw.rank(peer.clone(), &peer),
                );
                let parts: Vec<Part<'_>> = vec![
                    Box::new(|s| s.copy(x.on(&to).at(p), x.at(p))),
                    Box::new(|s| s.signal(arrived.on(&whom).at(p), 1)),
                ];
                shuffled(draw, parts).into_iter().for_each(|part| part(s));
            });
        }),
        // Pull, by copy engine.
        2 => s.for_ranks("peer", draw.order(ranks().after_me()), |s, peer| {
            let chunk = draw.rank(peer.clone(), &peer);
            s.for_items("p", pieces.of(chunk), |s, p| {
                let (from, whom) = (draw.rank(peer.clone(), &peer), draw.rank(me(), &peer));
                let parts: Vec<Part<'_>> = vec![
                    Box::new(|s| s.copy(x.at(p), x.on(&from).at(p))),
                    Box::new(|s| s.signal(arrived.on(&whom).at(p), 1)),
                ];
                shuffled(draw, parts).into_iter().for_each(|part| part(s));
            });
        }),
        // Pass along a ring.
        3 => s.for_ranks("chunk", draw.order(ring(1).but_last(1)), |s, chunk| {
            s.for_items("p", pieces.of(&chunk), |s, p| {
                let (to, whom) = (
                    draw.rank(next.clone(), &chunk),
                    draw.rank(next.clone(), &chunk),
                );
                let parts: Vec<Part<'_>> = vec![
                    Box::new(|s| s.wait(arrived.at(p))),
                    Box::new(|s| s.copy(x.on(&to).at(p), x.at(p))),
                    Box::new(|s| s.signal(arrived.on(&whom).at(p), 1)),
                ];
                shuffled(draw, parts).into_iter().for_each(|part| part(s));
            });
        }),
        // Two hops: to my neighbour, who passes it to the rest.
        _ => {
            s.for_items("p", pieces.of(me()), |s, p| {
                s.when(Cond::compare(Comparison::Gt, world(), 1), |s| {
                    let parts: Vec<Part<'_>> = vec![
                        Box::new(|s| s.copy(x.on(&next).at(p), x.at(p))),
                        Box::new(|s| s.signal(arrived.on(&next).at(p), 1)),
                    ];
                    shuffled(draw, parts).into_iter().for_each(|part| part(s));
                });
            });
            let origin = (me() - 1) % world();
            s.for_items("p", pieces.of(&origin), |s, p| {
                if !draw.wrong() {
                    s.wait(arrived.at(p));
                }
                s.for_ranks("peer", draw.order(ranks().after_me()), |s, peer| {
                    s.when(Cond::compare(Comparison::Ne, &peer, &origin), |s| {
                        let parts: Vec<Part<'_>> = vec![
                            Box::new(|s| s.copy(x.on(&peer).at(p), x.at(p))),
                            Box::new(|s| s.signal(arrived.on(&peer).at(p), 1)),
                        ];
                        shuffled(draw, parts).into_iter().for_each(|part| part(s));
                    });
                });
            });
        }
    };
    match kind {
        1 => s.spare_warps(|s| move_data(s, draw)),
        2 => s.copy_engine(|s| move_data(s, draw)),
        _ => s.comm(2u32, |s| move_data(s, draw)),
    }
    s.gemm(GemmOptions::default(), |s| {
        s.for_ranks("chunk", draw.order(ranks().from_me()), |s, chunk| {
            s.for_items("t", tiles.of(&chunk).grouped(2), |s, t| {
                let target = draw.mostly(None, &[Some(1), Some(2)]);
                let wait = move |s: &mut ScheduleBuilder| match target {
                    None => s.wait(arrived.at(t.rows())),
                    Some(n) => s.wait_at_least(arrived.at(t.rows()), n),
                };
                let adds = draw.mostly(accumulated, &[true, false]);
                let times = draw.mostly(1, &[1, 2]);
                let multiply = move |s: &mut ScheduleBuilder| {
                    let acc = s.dot(x.at(t), w.at(t));
                    for _ in 0..times {
                        if adds {
                            s.store_add(y.at(t), acc.clone());
                        } else {
                            s.store(y.at(t), acc.clone());
                        }
                    }
                };
                let parts: Vec<Part<'_>> = vec![Box::new(wait), Box::new(multiply)];
                shuffled(draw, parts).into_iter().for_each(|part| part(s));
            });
        });
    });
}

fn in_order(items: ItemsRef, order: usize) -> ItemsRef {
    match order {
        0 => items.row_major(),
        1 => items.grouped(2u32),
        _ => items.column_major(),
    }
}

fn reduce_scatter(draw: &mut Draw<'_>, s: &mut ScheduleBuilder, everywhere: bool) {
    let (x, w) = (s.local("x", Bf16), s.local("w", Bf16));
    let y = if everywhere {
        s.reduced("y", Bf16)
    } else {
        s.scattered("y", Bf16)
    };
    let tiles = s.tiles("tiles", y, (3, 4));
    let partial = s.symmetric("partial", Bf16, y.chunk(), world());
    let axes = if draw.wrong() {
        vec![tiles.into()]
    } else {
        vec![world().into(), tiles.into()]
    };
    let shared = axes.len() == 1;
    let landed = s.counters("landed", axes);
    let done = s.counters("done", [tiles.into()]);
    let mut loops: Vec<Loop> = vec![
        Box::new(move |s, draw| {
            s.for_ranks("owner", draw.order(ranks().after_me()), |s, owner| {
                let order = draw.of(3);
                s.for_items("t", in_order(tiles.of(&owner), order), |s, t| {
                    let slot = draw.rank(me(), &owner);
                    let cell = draw.rank(me(), &owner);
                    let acc = s.dot(x.at(t), w.at(t));
                    let cells = landed.on(&owner);
                    let cells = if shared {
                        cells.at(t)
                    } else {
                        cells.at(cell).at(t)
                    };
                    let parts: Vec<Part<'_>> = vec![
                        Box::new(|s| s.store(partial.on(&owner).at(slot).at(t), acc)),
                        Box::new(|s| s.signal(cells, 1)),
                    ];
                    shuffled(draw, parts).into_iter().for_each(|part| part(s));
                });
            });
        }),
        Box::new(move |s, draw| {
            let order = draw.of(3);
            s.for_items("t", in_order(tiles.of(me()), order), |s, t| {
                let mine = s.dot(x.at(t), w.at(t));
                let who = draw.mostly(others(), &[everyone()]);
                let cells = if shared {
                    landed.at(t)
                } else {
                    landed.at(who.clone()).at(t)
                };
                let late = draw.wrong();
                if !late {
                    s.wait(cells.clone());
                }
                let theirs = s.sum(partial.at(who).at(t));
                if late && !draw.wrong() {
                    s.wait(cells);
                }
                let sum = if draw.wrong() { theirs } else { mine + theirs };
                s.store(y.at(t), sum.clone());
                if everywhere {
                    s.for_ranks("peer", draw.order(ranks().after_me()), |s, peer| {
                        let parts: Vec<Part<'_>> = vec![
                            Box::new(|s| s.store(y.on(&peer).at(t), sum)),
                            Box::new(|s| s.signal(done.on(&peer).at(t), 1)),
                        ];
                        shuffled(draw, parts).into_iter().for_each(|part| part(s));
                    });
                }
            });
        }),
    ];
    if draw.wrong() {
        loops.swap(0, 1);
    }
    s.gemm(GemmOptions::default(), |s| {
        loops.into_iter().for_each(|part| part(s, draw))
    });
    // A second role that takes part: it sees to it that the sums have come before the launch ends.
    s.spare_warps(|s| {
        if everywhere {
            s.for_ranks("owner", draw.order(ranks().after_me()), |s, owner| {
                s.for_items("t", tiles.of(&owner), |s, t| s.wait(done.at(t)));
            });
        } else {
            s.for_items("t", tiles.of(me()), |s, t| {
                let cells = if shared {
                    landed.at(t)
                } else {
                    landed.at(others()).at(t)
                };
                s.wait(cells);
            });
        }
    });
}

fn reduce_add(draw: &mut Draw<'_>, s: &mut ScheduleBuilder) {
    let (x, w, y) = (
        s.local("x", Bf16),
        s.local("w", Bf16),
        s.scattered("y", Bf16),
    );
    let tiles = s.tiles("tiles", y, (3, 4));
    let one_cell = draw.wrong();
    let begun = s.counters("begun", if one_cell { vec![] } else { vec![tiles.into()] });
    let landed = s.counters("landed", [world().into(), tiles.into()]);
    s.gemm(GemmOptions::default(), |s| {
        s.for_items("t", tiles.of(me()), |s, t| {
            let acc = s.dot(x.at(t), w.at(t));
            let order = draw.order(ranks().after_me());
            let parts: Vec<Part<'_>> = vec![
                Box::new(|s| s.store(y.at(t), acc)),
                Box::new(|s| {
                    s.for_ranks("peer", order, |s, peer| {
                        let cells = begun.on(&peer);
                        s.signal(if one_cell { cells } else { cells.at(t) }, 1);
                    });
                }),
            ];
            shuffled(draw, parts).into_iter().for_each(|part| part(s));
        });
        s.for_ranks("owner", draw.order(ranks().after_me()), |s, owner| {
            s.for_items("t", tiles.of(&owner), |s, t| {
                let acc = s.dot(x.at(t), w.at(t));
                let replace = draw.wrong();
                let parts: Vec<Part<'_>> = vec![
                    Box::new(|s| {
                        if one_cell {
                            s.wait(begun)
                        } else {
                            s.wait(begun.at(t))
                        }
                    }),
                    Box::new(|s| match replace {
                        false => s.store_add(y.on(&owner).at(t), acc),
                        true => s.store(y.on(&owner).at(t), acc),
                    }),
                    Box::new(|s| s.signal(landed.on(&owner).at(me()).at(t), 1)),
                ];
                shuffled(draw, parts).into_iter().for_each(|part| part(s));
            });
        });
    });
    s.spare_warps(|s| {
        s.for_items("t", tiles.of(me()), |s, t| {
            let who = draw.mostly(others(), &[everyone()]);
            s.wait(landed.at(who).at(t));
        });
    });
}

/// Statements on scratch with no plan at all, beside a sound gather.
fn soup(draw: &mut Draw<'_>, s: &mut ScheduleBuilder) {
    let x = s.gathered("x", Bf16);
    let pieces = s.pieces("pieces", x, 2u32);
    let arrived = s.counters("arrived", [pieces.into()]);
    let scratch = s.symmetric("scratch", Bf16, x.whole(), world());
    let handed = s.counters("handed", [world().into(), pieces.into()]);
    s.comm(2u32, |s| {
        s.for_ranks("peer", ranks().before_me(), |s, peer| {
            s.for_items("p", pieces.of(me()), |s, p| {
                s.copy(x.on(&peer).at(p), x.at(p));
                s.signal(arrived.on(&peer).at(p), 1);
            });
        });
    });
    let some = |draw: &mut Draw<'_>, s: &mut ScheduleBuilder| {
        for _ in 0..1 + draw.of(2) {
            let order = draw.order(ranks().after_me());
            s.for_ranks("peer", order, |s, peer| {
                let chunk = draw.rank(me(), &peer);
                s.for_items("p", pieces.of(chunk), |s, p| {
                    for _ in 0..1 + draw.of(4) {
                        let (rank, slot) = (draw.rank(peer.clone(), &peer), draw.rank(me(), &peer));
                        match draw.of(6) {
                            0 | 1 => s.copy(scratch.on(rank).at(slot).at(p), x.at(p)),
                            2 => s.copy(
                                scratch.at(slot.clone()).at(p),
                                scratch.on(rank).at(slot).at(p),
                            ),
                            3 => s.wait(handed.at(slot).at(p)),
                            4 => s.wait(arrived.at(p)),
                            _ => s.signal(handed.on(rank).at(slot).at(p), 1),
                        }
                    }
                });
            });
        }
    };
    s.spare_warps(|s| {
        s.for_ranks("chunk", ranks().after_me(), |s, chunk| {
            s.for_items("p", pieces.of(&chunk), |s, p| s.wait(arrived.at(p)));
        });
        some(draw, s);
    });
    s.comm(2u32, |s| some(draw, s));
}

fn schedule(bytes: &[u8]) -> (Program, u32, u32) {
    let mut draw = Draw { bytes, at: 0 };
    let world = [3, 2, 4, 5][draw.of(4)];
    let m = 1 + draw.of(13) as u32;
    let mut s = ScheduleBuilder::new("random");
    match draw.of(8) {
        0..=2 => all_gather(&mut draw, &mut s),
        3 | 4 => reduce_scatter(&mut draw, &mut s, false),
        5 => reduce_scatter(&mut draw, &mut s, true),
        6 => reduce_add(&mut draw, &mut s),
        _ => soup(&mut draw, &mut s),
    }
    (s.finish(), world, m)
}

#[derive(Default, Debug)]
struct Tally {
    accepted: u32,
    explored: u32,
    runs: u32,
    rejected: u32,
    unplaced: u32,
    provoked: BTreeMap<&'static str, u32>,
    conservative: BTreeMap<&'static str, u32>,
}

/// Two launches of `m` rows and one of fewer between them, so that scratch is reused under another shape.
fn plans(kernel: &Kernel, m: u32) -> Result<Vec<Plan>, counterflow_codegen::diag::Diagnostics> {
    let shape = |m: u32, most: u32| Shape::new(m, 8, 8).dim("x.columns", 8).up_to(most);
    let shape = |m: u32, most: u32| {
        let mut shape = shape(m, most);
        // Only schedules without a dot name the gathered tensor's sizes themselves.
        shape
            .dims
            .retain(|name, _| kernel.dims.iter().any(|dim| dim.name == *name));
        shape
    };
    [m, m.div_ceil(2), m]
        .into_iter()
        .map(|rows| Plan::new(kernel, &shape(rows, m), &Machine::h200()))
        .collect()
}

fn provoke(kernel: &Kernel, plans: &[Plan], seeds: std::ops::Range<u64>) -> Result<u32, Failure> {
    let launches: Vec<Vec<&Plan>> = plans.iter().map(|plan| vec![plan]).collect();
    let mut runs = 0;
    for seed in seeds {
        let options = Options {
            step_limit: 1 << 20,
            ..Options::seed(seed)
        }
        .tags_only();
        interp::provoke(kernel, &launches, &options, |_, _| {})?;
        runs += 1;
    }
    Ok(runs)
}

fn environment(name: &str, default: u32) -> u32 {
    std::env::var(name)
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(default)
}

/// One random schedule, judged and run.
fn examine(bytes: &[u8], seeds: u64, tally: &mut Tally) -> Result<(), TestCaseError> {
    let (program, world, m) = schedule(bytes);
    let lowered = lower(&program, &Variant::new(world).arch(Arch::Cpu));
    let Ok(kernel) = lowered else {
        tally.unplaced += 1;
        return Ok(());
    };
    let Ok(plans) = plans(&kernel, m) else {
        // Bounds: a rank or slot that does not exist cannot even be unrolled.
        tally.rejected += 1;
        *tally.provoked.entry(Rule::Bounds.name()).or_default() += 1;
        return Ok(());
    };
    let mut found = verify::kernel_findings(&kernel);
    for plan in &plans {
        found.extend(verify::plan_findings(&kernel, plan, None));
    }
    // A series may look at one column of tiles only, and at more than these launches.
    let series = verify::kernel(kernel.clone())
        .and_then(|kernel| verify::series(&kernel, &plans[0].shape, &Machine::h200()));
    let planned = series.and_then(|series| {
        let plans = plans.iter().map(|plan| series.plan(&plan.shape));
        plans.collect::<Result<Vec<_>, _>>()
    });
    match planned {
        Ok(planned) => {
            prop_assert!(found.is_empty(), "a series of what the rules refuse");
            for (checked, plan) in planned.iter().zip(&plans) {
                prop_assert_eq!(&*checked.arrivals, &*plan.arrivals);
            }
        }
        Err(refused) => found.push(refused.first().clone()),
    }
    match found.first() {
        None => {
            tally.accepted += 1;
            let runs = provoke(&kernel, &plans, 0..seeds);
            let runs = runs.map_err(|failure| {
                TestCaseError::fail(format!("accepted, but: {failure}\n{program:#?}"))
            })?;
            tally.runs += runs;
            if world == 2 && kernel.roles.len() == 2 && m <= 4 {
                let launches: Vec<Vec<&Plan>> = plans[..2].iter().map(|plan| vec![plan]).collect();
                let walk = interp::provoke_all(&kernel, &launches, 1, 50_000);
                let walk = walk
                    .map_err(|failure| TestCaseError::fail(format!("accepted, but: {failure}")))?;
                tally.explored += u32::from(walk.complete);
            }
        }
        Some(first) => {
            tally.rejected += 1;
            let name = first.rule.name();
            let failed = provoke(&kernel, &plans, 0..seeds.max(40)).is_err();
            let list = if failed {
                &mut tally.provoked
            } else {
                &mut tally.conservative
            };
            *list.entry(name).or_default() += 1;
            if !failed && std::env::var("RANDOM_SHOW").is_ok() {
                println!("conservative: world {world}, m {m}: {first}");
            }
        }
    }
    Ok(())
}

#[test]
fn accepted_schedules_never_fail_and_rejected_ones_do() {
    let cases = environment("RANDOM_CASES", 1500);
    let seeds = u64::from(environment("RANDOM_SEEDS", 16));
    let config = Config {
        cases,
        max_shrink_iters: 2000,
        failure_persistence: None,
        ..Config::default()
    };
    let rng = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
    let tally = RefCell::new(Tally::default());
    let bytes = proptest::collection::vec(any::<u8>(), 24..120);
    let result = TestRunner::new_with_rng(config, rng).run(&bytes, |bytes| {
        examine(&bytes, seeds, &mut tally.borrow_mut())
    });
    let tally = tally.into_inner();
    let judged = tally.accepted + tally.rejected;
    let conservative: u32 = tally.conservative.values().sum();
    println!(
        "{judged} schedules judged: {} accepted ({} runs without a failure, {} walked exhaustively), {} rejected: \
         {:?} fail when run, {:?} do not ({:.1} % of the rejected are conservative); {} more were not schedules",
        tally.accepted,
        tally.runs,
        tally.explored,
        tally.rejected,
        tally.provoked,
        tally.conservative,
        100.0 * f64::from(conservative) / f64::from(tally.rejected.max(1)),
        tally.unplaced,
    );
    if let Err(error) = result {
        panic!("{error}");
    }
    assert!(
        tally.accepted * 5 >= judged,
        "a fifth must be accepted: {tally:?}"
    );
    assert!(
        tally.rejected * 5 >= judged,
        "a fifth must be rejected: {tally:?}"
    );
}
