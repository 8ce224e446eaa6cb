//! Warps keep the order of an item's statements, also where no signal of the small case shows it: which signals a wait joins
//! with may be arithmetic over ranks, which comes to something else in a larger world.

use crate::fixtures::strangers::slots::acknowledged_in_turn;
use crate::fixtures::strangers::{Gather, far_cells};
use crate::fixtures::wide::sampled;
use counterflow_codegen::builder::*;
use counterflow_codegen::diag::{Diagnostics, Rule};
use counterflow_codegen::dtype::Dtype::{Bf16, E4M3};
use counterflow_codegen::kernel::Kernel;
use counterflow_codegen::lower::lower;
use counterflow_codegen::program::Program;
use counterflow_codegen::rule::{Fp8, ScaleRule as Fp8Rule};
use counterflow_codegen::sm90;
use counterflow_codegen::variant::Variant;
use counterflow_codegen::verify;
use counterflow_codegen::warp::{Node, Pipeline};

fn built(program: &Program, world: u32) -> Pipeline {
    let kernel = lower(program, &Variant::new(world)).and_then(verify::kernel);
    let kernel = kernel.unwrap_or_else(|error| panic!("{error}"));
    sm90::build(&kernel).unwrap_or_else(|error| panic!("{error}"))
}

fn first(found: &Diagnostics) -> String {
    found.first().text(&|_| String::new())
}

/// Tiles wait for a flag, too, behind which nobody writes anything.
fn flagged() -> Program {
    let mut s = ScheduleBuilder::new("flagged");
    let gather = Gather::new(&mut s);
    let (w, y) = (s.local("w", Bf16), s.out("y", Bf16));
    let tiles = s.tiles("tiles", y, (128, 256));
    let flag = s.counters("flag", [world().into()]);
    s.comm(2u32, |s| {
        s.for_ranks("peer", ranks().before_me(), |s, peer| {
            s.signal(flag.on(&peer).at(me()), 1);
            gather.push(s, &peer);
        });
    });
    s.gemm(GemmOptions::default(), |s| {
        s.for_ranks("shard", ranks().from_me(), |s, shard| {
            s.for_items("t", tiles.of(&shard), |s, t| {
                s.wait(flag.at((&shard + 1) % world()));
                s.wait(gather.arrived.at(t.rows()));
                let product = s.dot(gather.x.at(t), w.at(t));
                s.store(y.at(t), product);
            });
        });
    });
    s.finish()
}

#[test]
fn a_wait_that_guards_nothing_in_the_small_case_is_kept() {
    verify::pipeline(built(&flagged(), 4)).unwrap_or_else(|error| panic!("{error}"));
    let mut pipeline = built(&flagged(), 4);
    let mut gone = 0;
    let kernel = pipeline.kernel.clone();
    pipeline.lists(&mut |list| {
        list.retain(|node| {
            let waits = matches!(node, Node::CounterWait { counter, .. }
                if kernel.counters[counter.index()].name == "flag");
            gone += u32::from(waits);
            !waits
        });
    });
    assert!(gone > 0, "nothing to leave out");
    let found = verify::pipeline(pipeline).expect_err("refused");
    assert_eq!(found.first().rule, Rule::Race);
    let told = first(&found);
    assert!(told.contains("the schedule waits for flag["), "{told}");
}

/// A product and a sum over the others: with this rank's own term, and, in FP8, without.
fn summing(shift: i64, world: u32) -> [Pipeline; 2] {
    let variant = Variant::new(world);
    let codes = (variant.clone()).quantised_reduction(Fp8Rule::transformer_engine(Fp8::E4M3));
    [variant, codes].map(|variant| {
        let kernel = lower(&far_cells(shift), &variant).and_then(verify::kernel);
        let kernel = kernel.unwrap_or_else(|error| panic!("{error}"));
        sm90::build(&kernel).unwrap_or_else(|error| panic!("{error}"))
    })
}

/// Loads of a slot before its own cell was waited for: nobody else's cell may stand for it.
#[test]
fn a_slot_is_loaded_behind_its_own_wait() {
    for (shift, world) in [(0, 3), (2, 3), (0, 12)] {
        for pipeline in summing(shift, world) {
            verify::pipeline(pipeline).unwrap_or_else(|error| panic!("{error}"));
        }
    }
}

