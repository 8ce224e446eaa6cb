//! Several `#[comm]` roles at the same time: each has its name, its CTAs and its chunks.

use counterflow_codegen as codegen;

use crate::fixtures::strangers::{By, Gather, halves, rings};
use crate::fixtures::wide::{sampled, wide};
use codegen::builder::*;
use codegen::diag::Diagnostics;
use codegen::dtype::Dtype::Bf16;
use codegen::kernel::Kernel;
use codegen::lower::lower;
use codegen::plan::Plan;
use codegen::program::Program;
use codegen::shape::Shape;
use codegen::sm90;
use codegen::variant::Variant;
use codegen::verify::{self, Checked};
use codegen::warp::{Ctas, Node, Pipeline, Test};
use counterflow_codegen::machine::Machine;
use counterflow_emulator::{self as interp, Options};
use counterflow_timeline::model;

/// A product beside two gathers, of chunks of other rows. What `ask` pulls, `answer` says is there; so they cannot follow each
/// other in that order.
fn pulled_when_told([ask, answer]: [&str; 2]) -> Program {
    let mut s = ScheduleBuilder::new("pulled_when_told");
    let (x, w, y) = (s.local("x", Bf16), s.local("w", Bf16), s.out("y", Bf16));
    let (z, v) = (s.gathered("z", Bf16), s.gathered("v", Bf16));
    let tiles = s.tiles("tiles", y, (128, 256));
    let [of_z, of_v] =
        [("of_z", z, 64), ("of_v", v, 256)].map(|(name, of, rows)| s.chunks(name, of, rows));
    let [told, arrived, came] = [("told", of_z), ("arrived", of_z), ("came", of_v)]
        .map(|(name, of)| s.counters(name, [of.into()]));
    s.comm_named(ask, 2, |s| {
        s.for_ranks("peer", ranks().after_me(), |s, peer| {
            s.for_items("p", of_z.of(&peer), |s, p| {
                s.wait(told.at(p));
                s.copy(z.at(p), z.on(&peer).at(p));
                s.signal(arrived.at(p), 1);
            });
            s.for_items("p", of_z.of(&peer), |s, p| s.wait(arrived.at(p)));
        });
    });
    s.comm_named(answer, 2, |s| {
        s.for_ranks("peer", ranks().before_me(), |s, peer| {
            s.for_items("q", of_v.of(me()), |s, q| {
                s.copy(v.on(&peer).at(q), v.at(q));
                s.signal(came.on(&peer).at(q), 1);
            });
        });
    });
    s.spare_warps(|s| {
        s.for_ranks("peer", ranks().after_me(), |s, peer| {
            s.for_items("q", of_v.of(&peer), |s, q| s.wait(came.at(q)));
            s.for_items("p", of_z.of(me()), |s, p| s.signal(told.on(&peer).at(p), 1));
        });
    });
    s.gemm(GemmOptions::default(), |s| {
        s.for_items("t", tiles.grouped(8), |s, t| {
            let acc = s.dot(x.at(t), w.at(t));
            s.store(y.at(t), acc);
        });
    });
    s.finish()
}

fn kernel(program: &Program, world: u32) -> Result<Checked<Kernel>, Diagnostics> {
    lower(program, &Variant::new(world)).and_then(verify::kernel)
}

fn accepted(program: &Program, world: u32) -> Checked<Kernel> {
    kernel(program, world).unwrap_or_else(|error| panic!("world {world}: {error}"))
}

fn built(program: &Program, world: u32) -> Pipeline {
    sm90::build(&accepted(program, world)).unwrap_or_else(|error| panic!("world {world}: {error}"))
}

fn shape(kernel: &Kernel, m: u32) -> Shape {
    let further = kernel.dims.iter().filter(|dim| dim.is_further());
    further.fold(Shape::new(m, 72, 24), |shape, dim| {
        let size = if dim.sharded { m + 5 } else { 40 };
        shape.dim(&dim.name, size)
    })
}

