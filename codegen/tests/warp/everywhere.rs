//! Every rank's memory at once: what dumps say of it, and what its warps leave out.

use crate::fixtures::multicast::{self, REAL};
use counterflow_codegen::builder::*;
use counterflow_codegen::dtype::Dtype;
use counterflow_codegen::host::HostOpKind;
use counterflow_codegen::lower::lower;
use counterflow_codegen::machine::Machine;
use counterflow_codegen::program::{CounterId, Program};
use counterflow_codegen::shape::Shape;
use counterflow_codegen::sm90;
use counterflow_codegen::variant::Variant;
use counterflow_codegen::verify;
use counterflow_codegen::warp::{Node, Pipeline, Whose};
use counterflow_emitter as cuda;

fn built(program: &Program) -> Pipeline {
    let kernel = lower(program, &Variant::new(3)).and_then(verify::kernel);
    let kernel = kernel.unwrap_or_else(|found| panic!("{}: {found}", program.name));
    sm90::build(&kernel).unwrap_or_else(|found| panic!("{}: {found}", program.name))
}

/// My rows to everybody, by CTAs or by a copy engine.
fn gather(engine: bool) -> Program {
    let mut s = ScheduleBuilder::new("gather");
    let (x, w) = (s.gathered("x", Dtype::Bf16), s.local("w", Dtype::Bf16));
    let y = s.out("y", Dtype::Bf16);
    let chunks = s.chunks("chunks", x, 128);
    let tiles = s.tiles("tiles", y, (128, 128));
    let arrived = s.counters("arrived", [chunks.into()]);
    let body = |s: &mut ScheduleBuilder| {
        s.for_items("c", chunks.of(me()), |s, c| {
            s.copy(x.everywhere().at(c), x.at(c));
            s.signal(arrived.everywhere().at(c), 1);
        });
    };
    match engine {
        true => s.copy_engine(body),
        false => s.comm(1, body),
    }
    s.gemm(GemmOptions::default(), |s| {
        s.for_ranks("shard", ranks().from_me(), |s, shard| {
            s.for_items("t", tiles.of(&shard), |s, t| {
                s.wait(arrived.at(t.rows()));
                let product = s.dot(x.at(t), w.at(t));
                s.store(y.at(t), product);
            });
        });
    });
    s.finish()
}

/// A signal to every rank is one instruction of a CTA's, and a loop of the host's where a copy engine sends: the dumps say so, and
/// so does what is emitted and enqueued.
#[test]
fn a_signal_everywhere_is_one_instruction_or_a_loop() {
    let kernel = |engine| {
        let kernel = lower(&gather(engine), &Variant::new(3)).and_then(verify::kernel);
        kernel.unwrap_or_else(|found| panic!("{found}"))
    };
    let ways = [
        (false, "by one instruction", "by multicast stores"),
        (true, "by a loop of the host's", "by a loop of the host's"),
    ];
    for (engine, signals, copies) in ways {
        let text = kernel(engine).text();
        for line in [
            format!("signal arrived.everywhere[c] += 1   # to every rank {signals}"),
            format!("x.everywhere[c] = x[c]   # to every rank {copies}"),
        ] {
            assert!(text.contains(&line), "{line}: {text}");
        }
    }
    let by_cta = verify::warps(&kernel(false)).expect("right warps");
    let text = cuda::emit(&by_cta).text;
    assert_eq!(text.matches("counter_add_everywhere(").count(), 1, "{text}");
    let kernel = kernel(true);
    let series = verify::series(&kernel, &Shape::new(256, 64, 64), &Machine::h200());
    let series = series.unwrap_or_else(|found| panic!("{found}"));
    let plan = series.plan(series.most()).expect("a plan");
    let by_engine = verify::warps(&kernel).expect("right warps");
    assert!(!cuda::emit(&by_engine).text.contains("everywhere"));
    let arrived = kernel.counters.iter().position(|it| it.name == "arrived");
    let arrived = CounterId(arrived.expect("a counter") as u16);
    let ops = by_engine.host_ops(&plan, 1).expect("operations");
    let homes = ops.iter().filter_map(|op| match op.kind {
        HostOpKind::Signal { home, counter, .. } if counter == arrived => Some(home),
        HostOpKind::Signal { .. } | HostOpKind::Wait { .. } | HostOpKind::Copy { .. } => None,
    });
    assert_eq!(homes.collect::<Vec<_>>(), [0, 1, 2]);
    let copied = ops.iter().filter_map(|op| match op.kind {
        HostOpKind::Copy { to, .. } => Some(to.home),
        HostOpKind::Wait { .. } | HostOpKind::Signal { .. } => None,
    });
    assert_eq!(copied.collect::<Vec<_>>(), [0, 2], "its own rows are there");
}