/// The loops over slots of a sum, the loads of which come from `partial`: how many, and how many of them wait, too.
fn loops_over_slots(pipeline: &Pipeline) -> (usize, usize) {
    let (mut loads, mut waits) = (0, 0);
    pipeline.visit(|node| {
        let Node::Others { .. } = node else { return };
        let (mut loaded, mut waited) = (false, false);
        node.visit(&mut |node| {
            loaded |= matches!(node, Node::Load { .. });
            waited |= matches!(node, Node::CounterWait { .. });
        });
        loads += usize::from(loaded);
        waits += usize::from(loaded && waited);
    });
    (loads, waits)
}

/// A sum that is made a subtile at a time comes to each slot once a subtile, so it waits for all of them before. Another one
/// waits for a slot and loads all of it.
#[test]
fn a_sum_with_an_own_term_waits_for_all_slots_before_it_loads_one() {
    let [mut pipeline, codes] = summing(0, 4);
    assert_eq!(loops_over_slots(&codes), (1, 1));
    assert_eq!(loops_over_slots(&pipeline), (1, 0));
    let mut moved = 0;
    pipeline.lists(&mut |list| {
        let within = |node: &Node, of: fn(&Node) -> bool| {
            let mut found = false;
            node.visit(&mut |node| found |= of(node));
            found
        };
        let waits = list.iter().position(|node| {
            matches!(node, Node::Others { .. })
                && within(node, |node| matches!(node, Node::CounterWait { .. }))
        });
        if let Some(waits) = waits {
            let loads = list[waits..].iter().position(|node| {
                within(node, |node| matches!(node, Node::Others { .. }))
                    && within(node, |node| matches!(node, Node::Load { .. }))
            });
            let node = list.remove(waits);
            list.insert(waits + loads.expect("loads behind the waits"), node);
            moved += 1;
        }
    });
    assert_eq!(moved, 1, "one role waits");
    let found = verify::pipeline(pipeline).expect_err("loads, then waits");
    assert_eq!(found.first().rule, Rule::Race, "{found}");
}

/// y = reduce_scatter(hidden · downᵀ) behind hidden = x · upᵀ. Its second products wait for a flag, too, and store to peers.
fn two_layers() -> Program {
    let mut s = ScheduleBuilder::new("two_layers");
    let [x, up, down] = ["x", "up", "down"].map(|name| s.local(name, Bf16));
    let (y, hidden) = (s.reduce_scattered("y", Bf16), s.scratch("hidden", Bf16));
    let tiles = s.tiles("tiles", y, (128, 64));
    let hidden_tiles = s.tiles_like("hidden_tiles", hidden, tiles);
    let rows = s.chunks("rows", hidden, 128);
    let ready = s.counters("ready", [rows.into()]);
    let flag = s.counters("flag", [world().into()]);
    let partial = s.symmetric("partial", Bf16, y.shard(), world());
    let landed = s.counters("landed", [world().into(), tiles.into()]);
    s.gemm(GemmOptions::default(), |s| {
        s.for_ranks("shard", ranks().from_me(), |s, shard| {
            s.for_items("t", hidden_tiles.of(&shard), |s, t| {
                let product = s.dot(x.at(t), up.at(t));
                s.store(hidden.at(t), product);
                s.signal(ready.at(t.rows()), 1);
                s.signal(flag.on(&shard).at(me()), 1);
            });
        });
        s.for_ranks("owner", ranks().after_me(), |s, owner| {
            s.for_items("t", tiles.of(&owner), |s, t| {
                s.wait(ready.at(t.rows()));
                s.wait(flag.at((&owner + 1) % world()));
                let product = s.dot(hidden.at(t), down.at(t));
                s.store(partial.on(&owner).at(me()).at(t), product);
                s.signal(landed.on(&owner).at(me()).at(t), 1);
            });
        });
        s.for_items("t", tiles.of(me()), |s, t| {
            s.wait(ready.at(t.rows()));
            let mine = s.dot(hidden.at(t), down.at(t));
            s.wait(landed.at(others()).at(t));
            let theirs = s.sum(partial.at(others()).at(t));
            s.store(y.at(t), mine + theirs);
        });
    });
    s.finish()
}