/// Several launches of which each has another M, in small and large worlds: both levels accept it, and the emulator has the bits that
/// its statements say.
pub fn right(program: &Program) {
    let worlds: &[u32] = if wide() {
        &[1, 2, 3, 4, 5, 6, 7, 8]
    } else {
        // Which of them, its name decides: all of them are some program's.
        [[1, 8], [2, 4], [3, 6], [5, 7]][program.name.len() % 4].as_slice()
    };
    let (rows, seeds) = match wide() {
        true => (&[1111, 259, 3, 600][..], 0..2),
        false => (&[600, 3][..], 0..1),
    };
    for world in worlds.iter().copied() {
        let kernel = accepted(program, world);
        let series = verify::series(&kernel, &shape(&kernel, rows[0]), &Machine::h200())
            .unwrap_or_else(|error| panic!("world {world}: {error}"));
        let plans: Vec<_> = (rows.iter())
            .map(|m| {
                series
                    .plan(&shape(&kernel, *m))
                    .unwrap_or_else(|error| panic!("{error}"))
            })
            .collect();
        let launches: Vec<_> = plans.iter().collect();
        for seed in seeds.clone() {
            let outcome = interp::run(
                &series,
                &launches,
                &Options::seed(seed),
                interp::integers(seed),
            )
            .unwrap_or_else(|failure| panic!("world {world}: {failure}"));
            for (launch, plan) in plans.iter().enumerate() {
                let expected = interp::reference(&kernel, plan, launch, interp::integers(seed))
                    .unwrap_or_else(|error| panic!("world {world}: {error}"));
                interp::compare_exactly(&outcome, &expected)
                    .unwrap_or_else(|off| panic!("world {world}, seed {seed}: {off}"));
            }
        }
        sm90::build(&kernel)
            .and_then(verify::pipeline)
            .unwrap_or_else(|error| panic!("world {world}: {error}"));
    }
}

#[test]
fn two_rings_of_their_own() {
    right(&rings(["right", "left"], [3, 2]));
}

#[test]
fn two_tensors_in_other_chunks() {
    right(&pulled_when_told(["ask", "answer"]));
}

/// Several roles may read what peers have, in any place: a launch ends when all of them say that they have read, and nobody
/// waits for the peers' word before that.
#[test]
fn any_of_the_roles_may_pull() {
    for by in [
        [By::Pull, By::Pull],
        [By::Pull, By::Push],
        [By::Push, By::Pull],
    ] {
        right(&halves("halves", by));
    }
}

/// Two tensors, each with readers of its own, by roles that stand before the GEMM or after it.
#[test]
fn readers_of_two_tensors() {
    let both = [false, true];
    let all = both.into_iter().flat_map(|a| both.map(|b| [a, b]));
    for [gemm_first, push_first] in sampled(all, 3) {
        let mut s = ScheduleBuilder::new("readers");
        let (x, w, y) = (s.local("x", Bf16), s.local("w", Bf16), s.out("y", Bf16));
        let tiles = s.tiles("tiles", y, (128, 256));
        let multiply = |s: &mut ScheduleBuilder| {
            s.gemm(GemmOptions::default(), |s| {
                s.for_items("t", tiles.grouped(8), |s, t| {
                    let acc = s.dot(x.at(t), w.at(t));
                    s.store(y.at(t), acc);
                });
            });
        };
        if gemm_first {
            multiply(&mut s);
        }
        for (name, rows, pushed) in [("z", 64, push_first), ("v", 256, false)] {
            let z = s.gathered(name, Bf16);
            let chunks = s.chunks(&format!("of_{name}"), z, rows);
            let arrived = s.counters(&format!("{name}_arrived"), [chunks.into()]);
            s.comm_named(&format!("move_{name}"), 2, |s| {
                s.for_ranks("peer", ranks().after_me(), |s, peer| {
                    if pushed {
                        s.for_items("c", chunks.of(me()), |s, c| {
                            s.copy(z.on(&peer).at(c), z.at(c));
                            s.signal(arrived.on(&peer).at(c), 1);
                        });
                    } else {
                        s.for_items("c", chunks.of(&peer), |s, c| {
                            s.copy(z.at(c), z.on(&peer).at(c));
                            s.signal(arrived.at(c), 1);
                        });
                    }
                });
                s.for_ranks("peer", ranks().after_me(), |s, peer| {
                    s.for_items("c", chunks.of(&peer), |s, c| s.wait(arrived.at(c)));
                });
            });
        }
        if !gemm_first {
            multiply(&mut s);
        }
        right(&s.finish());
    }
}

