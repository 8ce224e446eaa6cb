//! A cell that two ranks signal, each in launches of another shape: no plan alone shows it.

use super::{interleave, kernel, trace};
use counterflow_codegen::builder::*;
use counterflow_codegen::dtype::Dtype::Bf16;
use counterflow_codegen::machine::Machine;
use counterflow_codegen::program::Program;
use counterflow_codegen::shape::Shape;
use counterflow_codegen::verify;

fn is(rank: u32) -> Cond {
    Cond::compare(Comparison::Eq, me(), RankExpr::from(rank as i32))
}

fn is_not(rank: u32) -> Cond {
    Cond::compare(Comparison::Ne, me(), RankExpr::from(rank as i32))
}

/// Two gathers. Rank 0 learns of rank 1's rows of `z1` by one cell, and rank 2 signals that cell for each of its
/// chunks of `z2`, of which it has none in a launch of one row; nor has rank 1 then of `z1`.
pub fn one_cell() -> Program {
    let mut s = ScheduleBuilder::new("one_cell");
    let (z1, z2) = (s.gathered("z1", Bf16), s.gathered("z2", Bf16));
    let of_z1 = s.chunks("of_z1", z1, 2u32);
    let of_z2 = s.chunks("of_z2", z2, 2u32);
    let arrived1 = s.counters("arrived1", [of_z1.into()]);
    let arrived2 = s.counters("arrived2", [of_z2.into()]);
    let both = s.counters("both", vec![]);
    s.comm(2u32, |s| {
        s.for_ranks("peer", ranks().before_me(), |s, peer| {
            s.for_items("p", of_z1.of(me()), |s, p| {
                s.copy(z1.on(&peer).at(p), z1.at(p));
                let first = Cond::compare(Comparison::Eq, &peer, RankExpr::from(0));
                s.when_else(
                    is(1),
                    |s| {
                        s.when_else(
                            first,
                            |s| s.signal(both.on(&peer), 1),
                            |s| s.signal(arrived1.on(&peer).at(p), 1),
                        );
                    },
                    |s| s.signal(arrived1.on(&peer).at(p), 1),
                );
            });
            s.for_items("q", of_z2.of(me()), |s, q| {
                s.copy(z2.on(&peer).at(q), z2.at(q));
                s.signal(arrived2.on(&peer).at(q), 1);
            });
        });
        s.when(is(2), |s| {
            s.for_items("q", of_z2.of(me()), |s, _| s.signal(both.on(0), 1));
        });
        s.when(is(0), |s| s.wait(both));
        s.for_ranks("shard", ranks().after_me(), |s, shard| {
            let from_1 = Cond::compare(Comparison::Eq, &shard, RankExpr::from(1));
            s.when_else(
                from_1,
                |s| {
                    s.when(is_not(0), |s| {
                        s.for_items("p", of_z1.of(&shard), |s, p| s.wait(arrived1.at(p)));
                    });
                },
                |s| s.for_items("p", of_z1.of(&shard), |s, p| s.wait(arrived1.at(p))),
            );
            s.for_items("q", of_z2.of(&shard), |s, q| s.wait(arrived2.at(q)));
        });
    });
    s.finish()
}

pub fn shape(z1: u32, z2: u32) -> Shape {
    let shape = Shape::new(1, 8, 8).dim("z1.rows", z1).dim("z2.rows", z2);
    shape.dim("z1.columns", 8).dim("z2.columns", 8)
}

#[test]
fn each_shape_alone_is_legal_and_both_together_are_not() {
    let kernel = kernel(&one_cell(), 3);
    for only in [shape(8, 1), shape(1, 8)] {
        let series = verify::series(&kernel, &only, &Machine::h200()).expect("is safe");
        let plan = series.plan(&only).expect("is safe");
        interleave(&series, &[&plan; 4], 0..50).unwrap_or_else(|failure| panic!("{failure}"));
    }
    let refused = verify::series(&kernel, &shape(8, 8), &Machine::h200());
    let told = trace(&refused.expect_err("refused"));
    insta::assert_snapshot!(told, @r#"
    error[attribution]: comm of rank 0 may mistake a signal of the next launch for one of this launch
      --> s.when(is(0), |s| s.wait(both));
      = comm of rank 0 waits for both
        --> s.when(is(0), |s| s.wait(both));
      = comm of rank 2 adds 1 to both on rank 0, perhaps already in the next launch
        --> s.for_items("q", of_z2.of(me()), |s, _| s.signal(both.on(0), 1));
      = several ranks signal that cell, so its count does not show which of them did
      help: give each signaller a cell of its own: `counters(world(), …)`, signalled at `[me()]`
    "#);
}

#[cfg(debug_assertions)]
#[test]
fn both_together_fail() {
    use counterflow_codegen::undo::{Fix, undoing};
    undoing(Fix::Dimensions, || {
        let kernel = kernel(&one_cell(), 3);
        let series = verify::series(&kernel, &shape(8, 8), &Machine::h200()).expect("passes");
        let plans = [shape(8, 1), shape(1, 8)].map(|shape| series.plan(&shape).expect("passes"));
        let launches = [&plans[0], &plans[1], &plans[0], &plans[1]];
        let failed =
            (0..200).filter(|seed| interleave(&series, &launches, *seed..seed + 1).is_err());
        assert_eq!(failed.count(), 200);
    });
}