/// Where the wait for a counter stands in a node's body.
fn wait_in(kernel: &Kernel, name: &str, node: &mut Node) -> Option<usize> {
    node.body_mut()?.iter().position(|node| {
        matches!(node, Node::CounterWait { counter, .. }
            if kernel.counters[counter.index()].name == name)
    })
}

/// Where a product has one step, no arrival of a later one says what its loader waited for, and the completion of the load says
/// nothing of it: the loader arrives for a step behind its waits.
#[test]
fn a_product_of_one_step_comes_after_the_waits_before_it() {
    for dtype in [Bf16, E4M3] {
        let variant = Variant::new(3).dtype(dtype);
        let pipeline = || {
            let kernel = lower(&two_layers(), &variant).and_then(verify::kernel);
            let kernel = kernel.unwrap_or_else(|error| panic!("{dtype}: {error}"));
            sm90::build(&kernel).unwrap_or_else(|error| panic!("{dtype}: {error}"))
        };
        verify::pipeline(pipeline()).unwrap_or_else(|error| panic!("{dtype}: {error}"));

        // Before the wait the arrival tells nobody of it. Behind the loads of the step the wait comes before nothing.
        let moves: [fn(&mut Vec<Node>, usize, usize); 2] = [
            |step, waits, _| {
                let arrival = |node: &Node| matches!(node, Node::Expect { .. });
                let arrival = step.iter().position(arrival).expect("an arrival");
                assert!(waits < arrival, "the arrival is behind the wait");
                let arrival = step.remove(arrival);
                step.insert(waits, arrival);
            },
            |step, waits, flag| {
                step.push(step[waits].clone());
                step[waits].body_mut().expect("waits").remove(flag);
            },
        ];
        for moves in moves {
            let mut wrong = pipeline();
            let kernel = wrong.kernel.clone();
            let mut moved = 0;
            wrong.lists(&mut |step| {
                let mut nodes = step.iter_mut().enumerate();
                let waits =
                    nodes.find_map(|(at, node)| Some((at, wait_in(&kernel, "flag", node)?)));
                if let Some((waits, flag)) = waits {
                    moves(step, waits, flag);
                    moved += 1;
                }
            });
            assert_eq!(moved, 1, "one wait for the flag");
            let found = verify::pipeline(wrong).expect_err("refused");
            let told = first(&found);
            assert!(told.contains("the schedule waits for "), "{told}");
        }
    }
}

/// A rank that has read a slot says so. In the small case nobody builds on it.
fn acknowledged() -> Program {
    let mut s = ScheduleBuilder::new("acknowledged");
    let (x, w) = (s.local("x", Bf16), s.local("w", Bf16));
    let y = s.reduce_scattered("y", Bf16);
    let tiles = s.tiles("tiles", y, (128, 256));
    let partial = s.symmetric("partial", Bf16, y.shard(), world());
    let landed = s.counters("landed", [world().into(), tiles.into()]);
    let read = s.counters("read", [world().into()]);
    s.gemm(GemmOptions::default(), |s| {
        s.for_ranks("owner", ranks().after_me(), |s, owner| {
            s.for_items("t", tiles.of(&owner), |s, t| {
                let product = s.dot(x.at(t), w.at(t));
                s.store(partial.on(&owner).at(me()).at(t), product);
                s.signal(landed.on(&owner).at(me()).at(t), 1);
            });
        });
        s.for_items("t", tiles.of(me()), |s, t| {
            let mine = s.dot(x.at(t), w.at(t));
            s.wait(landed.at(others()).at(t));
            let theirs = s.sum(partial.at(others()).at(t));
            s.store(y.at(t), mine + theirs);
            s.for_ranks("from", ranks().after_me(), |s, from| {
                s.signal(read.on(&from).at(me()), 1);
            });
        });
    });
    s.spare_warps(|s| s.wait(read.at(others())));
    s.finish()
}

