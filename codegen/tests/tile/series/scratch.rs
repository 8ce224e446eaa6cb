//! Scratch that is written and left there: launches of one shape write different slots, and of two shapes the same
//! bytes.

use super::{kernel, rows, trace};
use counterflow_codegen::builder::*;
use counterflow_codegen::dtype::Dtype::Bf16;
use counterflow_codegen::machine::Machine;
use counterflow_codegen::program::Program;
use counterflow_codegen::verify;

/// Every rank writes a slot of its own on every rank; nobody reads them.
fn left_there() -> Program {
    let mut s = ScheduleBuilder::new("left_there");
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
        s.for_ranks("shard", ranks().after_me(), |s, shard| {
            s.for_items("c", chunks.of(&shard), |s, c| s.wait(arrived.at(c)));
        });
    });
    s.spare_warps(|s| {
        s.for_ranks("peer", ranks().after_me(), |s, peer| {
            s.for_items("c", chunks.of(me()), |s, c| {
                s.copy(scratch.on(&peer).at(me()).at(c), x.at(c));
                s.signal(handed.on(&peer).at(me()).at(c), 1);
            });
        });
        s.for_items("c", chunks.of(me()), |s, c| {
            s.copy(scratch.at(me()).at(c), x.at(c))
        });
        s.for_ranks("shard", ranks().after_me(), |s, shard| {
            s.for_items("c", chunks.of(&shard), |s, c| {
                s.wait(handed.at(&shard).at(c))
            });
        });
    });
    s.finish()
}

#[test]
fn what_nobody_reads_is_in_the_way_of_another_shape() {
    let refused = verify::series(&kernel(&left_there(), 2), &rows(8), &Machine::h200());
    insta::assert_snapshot!(trace(&refused.expect_err("refused")), @"
    error[reuse]: rank 0 writes rows 0..2 of scratch[0] on rank 0, perhaps while a launch of another shape writes there
      --> s.copy(scratch.at(me()).at(c), x.at(c))
      = spare_warps of rank 0 copies rows 0..2 of x to rows 0..2 of scratch[0]
        --> s.copy(scratch.at(me()).at(c), x.at(c))
      = the next launch waits for free_scratch, which is granted without waiting for this access
      = rows of scratch move in memory when the shape changes
      help: let a role that reads this scratch wait for a signal that comes after the access
    ");
}

#[cfg(debug_assertions)]
#[test]
fn without_the_rule_launches_of_two_shapes_fail_and_of_one_do_not() {
    use super::interleave;
    use counterflow_codegen::undo::{Fix, undoing};
    undoing(Fix::Dimensions, || {
        let kernel = kernel(&left_there(), 2);
        let series = verify::series(&kernel, &rows(8), &Machine::h200()).expect("passes");
        let plans = [8, 5].map(|m| series.plan(&rows(m)).expect("passes"));
        let fails = |launches: [usize; 4]| {
            let launches = launches.map(|launch| &plans[launch]);
            (0..50).any(|seed| interleave(&series, &launches, seed..seed + 1).is_err())
        };
        assert!(!fails([0, 0, 0, 0]) && !fails([1, 1, 1, 1]));
        assert!(fails([0, 1, 0, 1]));
    });
}