/// No bulk group is closed or waited for where all stores are a warp's own: neither by who sends boxes, nor by who stores tiles, nor
/// by spare warps. Stores to one rank keep theirs, also in the same warp.
#[test]
fn no_group_is_closed_where_nothing_is_stored_in_bulk() {
    let groups = |nodes: &[Node]| {
        let mut found = (0, 0, 0);
        for node in nodes {
            node.visit(&mut |node| match node {
                Node::Store { at, .. } if at.whose == Whose::Everywhere => found.0 += 1,
                Node::Store { .. } => found.1 += 1,
                Node::Commit | Node::AwaitRead { .. } | Node::AwaitStores { .. } => found.2 += 1,
                _ => {}
            });
        }
        found
    };
    for program in multicast::all(REAL) {
        let pipeline = built(&program);
        let mut everywhere = 0;
        let mut see = |node: &Node| {
            if let Node::Items { body, .. } = node {
                let (all, bulk, counted) = groups(body);
                everywhere += all;
                let told = format!("{}: {all} everywhere, {bulk} in bulk", program.name);
                assert_eq!(
                    counted > 0,
                    bulk > 0,
                    "{told}, {counted} groups\n{}",
                    pipeline.text()
                );
            }
        };
        pipeline.visit(&mut see);
        assert!(everywhere > 0, "{}", program.name);
    }
    // Who sends boxes to one rank and to all counts them in one go.
    let mixed = verify::pipeline(built(&copies_of_both_kinds()));
    let mixed = mixed.unwrap_or_else(|found| panic!("{found}"));
    let mut found = (0, 0, 0);
    mixed.visit(|node| {
        if let Node::Items { body, .. } = node {
            let (all, bulk, counted) = groups(body);
            found = (found.0 + all, found.1 + bulk, found.2 + counted);
        }
    });
    assert!(found.0 > 0 && found.1 > 0 && found.2 > found.1, "{found:?}");
}

/// One role sends some rows to everybody at once, and others to one rank after another.
fn copies_of_both_kinds() -> Program {
    let mut s = ScheduleBuilder::new("both");
    let (x, z) = (s.gathered("x", Dtype::Bf16), s.gathered("z", Dtype::Bf16));
    let chunks = s.chunks("chunks", x, 128);
    let others = s.chunks("others", z, 128);
    let arrived = s.counters("arrived", [chunks.into()]);
    let came = s.counters("came", [others.into()]);
    s.comm(1, |s| {
        s.for_items("c", chunks.of(me()), |s, c| {
            s.copy(x.everywhere().at(c), x.at(c));
            s.signal(arrived.everywhere().at(c), 1);
        });
        s.for_ranks("peer", ranks().after_me(), |s, peer| {
            s.for_items("p", others.of(me()), |s, p| {
                s.copy(z.on(&peer).at(p), z.at(p));
                s.signal(came.on(&peer).at(p), 1);
            });
        });
        s.for_items("c", chunks.of(me()), |s, c| s.wait(arrived.at(c)));
        s.for_ranks("shard", ranks().after_me(), |s, shard| {
            s.for_items("c", chunks.of(&shard), |s, c| s.wait(arrived.at(c)));
            s.for_items("p", others.of(&shard), |s, p| s.wait(came.at(p)));
        });
    });
    s.finish()
}

/// Ranks announce to all others, in two loops: at once by one counter, and in turn by the same one or by another.
fn announced(one: bool) -> Program {
    let mut s = ScheduleBuilder::new("announced");
    let (x, z) = (s.gathered("x", Dtype::Bf16), s.gathered("z", Dtype::Bf16));
    let chunks = s.chunks("chunks", x, 128);
    let arrived = s.counters("arrived", [chunks.into()]);
    let came = match one {
        true => arrived,
        false => s.counters("came", [chunks.into()]),
    };
    s.comm(1, |s| {
        s.for_items("c", chunks.of(me()), |s, c| {
            s.copy(x.everywhere().at(c), x.at(c));
            s.signal(arrived.everywhere().at(c), 1);
        });
        s.for_ranks("peer", ranks().after_me(), |s, peer| {
            s.for_items("c", chunks.of(me()), |s, c| {
                s.copy(z.on(&peer).at(c), z.at(c));
                s.signal(came.on(&peer).at(c), 1);
            });
        });
        s.for_ranks("shard", ranks().after_me(), |s, shard| {
            s.for_items("c", chunks.of(&shard), |s, c| {
                s.wait(arrived.at(c));
                s.wait(came.at(c));
            });
        });
        s.for_items("c", chunks.of(me()), |s, c| s.wait(arrived.at(c)));
    });
    s.finish()
}

