//! Sums over ranks in tiles that warpgroups take by turns: a sum comes through the stages behind its tile's steps, and each
//! warpgroup passes over what the other's tile has there.

use crate::roles::right;
use counterflow_codegen::builder::*;
use counterflow_codegen::diag::Diagnostics;
use counterflow_codegen::dtype::Dtype::Bf16;
use counterflow_codegen::lower::lower;
use counterflow_codegen::program::Program;
use counterflow_codegen::sm90;
use counterflow_codegen::variant::Variant;
use counterflow_codegen::verify;
use counterflow_codegen::warp::{Expr, Node, Op, Pipeline, Test};
use counterflow_emitter as cuda;

/// How a reduce-scatter is written.
#[derive(Clone)]
struct Written {
    name: &'static str,
    tile: (u32, u32),
    /// Tiles of a rank's own rows.
    own: (u32, u32),
    options: GemmOptions,
    /// Another product behind the sums.
    after: bool,
    /// CTAs that gather something else.
    beside: bool,
    /// The sum in a branch.
    branch: bool,
    /// Ranks' own rows in a loop over ranks, the same as without.
    in_ranks: bool,
    /// Everyone's sum.
    all_reduced: bool,
}

fn by_turns(tile: (u32, u32)) -> Written {
    Written {
        name: "by_turns",
        tile,
        own: tile,
        options: GemmOptions {
            ping_pong: Some(true.into()),
            ..GemmOptions::default()
        },
        after: false,
        beside: false,
        branch: false,
        in_ranks: false,
        all_reduced: false,
    }
}

fn scattered(of: &Written) -> Program {
    let mut s = ScheduleBuilder::new(of.name);
    let (x, w) = (s.local("x", Bf16), s.local("w", Bf16));
    let y = match of.all_reduced {
        true => s.all_reduced("y", Bf16),
        false => s.reduce_scattered("y", Bf16),
    };
    let tiles = s.tiles("tiles", y, of.tile);
    let own = match of.own == of.tile {
        true => tiles,
        false => s.tiles("own", y, of.own),
    };
    let partial = match of.all_reduced {
        true => s.symmetric("partial", Bf16, y.shard(), world()),
        false => s.symmetric("partial", Bf16, y, world()),
    };
    let landed = s.counters("landed", [world().into(), tiles.into()]);
    let done = of.all_reduced.then(|| s.counters("done", [tiles.into()]));
    if of.beside {
        let z = s.gathered("z", Bf16);
        let chunks = s.chunks("chunks", z, 64);
        let arrived = s.counters("arrived", [chunks.into()]);
        s.comm(2, |s| {
            s.for_ranks("peer", ranks().before_me(), |s, peer| {
                s.for_items("c", chunks.of(me()), |s, c| {
                    s.copy(z.on(&peer).at(c), z.at(c));
                    s.signal(arrived.on(&peer).at(c), 1);
                });
            });
            s.for_ranks("shard", ranks().after_me(), |s, shard| {
                s.for_items("c", chunks.of(&shard), |s, c| s.wait(arrived.at(c)));
            });
        });
    }
    s.gemm(of.options.clone(), |s| {
        s.for_ranks("owner", ranks().after_me(), |s, owner| {
            s.for_items("t", tiles.of(&owner).grouped(8), |s, t| {
                let product = s.dot(x.at(t), w.at(t));
                s.store(partial.on(&owner).at(me()).at(t), product);
                s.signal(landed.on(&owner).at(me()).at(t), 1);
            });
        });
        let item = |s: &mut ScheduleBuilder, t: Item| {
            let product = s.dot(x.at(t), w.at(t));
            let sum = |s: &mut ScheduleBuilder| {
                match of.own == of.tile {
                    true => s.wait(landed.at(others()).at(t)),
                    false => s.wait(landed.at(others()).at(t.rows())),
                }
                let sum = s.sum(partial.at(others()).at(t));
                let all = product.clone() + sum;
                s.store(y.at(t), all.clone());
                all
            };
            if of.branch {
                let alone = Cond::compare(Comparison::Eq, world(), 1);
                s.when_else(
                    alone,
                    |s| s.store(y.at(t), product.clone()),
                    |s| drop(sum(s)),
                );
                return;
            }
            let all = sum(s);
            if let Some(done) = done {
                s.for_ranks("peer", ranks().after_me(), |s, peer| {
                    s.store(y.on(&peer).at(t), all);
                    s.signal(done.on(&peer).at(t), 1);
                });
            }
        };
        if of.in_ranks {
            s.for_ranks(
                "rank",
                ranks().from_me().but_last(world() - 1),
                |s, rank| {
                    s.for_items("t", own.of(&rank), item);
                },
            );
        } else {
            s.for_items("t", own.of(me()).grouped(8), item);
        }
        if let Some(done) = done {
            s.for_ranks("owner", ranks().after_me(), |s, owner| {
                s.for_items("t", tiles.of(&owner), |s, t| s.wait(done.at(t)));
            });
        }
        if of.after {
            let v = s.out("v", Bf16);
            let more = s.tiles("more", v, of.tile);
            s.for_items("u", more.grouped(8), |s, u| {
                let product = s.dot(x.at(u), w.at(u));
                s.store(v.at(u), product);
            });
        }
    });
    s.finish()
}