/// A role without a name beside one with a name.
#[test]
fn one_without_a_name() {
    right(&rings(["comm", "left"], [1, 4]));
}

/// A name tells roles apart: loops of one name are one sequence on the same CTAs.
#[test]
fn loops_of_one_name_are_one_role() {
    let ctas = |names| {
        let pipeline = built(&rings(names, [2, 2]), 4);
        let comm = pipeline.comm.expect("some CTAs move data");
        let each = comm
            .roles
            .iter()
            .map(|role| (role.symbol.clone(), role.ctas));
        each.collect::<Vec<_>>()
    };
    assert_eq!(ctas(["left", "left"]), [("LEFT_CTAS".into(), 2)]);
    assert_eq!(
        ctas(["right", "left"]),
        [("RIGHT_CTAS".into(), 2), ("LEFT_CTAS".into(), 2)]
    );
    // Names that differ in their capitals only.
    let alike: [(String, u32); 2] = [("LEFT_CTAS".into(), 2), ("_LEFT_CTAS".into(), 2)];
    assert_eq!(ctas(["left", "Left"]), alike);
}

/// What waits for a loop behind it in its own role waits for ever; in roles of their own they meet.
#[test]
fn a_role_may_wait_for_another() {
    let waits_first = |names: [&str; 2]| {
        let mut s = ScheduleBuilder::new("waits_first");
        let (x, w, y) = (s.gathered("x", Bf16), s.local("w", Bf16), s.out("y", Bf16));
        let chunks = s.chunks("chunks", x, 128);
        let tiles = s.tiles("tiles", y, (128, 256));
        let [go, arrived] = ["go", "arrived"].map(|name| s.counters(name, [chunks.into()]));
        s.comm_named(names[0], 2, |s| {
            s.for_ranks("peer", ranks().before_me(), |s, peer| {
                s.for_items("c", chunks.of(me()), |s, c| {
                    s.wait(go.at(c));
                    s.copy(x.on(&peer).at(c), x.at(c));
                    s.signal(arrived.on(&peer).at(c), 1);
                });
            });
        });
        s.comm_named(names[1], 1, |s| {
            s.for_items("c", chunks.of(me()), |s, c| s.signal(go.at(c), 1));
        });
        s.gemm(GemmOptions::default(), |s| {
            s.for_ranks("shard", ranks().from_me(), |s, shard| {
                s.for_items("t", tiles.of(&shard).grouped(8), |s, t| {
                    s.wait(arrived.at(t.rows()));
                    let acc = s.dot(x.at(t), w.at(t));
                    s.store(y.at(t), acc);
                });
            });
        });
        s.finish()
    };
    right(&waits_first(["halo", "ring"]));
    let joined = waits_first(["halo", "halo"]);
    let mut other = joined.clone();
    // The same CTAs for both, so that the sequence is all that is wrong.
    other.roles[1].kind = other.roles[0].kind;
    let kernel = lower(&other, &Variant::new(2))
        .and_then(verify::kernel)
        .expect("a kernel");
    let found = verify::series(&kernel, &shape(&kernel, 256), &Machine::h200())
        .err()
        .map(|found| found.first().text(&|_| String::new()))
        .expect("nobody signals `go` before it is waited for");
    assert!(
        found.contains("halo of rank 0 waits for ever: go[0] is 0"),
        "{found}"
    );
}