/// The signal that the reader is done comes before the store of its item is complete: nobody reads what is stored there.
#[test]
fn a_signal_that_nobody_builds_on_in_the_small_case_comes_after_what_stands_before_it() {
    verify::pipeline(built(&acknowledged(), 4)).unwrap_or_else(|error| panic!("{error}"));
    let mut pipeline = built(&acknowledged(), 4);
    let mut early = 0;
    let kernel = pipeline.kernel.clone();
    pipeline.lists(&mut |list| {
        let signals = |node: &Node| {
            let (mut found, mut items) = (false, false);
            node.visit(&mut |node| {
                items |= matches!(node, Node::Items { .. });
                found |= matches!(node, Node::CounterAdd { counter, .. }
                    if kernel.counters[counter.index()].name == "read");
            });
            found && !items
        };
        let stores = list
            .iter()
            .position(|node| matches!(node, Node::AwaitStores { .. }));
        if let (Some(stores), true) = (stores, list.iter().any(signals)) {
            list.remove(stores);
            early += 1;
        }
    });
    assert_eq!(early, 1, "one item signals `read`");
    let found = verify::pipeline(pipeline).expect_err("refused");
    let told = first(&found);
    assert!(
        told.contains("which stands before the signal in its item"),
        "{told}"
    );
}

/// Two branches in one item, both of which only ranks from `from` on take.
fn both_from(from: i64) -> Program {
    let mut s = ScheduleBuilder::new("both");
    let (x, w, y) = (s.local("x", Bf16), s.local("w", Bf16), s.out("y", Bf16));
    let tiles = s.tiles("tiles", y, (128, 256));
    let told = s.counters("told", [2.into()]);
    let by = |rank: i64| {
        let far = Cond::compare(Comparison::Ge, me(), from);
        Cond::compare(Comparison::Eq, me(), rank).or(far)
    };
    s.gemm(GemmOptions::default(), |s| {
        s.for_items("t", tiles.all(), |s, t| {
            let product = s.dot(x.at(t), w.at(t));
            s.when_else(
                by(0),
                |s| s.store(y.at(t), product.clone().relu()),
                |s| s.store(y.at(t), product.clone()),
            );
            s.when(by(1), |s| s.signal(told.on(me()).at(0), 1));
        });
    });
    s.finish()
}

