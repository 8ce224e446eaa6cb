//! Loops that visit some of their items: what they do is tried, wherever the first of those items lies.

use crate::fixtures::strangers::Gather;
use crate::fixtures::wide::{in_turn, sampled, wide};
use counterflow_codegen::builder::*;
use counterflow_codegen::dtype::Dtype::Bf16;
use counterflow_codegen::lower::lower;
use counterflow_codegen::program::Program;
use counterflow_codegen::sm90;
use counterflow_codegen::variant::Variant;
use counterflow_codegen::verify;
use counterflow_codegen::warp::{Node, Pipeline};

/// Parts of a rank's chunks, which together are all of them.
type Parts = fn(ItemsRef) -> Vec<ItemsRef>;

/// The first CTAs push each part in a loop of its own.
fn pushed_in_parts(parts: Parts) -> Program {
    let mut s = ScheduleBuilder::new("pushed_in_parts");
    let gather = Gather::new(&mut s);
    s.comm(2u32, |s| {
        s.for_ranks("peer", ranks().before_me(), |s, peer| {
            for part in parts(gather.chunks.of(me())) {
                s.for_items("p", part, |s, p| {
                    s.copy(gather.x.on(&peer).at(p), gather.x.at(p));
                    s.signal(gather.arrived.on(&peer).at(p), 1);
                });
            }
        });
    });
    gather.multiply(&mut s, ranks().from_me());
    s.finish()
}

/// The same of a weight, whose chunks divide the columns of the product.
fn weight_in_parts(parts: Parts) -> Program {
    let mut s = ScheduleBuilder::new("weight_in_parts");
    let (x, w, y) = (s.local("x", Bf16), s.gathered("w", Bf16), s.out("y", Bf16));
    let chunks = s.chunks("chunks", w, 128);
    let tiles = s.tiles("tiles", y, (128, 256));
    let arrived = s.counters("arrived", [chunks.into()]);
    s.comm(2u32, |s| {
        s.for_ranks("peer", ranks().before_me(), |s, peer| {
            for part in parts(chunks.of(me())) {
                s.for_items("p", part, |s, p| {
                    s.copy(w.on(&peer).at(p), w.at(p));
                    s.signal(arrived.on(&peer).at(p), 1);
                });
            }
        });
    });
    s.gemm(GemmOptions::default(), |s| {
        s.for_ranks("shard", ranks().from_me(), |s, shard| {
            s.for_items("t", tiles.of(&shard), |s, t| {
                s.wait(arrived.at(t.columns()));
                let product = s.dot(x.at(t), w.at(t));
                s.store(y.at(t), product);
            });
        });
    });
    s.finish()
}

fn built(program: &Program, world: u32) -> Pipeline {
    let kernel = lower(program, &Variant::new(world)).and_then(verify::kernel);
    let pipeline = kernel.and_then(|kernel| sm90::build(&kernel));
    pipeline.unwrap_or_else(|error| panic!("{error}"))
}

/// What the warps of a program are told.
fn told(program: &Program, world: u32) -> String {
    match verify::pipeline(built(program, world)) {
        Ok(_) => "right".into(),
        Err(found) => found.first().text(&|_| String::new()),
    }
}

const PARTS: [Parts; 6] = [
    |all| vec![all.clone().take(8), all.skip(8)],
    |all| vec![all.clone().take(8), all.skip(4).skip(4)],
    |all| {
        let mut parts = vec![all.clone().step_by(4).take(2)];
        parts.extend((1..4).map(|first| all.clone().skip(first).step_by(4)));
        parts.push(all.step_by(4).skip(2));
        parts
    },
    |all| {
        let second = all.clone().second_half();
        vec![
            all.first_half(),
            second.clone().first_half(),
            second.second_half(),
        ]
    },
    |all| vec![all.clone().take(world() * 2), all.skip(world() * 2)],
    |all| vec![all.clone().take(2), all.skip(2)],
];

/// How many signals of a right pipeline can be left out unnoticed, and how many there are.
fn signals_left_out(mut good: Pipeline) -> (usize, usize) {
    assert!(verify::pipeline(good.clone()).is_ok());
    let is_signal = |node: &Node| matches!(node, Node::CounterAdd { .. } | Node::Defer { .. });
    let mut count = 0;
    good.lists(&mut |list| count += list.iter().filter(|node| is_signal(node)).count());
    let unnoticed = sampled(0..count, 4).filter(|victim| {
        let mut pipeline = good.clone();
        let mut seen = 0;
        pipeline.lists(&mut |list| {
            list.retain(|node| {
                seen += usize::from(is_signal(node));
                !is_signal(node) || seen != victim + 1
            });
        });
        verify::pipeline(pipeline).is_ok()
    });
    (unnoticed.count(), count)
}

#[test]
fn no_signal_can_be_left_out_of_a_loop_over_some() {
    // The sample has each way to part a loop once.
    let programs = PARTS.iter().enumerate().flat_map(|(at, parts)| {
        let both = [pushed_in_parts(*parts), weight_in_parts(*parts)];
        let both = both.into_iter().enumerate();
        let some = both.filter(move |(of, _)| wide() || *of == at % 2);
        some.map(|(_, program)| program)
    });
    let all: Vec<_> = programs
        .map(|program| signals_left_out(built(&program, 3)))
        .collect();
    assert!(
        all.iter()
            .all(|(unnoticed, count)| (*unnoticed, *count > 2) == (0, true)),
        "{all:?}"
    );
}

