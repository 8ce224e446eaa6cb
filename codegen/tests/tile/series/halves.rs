//! Which half an item is of depends on how many there are. So two ranks may signal one cell, each in launches of another size.

use super::{kernel, trace};
use counterflow_codegen::builder::*;
use counterflow_codegen::dtype::Dtype::Bf16;
use counterflow_codegen::machine::Machine;
use counterflow_codegen::program::Program;
use counterflow_codegen::shape::Shape;
use counterflow_codegen::verify;

fn is(rank: &RankExpr, other: i32) -> Cond {
    Cond::compare(Comparison::Eq, rank, RankExpr::from(other))
}

/// A gather. Rank 0 learns of the first half of rank 1's chunks by `told`, and of the second half by `arrived`, as all
/// others do; but rank 2 tells it, too, that it runs.
fn told_by_two() -> Program {
    let mut s = ScheduleBuilder::new("told_by_two");
    let x = s.gathered("x", Bf16);
    let chunks = s.chunks("chunks", x, 2u32);
    let arrived = s.counters("arrived", [chunks.into()]);
    let told = s.counters("told", [chunks.into()]);
    s.comm(2u32, |s| {
        let halves = |of: &RankExpr| {
            let all = chunks.of(of);
            [(all.clone().first_half(), true), (all.second_half(), false)]
        };
        s.when(is(&me(), 2), |s| {
            s.for_items("c", chunks.of(1).second_half(), |s, c| {
                s.signal(told.on(0).at(c), 1);
            });
        });
        s.for_ranks("peer", ranks().after_me(), |s, peer| {
            for (some, first) in halves(&me()) {
                s.for_items("c", some, |s, c| {
                    s.copy(x.on(&peer).at(c), x.at(c));
                    let tells = is(&me(), 1).and(is(&peer, 0));
                    let arrives = |s: &mut ScheduleBuilder| s.signal(arrived.on(&peer).at(c), 1);
                    match first {
                        true => s.when_else(tells, |s| s.signal(told.on(0).at(c), 1), arrives),
                        false => arrives(s),
                    }
                });
            }
        });
        s.for_ranks("shard", ranks().after_me(), |s, shard| {
            for (some, first) in halves(&shard) {
                s.for_items("c", some, |s, c| {
                    let tells = is(&me(), 0).and(is(&shard, 1));
                    match first {
                        true => {
                            s.when_else(tells, |s| s.wait(told.at(c)), |s| s.wait(arrived.at(c)))
                        }
                        false => {
                            s.when(tells, |s| s.wait(told.at(c)));
                            s.wait(arrived.at(c));
                        }
                    }
                });
            }
        });
    });
    s.finish()
}

/// Shards of so many chunks.
fn of_chunks(chunks: u32) -> Shape {
    Shape::new(3 * 2 * chunks, 8, 8)
}

#[test]
fn cells_of_halves_are_judged_over_all_sizes() {
    let refused = verify::series(&kernel(&told_by_two(), 3), &of_chunks(3), &Machine::h200());
    let told = trace(&refused.expect_err("refused"));
    insta::assert_snapshot!(told, @r"
    error[attribution]: comm of rank 0 may mistake a signal of the next launch for one of this launch
      --> s.when_else(tells, |s| s.wait(told.at(c)), |s| s.wait(arrived.at(c)))
      = comm of rank 0 waits for told[3]
        --> s.when_else(tells, |s| s.wait(told.at(c)), |s| s.wait(arrived.at(c)))
      = comm of rank 2 adds 1 to told[3] on rank 0, perhaps already in the next launch
        --> s.signal(told.on(0).at(c), 1);
      = several ranks signal that cell, so its count does not show which of them did
      help: give each signaller a cell of its own: `counters(world(), …)`, signalled at `[me()]`
    ");
}

/// The second of two chunks is of the second half, the second of three of the first.
#[cfg(debug_assertions)]
#[test]
fn launches_of_two_sizes_fail() {
    use super::interleave;
    use counterflow_codegen::undo::{Fix, undoing};
    undoing(Fix::Dimensions, || {
        let kernel = kernel(&told_by_two(), 3);
        let series = verify::series(&kernel, &of_chunks(3), &Machine::h200()).expect("passes");
        let plans = [2, 3].map(|n| series.plan(&of_chunks(n)).expect("passes"));
        for plan in &plans {
            interleave(&series, &[plan; 4], 0..50).unwrap_or_else(|why| panic!("{why}"));
        }
        let launches = [&plans[0], &plans[1], &plans[0], &plans[1]];
        let fails = |seed: &u64| interleave(&series, &launches, *seed..seed + 1).is_err();
        assert!((0..400).filter(fails).count() > 0);
    });
}