#[test]
fn a_combination_of_branches_is_tried_where_a_rank_takes_it() {
    for (from, world) in [(8, 8), (8, 12), (16, 16)] {
        verify::pipeline(built(&both_from(from), world))
            .unwrap_or_else(|error| panic!("from {from} for {world}: {error}"));
    }
    let found = verify::pipeline(built(&both_from(16), 32)).expect_err("refused");
    insta::assert_snapshot!(first(&found), @"
    error[resources]: this has no kernel together with the other branches of its item: all warps are tried for at most 16 ranks, and none of those takes these branches in one item
      help: let a rank do it in a world of 2 to 16, or put the branches into loops of their own
    ");
}

/// In worlds of 9 and more its last rank signals to a rank that is not there. The tile level refuses every launch of it.
fn out_of_bounds_in_large_worlds() -> Program {
    let mut s = ScheduleBuilder::new("far");
    let (x, w, y) = (s.local("x", Bf16), s.local("w", Bf16), s.out("y", Bf16));
    let tiles = s.tiles("tiles", y, (128, 256));
    let (told, far) = (
        s.counters("told", [2.into()]),
        s.counters("far", [2.into()]),
    );
    let by = |rank: i64| {
        let far = Cond::compare(Comparison::Ge, me(), 8);
        Cond::compare(Comparison::Eq, me(), rank).or(far)
    };
    s.gemm(GemmOptions::default(), |s| {
        s.for_items("t", tiles.all(), |s, t| {
            let product = s.dot(x.at(t), w.at(t));
            s.store(y.at(t), product);
            s.when(by(0), |s| s.signal(told.on(me()).at(0), 1));
            s.when(by(1), |s| s.signal(told.on(me()).at(1), 1));
        });
        s.for_items("last", tiles.all().skip(2), |s, _| {
            s.signal(far.on(me() + world() / 9).at(0), 1);
        });
    });
    s.finish()
}

/// Where nothing can be said of the items of the kernel's own world, nothing says that the cases do all that they do.
#[test]
fn combinations_of_branches_that_cannot_be_listed_are_refused() {
    let program = out_of_bounds_in_large_worlds();
    verify::pipeline(built(&program, 8)).unwrap_or_else(|error| panic!("{error}"));
    let found = verify::pipeline(built(&program, 12)).expect_err("refused");
    insta::assert_snapshot!(first(&found), @"
    error[resources]: the branches that items take in a world of 12 cannot be listed: `me + world / 9` is rank 12 on rank 11, but in a world of 12 ranks end at 11
      help: make the schedule legal for any number of tiles: `check --worlds .. --rows ..` of the tool says where it is not
    ");
}

/// Sums that no kernel has are told apart.
#[test]
fn a_sum_without_a_kernel_says_what_it_is() {
    let refused = |place: &dyn Fn(TensorRef) -> PlaceRef, slots: u32| {
        let mut s = ScheduleBuilder::new("refused");
        let (x, w) = (s.local("x", Bf16), s.local("w", Bf16));
        let y = s.reduce_scattered("y", Bf16);
        let tiles = s.tiles("tiles", y, (128, 256));
        let partial = match slots {
            0 => s.symmetric("partial", Bf16, y.shard(), world()),
            slots => s.symmetric("partial", Bf16, y.shard(), slots),
        };
        s.gemm(GemmOptions::default(), |s| {
            s.for_items("t", tiles.of(me()), |s, t| {
                let mine = s.dot(x.at(t), w.at(t));
                let theirs = s.sum(place(partial).at(t));
                s.store(y.at(t), mine + theirs);
            });
        });
        let kernel = lower(&s.finish(), &Variant::new(3)).and_then(verify::kernel);
        let found = sm90::build(&kernel.unwrap_or_else(|error| panic!("{error}")));
        first(&found.expect_err("no kernel"))
    };
    let told = [
        refused(&|partial| partial.at(0), 0),
        refused(&|partial| partial.on((me() + 1) % world()).at(others()), 0),
        refused(&|partial| partial.at(others()), 2),
    ];
    insta::assert_snapshot!(told.join("\n"), @"
    error[resources]: a sum of one slot
      help: a stored tile as it is, without `.sum()`: `partial[slot][t]`

    error[resources]: a sum of slots in another rank's memory
      help: copy them to this rank first: it adds its own slots, `partial[others()][t].sum()`

    error[resources]: a sum of the slots of all others, of which `partial` has none
      help: `slots = world()`, or all of its slots: `partial[everyone()][t].sum()`
    ");
}

/// Every rank's copies come as one term, which the switch has added.
#[test]
fn a_sum_over_the_memory_of_all_ranks_has_right_warps() {
    let mut s = ScheduleBuilder::new("in_switch");
    let (x, w) = (s.local("x", Bf16), s.local("w", Bf16));
    let y = s.reduce_scattered("y", Bf16);
    let tiles = s.tiles("tiles", y, (128, 256));
    let partial = s.symmetric("partial", Bf16, y.whole(), 1u32);
    let landed = s.counters("landed", [world().into(), tiles.into()]);
    s.gemm(GemmOptions::default(), |s| {
        s.for_ranks("owner", ranks().from_me(), |s, owner| {
            s.for_items("t", tiles.of(&owner), |s, t| {
                let product = s.dot(x.at(t), w.at(t));
                s.store(partial.at(t), product);
                s.signal(landed.on(&owner).at(me()).at(t), 1);
            });
        });
        s.for_items("t", tiles.of(me()), |s, t| {
            s.wait(landed.at(everyone()).at(t));
            let sum = s.sum(partial.everywhere().at(t));
            s.store(y.at(t), sum);
        });
    });
    let program = s.finish();
    for world in [1, 2, 3, 8] {
        verify::pipeline(built(&program, world))
            .unwrap_or_else(|found| panic!("{world} ranks: {found}"));
    }
}

#[test]
fn acknowledgements_of_one_counter_have_right_warps() {
    for world in sampled([2, 1, 8, 3], 3) {
        verify::pipeline(built(&acknowledged_in_turn(false), world))
            .unwrap_or_else(|error| panic!("{world} ranks: {error}"));
    }
}
