//! Gathered tensors of their own row counts, and statements on scratch with no plan at all.

use super::draw::{Draw, Part, shuffled};
use counterflow_codegen::builder::*;
use counterflow_codegen::dtype::Dtype::Bf16;
use counterflow_codegen::shape::Shape;

/// Two gathers side by side. Now and then ranks meet in one cell of rank 0, too, after their data or beside it: who of
/// them does is then another question for every shape. `parted`: one after its data, another beside its own.
pub fn gathers(draw: &mut Draw<'_>, s: &mut ScheduleBuilder, parted: bool) -> Vec<Shape> {
    let launches = launches(draw);
    let tensors = ["z0", "z1"].map(|name| s.gathered(name, Bf16));
    let chunks = [("p0", 0), ("p1", 1)].map(|(name, at)| s.chunks(name, tensors[at], 2u32));
    let arrived =
        [("arrived0", 0), ("arrived1", 1)].map(|(name, at)| s.counters(name, [chunks[at].into()]));
    let meets = parted || draw.of(3) != 1;
    let met = meets.then(|| s.counters("met", []));
    // Of each tensor: which rank's chunks are counted at rank 0, and whether beside the data.
    let last = || world() - 1;
    let ranks_of_0 = [RankExpr::from(1), 1.into(), last(), 2.into()];
    let ranks_of_1 = [last(), last(), last(), 1.into()];
    let counted = [ranks_of_0, ranks_of_1].map(|ranks| ranks[draw.of(4)].clone());
    let alone = [!parted && draw.of(2) == 1, parted || draw.of(2) == 1];
    let pure = |s: &mut ScheduleBuilder, at: usize| {
        if let Some(met) = met.filter(|_| alone[at]) {
            s.when(Cond::compare(Comparison::Eq, me(), &counted[at]), |s| {
                s.for_items("p", chunks[at].of(me()), |s, _| s.signal(met.on(0), 1));
            });
        }
    };
    s.comm(2u32, |s| {
        for at in 0..2 {
            s.for_ranks("peer", draw.order(ranks().before_me()), |s, peer| {
                s.for_items("c", chunks[at].of(me()), |s, c| {
                    let (z, to) = (tensors[at], peer.clone());
                    let whom = draw.rank(peer.clone(), &peer);
                    let mut parts: Vec<Part<'_>> = vec![
                        Box::new(move |s| s.copy(z.on(&to).at(c), z.at(c))),
                        Box::new(move |s| s.signal(arrived[at].on(&whom).at(c), 1)),
                    ];
                    if let Some(met) = met.filter(|_| !alone[at]) {
                        let here = Cond::compare(Comparison::Eq, me(), &counted[at]);
                        let here = here.and(Cond::compare(Comparison::Eq, &peer, 0));
                        parts.push(Box::new(move |s| {
                            s.when(here.clone(), |s| s.signal(met.on(0), 1));
                        }));
                    }
                    shuffled(draw, parts).into_iter().for_each(|part| part(s));
                });
            });
        }
    });
    let waits = draw.mostly(true, &[false]);
    s.spare_warps(|s| {
        (0..2).for_each(|at| pure(s, at));
        for at in 0..2 {
            s.for_ranks("shard", draw.order(ranks().after_me()), |s, shard| {
                s.for_items("c", chunks[at].of(&shard), |s, c| s.wait(arrived[at].at(c)));
            });
        }
        if let Some(met) = met.filter(|_| waits) {
            s.when(Cond::compare(Comparison::Eq, me(), 0), |s| s.wait(met));
        }
    });
    launches
}

/// Two kinds of launches in turn. In some, a rank has rows in the smaller one that has none in the larger one: the last
/// shard is short.
fn launches(draw: &mut Draw<'_>) -> Vec<Shape> {
    const PAIRS: [[(u32, u32); 2]; 4] = [
        [(8, 5), (1, 4)],
        [(8, 4), (1, 3)],
        [(8, 8), (1, 5)],
        [(6, 9), (3, 4)],
    ];
    let [large, small] = if draw.of(2) == 0 {
        PAIRS[draw.of(4)]
    } else {
        [0; 2].map(|_| (1 + draw.of(9) as u32, 1 + draw.of(9) as u32))
    };
    let shape = |(a, b): (u32, u32), columns: u32| {
        let shape = Shape::new(8, 8, 8).dim("z0.rows", a).dim("z1.rows", b);
        shape.dim("z0.columns", 8).dim("z1.columns", columns)
    };
    let wide = [8, 16][draw.of(2)];
    vec![shape(large, 8), shape(small, wide), shape(large, 8)]
}

/// Statements on scratch with no plan at all, beside a sound gather.
pub fn soup(draw: &mut Draw<'_>, s: &mut ScheduleBuilder) {
    let x = s.gathered("x", Bf16);
    let chunks = s.chunks("chunks", x, 2u32);
    let arrived = s.counters("arrived", [chunks.into()]);
    let scratch = s.symmetric("scratch", Bf16, x.whole(), world());
    let handed = s.counters("handed", [world().into(), chunks.into()]);
    s.comm(2u32, |s| {
        s.for_ranks("peer", ranks().before_me(), |s, peer| {
            s.for_items("c", chunks.of(me()), |s, c| {
                s.copy(x.on(&peer).at(c), x.at(c));
                s.signal(arrived.on(&peer).at(c), 1);
            });
        });
    });
    let some = |draw: &mut Draw<'_>, s: &mut ScheduleBuilder| {
        for _ in 0..1 + draw.of(2) {
            let order = draw.order(ranks().after_me());
            s.for_ranks("peer", order, |s, peer| {
                let shard = draw.rank(me(), &peer);
                s.for_items("c", chunks.of(shard), |s, c| {
                    for _ in 0..1 + draw.of(4) {
                        let (rank, slot) = (draw.rank(peer.clone(), &peer), draw.rank(me(), &peer));
                        match draw.of(6) {
                            0 | 1 => s.copy(scratch.on(rank).at(slot).at(c), x.at(c)),
                            2 => s.copy(
                                scratch.at(slot.clone()).at(c),
                                scratch.on(rank).at(slot).at(c),
                            ),
                            3 => s.wait(handed.at(slot).at(c)),
                            4 => s.wait(arrived.at(c)),
                            _ => s.signal(handed.on(rank).at(slot).at(c), 1),
                        }
                    }
                });
            });
        }
    };
    s.spare_warps(|s| {
        s.for_ranks("shard", ranks().after_me(), |s, shard| {
            s.for_items("c", chunks.of(&shard), |s, c| s.wait(arrived.at(c)));
        });
        some(draw, s);
    });
    s.comm(2u32, |s| some(draw, s));
}