fn built(of: &Written, world: u32) -> Result<Pipeline, Diagnostics> {
    let kernel = lower(&scattered(of), &Variant::new(world)).and_then(verify::kernel);
    kernel.and_then(|kernel| sm90::build(&kernel))
}

fn good(world: u32) -> Pipeline {
    built(&by_turns((128, 128)), world).unwrap_or_else(|found| panic!("{found}"))
}

/// Ragged shards, empty ones, launches of other rows, several seeds: [`right`] has them, in worlds of 1 to 8.
#[test]
fn sums_by_turns_are_right_at_both_levels() {
    for (name, tile, all_reduced) in [
        ("scattered", (128, 128), false),
        ("narrow", (128, 48), false),
        ("everyones", (128, 128), true),
        ("by_narrow_turns", (128, 96), true),
    ] {
        right(&scattered(&Written {
            name,
            all_reduced,
            ..by_turns(tile)
        }));
    }
}

/// True if a node is the pass over the other consumer's sum in front of the loop.
fn is_first(node: &Node) -> bool {
    matches!(
        node,
        Node::If {
            test: Test::AtLeast(Expr::Within, _),
            ..
        }
    )
}

/// True if it is the pass over the other consumer's tile and its sum.
fn is_next(node: &Node) -> bool {
    matches!(
        node,
        Node::Skip {
            by: Expr::Binary(Op::Add, ..),
            ..
        }
    )
}

/// What is found where the list of nodes that has such a node is another one.
fn found(world: u32, has: fn(&Node) -> bool, edit: impl Fn(&mut Vec<Node>)) -> String {
    let mut pipeline = good(world);
    let mut edited = 0;
    pipeline.lists(&mut |list| {
        if list.iter().any(has) {
            edit(list);
            edited += 1;
        }
    });
    assert_eq!(edited, 1, "one loop has sums");
    match verify::pipeline(pipeline) {
        Ok(_) => "accepted".into(),
        Err(found) => found.first().text(&|_| String::new()),
    }
}