/// One name with other settings, no CTAs, and more CTAs than a GPU has.
#[test]
fn wrong_settings() {
    let text = |found: Diagnostics| found.first().text(&|_| String::new());
    let others = rings(["halo", "halo"], [2, 3]);
    let found = lower(&others, &Variant::new(2)).expect_err("two settings");
    insta::assert_snapshot!("roles_one_name_other_ctas", text(found));

    let none = rings(["halo", "ring"], [2, 0]);
    let found = lower(&none, &Variant::new(2)).expect_err("no CTAs");
    insta::assert_snapshot!("roles_no_ctas", text(found));

    for name in ["", "_", "gemm", "host", "two words", "1st", "halo;"] {
        let named = rings(["halo", name], [2, 2]);
        let found = lower(&named, &Variant::new(2)).expect_err(name);
        let at = named.roles.get(1).map(|role| role.at.line());
        assert_eq!(found.first().at.map(|at| at.line()), at);
        let message = format!("a #[comm] role cannot be called `{name}`");
        assert_eq!(found.first().message, message);
    }

    let many = rings(["halo", "ring"], [100, 32]);
    let kernel = lower(&many, &Variant::new(2)).expect("a kernel");
    let found = Plan::new(&kernel, &shape(&kernel, 512), &Machine::h200()).expect_err("no room");
    let at = found.first().at.map(|at| at.line());
    let roles = many.roles.iter().map(|role| role.at.line());
    assert_eq!(at, roles.collect::<Vec<_>>().get(1).copied());
    insta::assert_snapshot!("roles_too_many_ctas", text(found));
}

/// A GEMM item that a CTA takes when it has moved its data must not be behind a wait for itself, however many roles are in
/// between.
#[test]
fn who_waits_for_the_gemm_does_not_join_it() {
    let mut s = ScheduleBuilder::new("after_the_gemm");
    let (x, w, y) = (s.local("x", Bf16), s.local("w", Bf16), s.out("y", Bf16));
    let z = s.gathered("z", Bf16);
    let (tiles, chunks) = (s.tiles("tiles", y, (128, 256)), s.chunks("chunks", z, 128));
    let computed = s.counters("computed", [tiles.into()]);
    let [go, arrived] = ["go", "arrived"].map(|name| s.counters(name, [chunks.into()]));
    s.comm_named("halo", 2, |s| {
        s.for_ranks("peer", ranks().before_me(), |s, peer| {
            s.for_items("c", chunks.of(me()), |s, c| {
                s.wait(go.at(c));
                s.copy(z.on(&peer).at(c), z.at(c));
                s.signal(arrived.on(&peer).at(c), 1);
            });
        });
    });
    s.spare_warps(|s| {
        s.for_items("t", tiles, |s, t| s.wait(computed.at(t)));
        s.for_items("c", chunks.of(me()), |s, c| s.signal(go.at(c), 1));
        s.for_ranks("peer", ranks().after_me(), |s, peer| {
            s.for_items("c", chunks.of(&peer), |s, c| s.wait(arrived.at(c)));
        });
    });
    s.gemm(GemmOptions::default(), |s| {
        s.for_items("t", tiles.grouped(8), |s, t| {
            let acc = s.dot(x.at(t), w.at(t));
            s.store(y.at(t), acc);
            s.signal(computed.at(t), 1);
        });
    });
    let program = s.finish();
    let mut pipeline = built(&program, 2);
    let comm = pipeline.comm.as_mut().expect("some CTAs move data");
    assert!(!comm.join_late);
    verify::pipeline(pipeline).unwrap_or_else(|error| panic!("{error}"));
}