/// The owner of a tile stores its part everywhere. Each of the others adds its own there: at once, or some of them in turn.
fn added(in_turn: bool) -> Program {
    let mut s = ScheduleBuilder::new("added");
    let (x, w) = (s.local("x", Dtype::Bf16), s.local("w", Dtype::Bf16));
    let y = s.all_reduced("y", Dtype::Bf16);
    let tiles = s.tiles("tiles", y, (128, 256));
    let begun = s.counters("begun", [tiles.into()]);
    let done = s.counters("done", [world().into(), tiles.into()]);
    s.gemm(GemmOptions::default(), |s| {
        s.for_items("t", tiles.of(me()), |s, t| {
            let product = s.dot(x.at(t), w.at(t));
            s.store(y.everywhere().at(t), product);
            s.signal(begun.everywhere().at(t), 1);
        });
        let parts = |s: &mut ScheduleBuilder, in_turn: bool| {
            s.for_ranks("owner", ranks().after_me(), |s, owner| {
                s.for_items("t", tiles.of(&owner), |s, t| {
                    let product = s.dot(x.at(t), w.at(t));
                    s.wait(begun.at(t));
                    if !in_turn {
                        s.store_add(y.everywhere().at(t), product);
                        s.signal(done.everywhere().at(me()).at(t), 1);
                        return;
                    }
                    s.for_ranks("to", ranks().from_me(), |s, to| {
                        s.store_add(y.on(&to).at(t), product.clone());
                        s.signal(done.on(&to).at(me()).at(t), 1);
                    });
                });
            });
        };
        let first = Cond::compare(Comparison::Eq, me(), 0);
        match in_turn {
            false => parts(s, false),
            true => s.when_else(first, |s| parts(s, false), |s| parts(s, true)),
        }
        s.for_ranks("owner", ranks().from_me(), |s, owner| {
            s.for_items("t", tiles.of(&owner), |s, t| {
                s.wait(done.at(everyone()).at(t));
            });
        });
    });
    s.finish()
}