#[test]
fn a_warpgroup_that_loses_count_of_the_stages_is_found() {
    for world in [2, 3] {
        verify::pipeline(good(world)).unwrap_or_else(|found| panic!("{found}"));
    }
    let never = found(2, is_first, |list| list.retain(|node| !is_first(node)));
    insta::assert_snapshot!(never, @"
    error[progress]: multiply of block 0 on rank 0 waits for a stage to be full
      = the next phase is complete, too: the parity says that the awaited one is not
      help: wait for its own phase, and before anyone can end the next one
    ");
    let always = found(2, is_first, |list| {
        for node in list.iter_mut().filter(|node| is_first(node)) {
            if let Node::If { body, .. } = node.clone() {
                *node = body[0].clone();
            }
        }
    });
    insta::assert_snapshot!(always, @"
    error[race]: multiply of block 0 on rank 0 waits for a stage to be full
      = nothing says that the previous phase is complete, and an earlier one has the same parity
      help: a parity names a phase only within one pass over the ring's slots: wait at the order barrier first
    ");
    let steps_alone = found(2, is_next, |list| {
        for node in list.iter_mut().filter(|node| is_next(node)) {
            if let Node::Skip { by, .. } = node
                && let Expr::Binary(_, steps, _) = by
            {
                *by = steps.as_ref().clone();
            }
        }
    });
    assert!(steps_alone.starts_with("error["), "{steps_alone}");
}

/// The other consumer's waits are within one round of the stages only if this one has read its sum.
#[test]
fn an_order_barrier_passed_before_the_sum_is_read_is_found() {
    let early = found(3, is_next, |list| {
        let at = list.iter().position(|node| *node == Node::ArriveOrder);
        let arrival = list.remove(at.expect("an arrival"));
        let steps = list
            .iter()
            .position(|node| matches!(node, Node::MmaWait { .. }));
        list.insert(steps.expect("the end of the steps"), arrival);
    });
    insta::assert_snapshot!(early, @"
    error[race]: multiply of block 0 on rank 0 waits for a stage to be full
      = nothing says that the previous phase is complete, and an earlier one has the same parity
      help: a parity names a phase only within one pass over the ring's slots: wait at the order barrier first
    ");
}

#[test]
fn sums_that_a_warpgroup_cannot_count_are_refused() {
    let refused = |of: Written| match built(&of, 3) {
        Ok(_) => "accepted".to_owned(),
        Err(found) => found.first().text(&|_| String::new()),
    };
    let plain = || by_turns((128, 128));
    let all = [
        ("plain", plain()),
        (
            "after",
            Written {
                after: true,
                ..plain()
            },
        ),
        (
            "beside",
            Written {
                beside: true,
                ..plain()
            },
        ),
        (
            "in a branch",
            Written {
                branch: true,
                ..plain()
            },
        ),
        (
            "in ranks",
            Written {
                in_ranks: true,
                ..plain()
            },
        ),
        (
            "other tiles",
            Written {
                own: (128, 64),
                ..plain()
            },
        ),
        ("many accumulators", by_turns((128, 160))),
        ("swapped", by_turns((48, 128))),
        ("64 rows", by_turns((64, 256))),
        (
            "as the tile wants it",
            Written {
                options: GemmOptions::default(),
                ..by_turns((64, 128))
            },
        ),
    ];
    let told: Vec<String> = (all.into_iter())
        .map(|(what, of)| format!("{what}: {}", refused(of).lines().next().unwrap_or_default()))
        .collect();
    insta::assert_snapshot!(told.join("\n"), @"
    plain: accepted
    after: error[resources]: a sum of stored tiles, with tiles in ping-pong
    beside: error[resources]: a sum of stored tiles, with tiles in ping-pong
    in a branch: error[resources]: a sum of stored tiles, with tiles in ping-pong
    in ranks: error[resources]: a sum of stored tiles, with tiles in ping-pong
    other tiles: error[resources]: tiles of 128x64, beside a sum of stored tiles in ping-pong
    many accumulators: error[resources]: a sum of stored tiles, with tiles in ping-pong
    swapped: error[resources]: a sum of stored tiles, with tiles in ping-pong
    64 rows: error[resources]: a sum of stored tiles, with tiles in ping-pong
    as the tile wants it: error[resources]: a sum of stored tiles, with tiles of 64x128, which one warpgroup computes
    ");
}

/// A sum begins where the steps of its tile end, and the other warpgroup's tile where it ends.
#[test]
fn the_text_says_where_a_sum_is() {
    let checked = verify::pipeline(good(2)).unwrap_or_else(|found| panic!("{found}"));
    let text = cuda::emit(&checked).text;
    let multiply = text.split("// multiply").nth(1).expect("the role");
    let lines = multiply.lines().map(str::trim);
    let lines: Vec<&str> = lines
        .filter(|line| {
            line.contains("order.")
                || line.contains("past the other")
                || line.contains(">= gridDim.x")
                || line.contains("subtile_add")
        })
        .collect();
    insta::assert_snapshot!(lines.join("\n"), @"
    stage.advance(steps);  // past the other consumer's tile
    order.wait(watch, MULTIPLY, ORDER);
    if (lane == 0) order.arrive();
    stage.advance(steps);  // past the other consumer's tile
    if (scheduler.tile() >= gridDim.x) {
    stage.advance(TILE_N / SUBTILE_N * (world - 1));  // past the other consumer's tile
    order.wait(watch, MULTIPLY, ORDER);
    subtile_add<T, SUBTILE_N>(partial[block], smem_x[stage.index], first_row + block * 64, lane);
    if (lane == 0) order.arrive();
    stage.advance(steps + TILE_N / SUBTILE_N * (world - 1) * 2);  // past the other consumer's tile
    ");
}