/// Such a case would be large.
#[test]
fn a_loop_whose_first_item_is_far_behind_is_refused() {
    let far: Parts = |all| vec![all.clone().take(200), all.skip(200)];
    for program in [pushed_in_parts(far), weight_in_parts(far)] {
        insta::allow_duplicates! {
            insta::assert_snapshot!(told(&program, 3), @"
            error[resources]: this loop has no kernel: all warps are tried with few items, and it selects none of those
              help: let it visit one where a shard has 24 items
            ");
        }
    }
}

/// There is nothing to try in it.
#[test]
fn a_loop_that_never_selects_anything_is_no_reason() {
    let never: Parts = |all| vec![all.clone(), all.clone().take(0), all.take(me() / 8)];
    assert_eq!(told(&pushed_in_parts(never), 3), "right");
}

/// The fifth rank sends with a role of its own. Worlds of three and of four have none.
fn one_for_itself(parts: Parts) -> Program {
    let mut s = ScheduleBuilder::new("one_for_itself");
    let gather = Gather::new(&mut s);
    s.comm(2u32, |s| {
        for mine in [true, false] {
            let cond = Cond::compare(Comparison::Eq, me(), 5);
            let cond = if mine { cond } else { cond.negate() };
            s.when(cond, |s| {
                s.for_ranks("peer", ranks().before_me(), |s, peer| {
                    for part in parts(gather.chunks.of(me())) {
                        s.for_items("p", part, |s, p| {
                            s.copy(gather.x.on(&peer).at(p), gather.x.at(p));
                            s.signal(gather.arrived.on(&peer).at(p), 1);
                        });
                    }
                });
            });
        }
    });
    gather.multiply(&mut s, ranks().from_me());
    s.finish()
}

/// What eight ranks do is tried for eight, if fewer would not do all of it; more are too many.
#[test]
fn what_one_rank_does_alone_is_tried() {
    let all: Parts = |all| vec![all];
    let parts: Parts = |all| vec![all.clone().take(2), all.skip(2)];
    for (at, parts) in [all, parts].into_iter().enumerate() {
        for world in in_turn([8, 4], at) {
            assert_eq!(told(&one_for_itself(parts), world), "right");
        }
        insta::allow_duplicates! {
            insta::assert_snapshot!(told(&one_for_itself(parts), 16), @"
            error[resources]: this has no kernel: all warps are tried for few ranks, and none of those does it
              help: let a rank do it in a world of 3, or of 4; what is compiled for at most 8 ranks is tried for those, too
            ");
        }
    }
}

/// The same beside a loop whose selection keeps a rank in bounds: without it, rank 0 would send to rank -1.
#[test]
fn what_one_rank_does_alone_is_tried_beside_what_only_some_ranks_do() {
    let mut s = ScheduleBuilder::new("to_the_one_before");
    let gather = Gather::new(&mut s);
    let noted = s.counters("noted", [gather.chunks.into()]);
    s.comm(2u32, |s| {
        for mine in [true, false] {
            let cond = Cond::compare(Comparison::Eq, me(), 5);
            let cond = if mine { cond } else { cond.negate() };
            s.when(cond, |s| {
                s.for_ranks("peer", ranks().before_me(), |s, peer| gather.push(s, &peer));
            });
        }
        s.for_items("c", gather.chunks.of(me()).take(me()), |s, c| {
            s.signal(noted.on(me() - 1).at(c), 1);
        });
    });
    gather.multiply(&mut s, ranks().from_me());
    let found = told(&s.finish(), 16);
    assert!(found.contains("none of those does it"), "{found}");
}

/// A cluster has neighbouring tiles together.
#[test]
fn a_cluster_computes_all_tiles() {
    let mut s = ScheduleBuilder::new("some");
    let (x, w, y) = (s.local("x", Bf16), s.local("w", Bf16), s.out("y", Bf16));
    let tiles = s.tiles("tiles", y, (128, 128));
    let cluster = GemmOptions {
        cluster: Some((2, 1).into()),
        ..GemmOptions::default()
    };
    s.gemm(cluster, |s| {
        for half in [tiles.all().first_half(), tiles.all().second_half()] {
            s.for_items("t", half, |s, t| {
                let product = s.dot(x.at(t), w.at(t));
                s.store(y.at(t), product);
            });
        }
    });
    let kernel = lower(&s.finish(), &Variant::new(2)).and_then(verify::kernel);
    let refused = kernel.and_then(|kernel| sm90::build(&kernel).map(|_| ()));
    let refused = refused.expect_err("a cluster of some tiles");
    insta::assert_snapshot!(refused.first().text(&|_| String::new()), @"
    error[resources]: some of the tiles, in a cluster of 2x1
      help: 1x1: a cluster has neighbouring tiles together
    ");
}