/// What a role grants before its first item, or after the launch, holds up nobody who waits for it: whichever role stands
/// first, and so grants.
#[test]
fn whoever_grants_credits_the_others_join_the_gemm() {
    for order in [[0, 1, 2], [1, 0, 2], [2, 0, 1], [2, 1, 0]] {
        let mut s = ScheduleBuilder::new("told_by_spare_warps");
        let gather = Gather::new(&mut s);
        let (w, y) = (s.local("w", Bf16), s.out("y", Bf16));
        let tiles = s.tiles("tiles", y, (128, 256));
        let computed = s.counters("computed", [world().into(), tiles.into()]);
        for role in order {
            match role {
                0 => s.spare_warps(|s| {
                    s.for_ranks("shard", ranks().from_me(), |s, shard| {
                        s.for_items("t", tiles.of(&shard), |s, t| {
                            s.wait(computed.at(&shard).at(t));
                        });
                    });
                }),
                1 => s.comm(2, |s| {
                    s.for_ranks("peer", ranks().before_me(), |s, peer| gather.push(s, &peer));
                }),
                _ => s.gemm(GemmOptions::default(), |s| {
                    s.for_ranks("shard", ranks().from_me(), |s, shard| {
                        s.for_items("t", tiles.of(&shard).grouped(8), |s, t| {
                            s.wait(gather.arrived.at(t.rows()));
                            let acc = s.dot(gather.x.at(t), w.at(t));
                            s.store(y.at(t), acc);
                            s.signal(computed.at(&shard).at(t), 1);
                        });
                    });
                }),
            }
        }
        let program = s.finish();
        let pipeline = built(&program, 2);
        assert!(pipeline.comm.as_ref().is_some_and(|comm| comm.join_late));
        verify::pipeline(pipeline).unwrap_or_else(|error| panic!("{order:?}: {error}"));
    }
}

/// A role whose items are given to the CTAs of another one.
#[test]
fn items_of_the_wrong_ctas() {
    let mut pipeline = built(&rings(["right", "left"], [3, 2]), 4);
    let second = &mut pipeline.schedulers[2];
    let Ctas::Comm { first, .. } = &mut second.ctas else {
        panic!("CTAs that move data");
    };
    *first = 0.into();
    let found = verify::pipeline(pipeline).expect_err("chunks that nobody copies");
    insta::assert_snapshot!(
        "roles_items_of_the_wrong_ctas",
        found.first().text(&|_| String::new())
    );
}

/// Two roles that run on the same CTAs.
#[test]
fn two_roles_on_the_same_ctas() {
    let mut pipeline = built(&rings(["right", "left"], [3, 2]), 4);
    let mut changed = 0;
    pipeline.lists(&mut |list| {
        for node in list {
            if let Node::If {
                test: Test::And(from, _),
                ..
            } = node
                && let Test::AtLeast(codegen::warp::Expr::Block, at) = &mut **from
            {
                *at = 0.into();
                changed += 1;
            }
        }
    });
    assert_eq!(changed, 2, "who fetches and who sends");
    let found = verify::pipeline(pipeline).expect_err("chunks that are copied twice");
    insta::assert_snapshot!(
        "roles_on_the_same_ctas",
        found.first().text(&|_| String::new())
    );
}

/// The model: two rings at once are faster than one after the other, and `check` says so at the second loop.
#[test]
fn the_cost_of_one_sequence_is_told() {
    let shape = Shape::new(8192, 2048, 8192);
    let timed = |names| {
        let program = rings(names, [4, 4]);
        let kernel = lower(&program, &Variant::new(4)).expect("a kernel");
        let machine = Machine::h200();
        let plan = Plan::new(&kernel, &shape, &machine).expect("a plan");
        let time = model::predict(&kernel, &plan, &machine)
            .expect("a timeline")
            .total;
        let warning = model::joined(&kernel, &plan, &machine);
        (
            time,
            warning.map(|warning| warning.text(&|_| String::new())),
        )
    };
    let (apart, none) = timed(["right", "left"]);
    let (joined, warning) = timed(["left", "left"]);
    assert_eq!(none, None);
    assert!(joined > 1.1 * apart, "{joined} and {apart}");
    let warning = warning.expect("a warning");
    assert!(
        warning.contains("this #[comm(name = left)] loop begins when an earlier one ends"),
        "{warning}"
    );
}