/// Adds at a multicast address and at a rank's own address of one memory are of two proxies, and PTX promises nothing of them
/// together: neither of cells nor of elements.
#[test]
fn one_place_is_not_added_to_at_two_addresses() {
    let said = |program: &Program| {
        let kernel = lower(program, &Variant::new(3)).and_then(verify::kernel);
        let kernel = kernel.unwrap_or_else(|found| panic!("{}: {found}", program.name));
        let shape = Shape::new(768, 512, 128);
        let plan = verify::plan(&kernel, &shape, &Machine::h200());
        plan.unwrap_or_else(|found| panic!("{}: {found}", program.name));
        let found = match verify::warps(&kernel) {
            Ok(_) => return "right".into(),
            Err(found) => found,
        };
        found.first().text(&|_| String::new())
    };
    assert_eq!(said(&announced(false)), "right");
    assert_eq!(said(&added(false)), "right");
    insta::assert_snapshot!(said(&announced(true)), @"
    error[resources]: `arrived` is added to by `.everywhere()` and on one rank
      help: a counter for each, or `.on(rank)` in a loop over ranks for both
    ");
    insta::assert_snapshot!(said(&added(true)), @"
    error[resources]: `y` is added to by `.everywhere()` and on one rank
      help: `.on(rank)` in a loop over ranks for both, or every part by `.everywhere()`
    ");
}

/// What other kinds of tiles come to, program by program: right warps, or a refusal at a statement. Nothing else.
#[test]
fn other_kinds_of_tiles_are_right_or_refused() {
    let kinds = [
        (
            "ping-pong",
            multicast::Sizes {
                tile: (64, 256),
                ping_pong: true,
                ..REAL
            },
        ),
        (
            "swapped",
            multicast::Sizes {
                tile: (32, 128),
                ..REAL
            },
        ),
        (
            "swapped, narrow",
            multicast::Sizes {
                tile: (8, 64),
                ..REAL
            },
        ),
        (
            "cluster",
            multicast::Sizes {
                cluster: ((2, 1), 1),
                ..REAL
            },
        ),
        (
            "split",
            multicast::Sizes {
                cluster: ((1, 1), 2),
                ..REAL
            },
        ),
    ];
    let mut said = String::new();
    for (kind, sizes) in kinds {
        // Without a product there is nothing to share.
        let all = multicast::all(sizes).into_iter();
        let shared = sizes.cluster != REAL.cluster;
        for program in all.filter(|it| !shared || it.name != "all_reduce_multicast") {
            let kernel = lower(&program, &Variant::new(3)).and_then(verify::kernel);
            let outcome = kernel.and_then(|kernel| {
                let pipeline = sm90::build(&kernel)?;
                let text = cuda::emit(&verify::pipeline(pipeline)?).text;
                assert!(
                    text.contains("multimem") || text.contains("multicast_"),
                    "{text}"
                );
                Ok("right".to_owned())
            });
            let outcome = outcome.unwrap_or_else(|found| {
                let first = found.first();
                let (rule, at) = (
                    first.rule.name(),
                    if first.at.is_some() { "" } else { ", nowhere" },
                );
                format!("error[{rule}{at}]: {}", first.message)
            });
            said.push_str(&format!("{kind}, {}: {outcome}\n", program.name));
        }
    }
    insta::assert_snapshot!(said, @"
    ping-pong, ag_gemm_multicast: right
    ping-pong, gemm_ag_multicast: right
    ping-pong, gemm_ar_multicast: error[resources]: a sum of stored tiles, with tiles in ping-pong
    ping-pong, all_reduce_multicast: error[resources]: tiles of 64x256 that multiply nothing
    ping-pong, added_everywhere: right
    swapped, ag_gemm_multicast: right
    swapped, gemm_ag_multicast: right
    swapped, gemm_ar_multicast: right
    swapped, all_reduce_multicast: right
    swapped, added_everywhere: right
    swapped, narrow, ag_gemm_multicast: right
    swapped, narrow, gemm_ag_multicast: right
    swapped, narrow, gemm_ar_multicast: error[resources]: a sum of stored tiles, with tiles of 8x64, which one warpgroup computes
    swapped, narrow, all_reduce_multicast: error[resources]: tiles of 8x64 that multiply nothing
    swapped, narrow, added_everywhere: right
    cluster, ag_gemm_multicast: error[resources]: a cluster of 2x1 in a kernel that signals
    cluster, gemm_ag_multicast: error[resources]: a cluster of 2x1 in a kernel that signals
    cluster, gemm_ar_multicast: error[resources]: a cluster of 2x1 in a kernel that signals
    cluster, added_everywhere: error[resources]: a cluster of 2x1 in a kernel that signals
    split, ag_gemm_multicast: error[resources]: 2 CTAs that split the K of a tile, in a kernel that moves data or signals
    split, gemm_ag_multicast: error[resources]: 2 CTAs that split the K of a tile, in a kernel that moves data or signals
    split, gemm_ar_multicast: error[resources]: 2 CTAs that split the K of a tile, in a kernel that moves data or signals
    split, added_everywhere: error[resources]: 2 CTAs that split the K of a tile, in a kernel that moves data or signals
    ");
}

/// Accesses of every rank's memory are of 16 bytes: of rows that are not whole 16 bytes there is no plan, and a box that begins
/// within 16 bytes is found.
#[test]
fn rows_that_are_not_aligned_are_refused() {
    let kernel = |program| {
        let kernel = lower(&program, &Variant::new(3)).and_then(verify::kernel);
        kernel.unwrap_or_else(|found| panic!("{found}"))
    };
    for (program, shape) in [
        (multicast::ag_gemm(REAL), Shape::new(768, 256, 68)),
        (multicast::gemm_ag(REAL), Shape::new(768, 260, 64)),
        (multicast::gemm_ar(REAL), Shape::new(768, 260, 64)),
    ] {
        let name = program.name.clone();
        let found = verify::plan(&kernel(program), &shape, &Machine::h200());
        let found = found.err().unwrap_or_else(|| panic!("{name}: accepted"));
        let told = found.first().text(&|_| String::new());
        assert!(told.contains("multiple of 16 bytes"), "{name}: {told}");
    }
    let mut pipeline = built(&multicast::gemm_ag(REAL));
    let mut moved = 0;
    pipeline.lists(&mut |list| {
        for node in list {
            if let Node::Store { at, .. } = node
                && at.whose == Whose::Everywhere
            {
                at.column = at.column.clone() + 4;
                moved += 1;
            }
        }
    });
    assert!(moved > 0);
    let found = verify::pipeline(pipeline).expect_err("refused");
    insta::assert_snapshot!(found.first().text(&|_| String::new()), @"
    error[bounds]: store of block 0 on rank 0 stores subtile 0 to rows 0..128, columns 4..68 of y (shard or slot 0) on rank 0, on every rank for tile (0, 0)
      = the box begins at a column that is no multiple of 16 bytes
    ");
}
