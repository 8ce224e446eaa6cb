//! Schedules without `#[gemm]`: `#[comm]` CTAs move and compute all there is.

use crate::fixtures::strangers::{dispatched_alone, gathered_alone, reduce_scatter_alone};
use crate::roles::right;
use counterflow_codegen as codegen;

use codegen::builder::*;
use codegen::dtype::Dtype::{Bf16, F32};
use codegen::lower::lower;
use codegen::plan::Plan;
use codegen::program::Program;
use codegen::shape::Shape;
use codegen::sm90;
use codegen::variant::Variant;
use codegen::verify;
use counterflow_codegen::machine::Machine;

#[test]
fn a_reduce_scatter_of_tiles() {
    right(&reduce_scatter_alone());
}

#[test]
fn rows_that_go_to_their_owners() {
    right(&dispatched_alone());
}

/// Two roles at the same time, one of which pulls.
#[test]
fn two_gathers() {
    right(&gathered_alone());
}

/// The sums go to everybody.
#[test]
fn an_all_reduce_of_tiles() {
    let mut s = ScheduleBuilder::new("all_reduce_alone");
    let (g, y) = (s.local("g", Bf16), s.all_reduced("y", Bf16));
    let tiles = s.tiles("tiles", y, (128, 128));
    let partial = s.symmetric("partial", Bf16, y.shard(), world());
    let landed = s.counters("landed", [world().into(), tiles.into()]);
    let done = s.counters("done", [tiles.into()]);
    s.comm(4, |s| {
        s.for_ranks("owner", ranks().after_me(), |s, owner| {
            s.for_items("t", tiles.of(&owner), |s, t| {
                let part = s.load(g.at(t));
                s.store(partial.on(&owner).at(me()).at(t), part);
                s.signal(landed.on(&owner).at(me()).at(t), 1);
            });
        });
        s.for_items("t", tiles.of(me()), |s, t| {
            let mine = s.load(g.at(t));
            s.wait(landed.at(others()).at(t));
            let sum = mine + s.sum(partial.at(others()).at(t));
            s.store(y.at(t), sum.clone());
            s.for_ranks("peer", ranks().after_me(), |s, peer| {
                s.store(y.on(&peer).at(t), sum.clone());
                s.signal(done.on(&peer).at(t), 1);
            });
        });
        s.for_ranks("owner", ranks().after_me(), |s, owner| {
            s.for_items("t", tiles.of(&owner), |s, t| s.wait(done.at(t)));
        });
    });
    right(&s.finish());
}

fn refused(program: &Program) -> String {
    let kernel = lower(program, &Variant::new(4)).and_then(verify::kernel);
    let kernel = kernel.unwrap_or_else(|found| panic!("{found}"));
    let found = sm90::build(&kernel).expect_err("refused");
    assert!(
        found
            .first()
            .at
            .is_some_and(|at| at.file().ends_with("without_gemm.rs"))
    );
    found.first().text(&|_| String::new())
}

/// The only `#[gemm]` loop waits: there is no tile for its CTAs, and no `#[comm]` CTA for the waits.
#[test]
fn loops_that_only_wait_are_refused() {
    let mut s = ScheduleBuilder::new("all_gather");
    let x = s.gathered("x", Bf16);
    let (chunks, tiles) = (s.chunks("chunks", x, 128), s.tiles("tiles", x, (128, 128)));
    let arrived = s.counters("arrived", [chunks.into()]);
    s.comm(4, |s| {
        s.for_ranks("peer", ranks().before_me(), |s, peer| {
            s.for_items("c", chunks.of(me()), |s, c| {
                s.copy(x.on(&peer).at(c), x.at(c));
                s.signal(arrived.on(&peer).at(c), 1);
            });
        });
    });
    s.gemm(GemmOptions::default(), |s| {
        s.for_ranks("peer", ranks().after_me(), |s, peer| {
            s.for_items("t", tiles.of(&peer), |s, t| s.wait(arrived.at(t.rows())));
        });
    });
    insta::assert_snapshot!(refused(&s.finish()), @"
    error[resources]: #[gemm] loops that compute no tile
      help: a `#[comm]` role that copies, waits or signals, or a `#[gemm]` loop that stores tiles
    ");
}

/// A copy engine needs no CTA, and a kernel has some.
#[test]
fn copies_by_engines_alone_are_refused() {
    let mut s = ScheduleBuilder::new("engines");
    let x = s.gathered("x", Bf16);
    let chunks = s.chunks("chunks", x, 128);
    s.copy_engine(|s| {
        s.for_ranks("peer", ranks().after_me(), |s, peer| {
            s.for_items("c", chunks.of(&peer), |s, c| {
                s.copy(x.at(c), x.on(&peer).at(c))
            });
        });
    });
    insta::assert_snapshot!(refused(&s.finish()), @"
    error[resources]: a schedule without CTAs: copy engines and spare warps have none
      help: a `#[comm]` role that copies, waits or signals, or a `#[gemm]` loop that stores tiles
    ");
}

/// Spare warps are those of CTAs that multiply; the role is named.
#[test]
fn spare_warps_alone_are_refused_at_their_role() {
    let mut s = ScheduleBuilder::new("spare");
    let x = s.gathered("x", Bf16);
    let chunks = s.chunks("chunks", x, 128);
    s.spare_warps(|s| {
        s.for_ranks("peer", ranks().after_me(), |s, peer| {
            s.for_items("c", chunks.of(me()), |s, c| {
                s.copy(x.on(&peer).at(c), x.at(c))
            });
        });
    });
    let program = s.finish();
    let kernel = lower(&program, &Variant::new(2)).expect("a kernel");
    let shape = Shape::new(512, 64, 64);
    let found = Plan::new(&kernel, &shape, &Machine::h200()).expect_err("no CTA");
    assert_eq!(found.first().at, Some(program.roles[0].at));
}

/// All SMs may be theirs, and no more.
#[test]
fn ctas_that_move_data_alone_may_have_every_sm() {
    let on = |ctas: u32| {
        let mut s = ScheduleBuilder::new("many");
        let (x, y) = (s.local("x", Bf16), s.out("y", Bf16));
        let chunks = s.chunks("chunks", x, 128);
        s.comm(ctas, |s| {
            s.for_items("c", chunks.all(), |s, c| s.copy(y.at(c), x.at(c)));
        });
        let kernel = lower(&s.finish(), &Variant::new(1)).expect("a kernel");
        let shape = Shape::new(512, 64, 64);
        let shape = shape.dim("x.rows", 512).dim("x.columns", 64);
        Plan::new(&kernel, &shape, &Machine::h200())
    };
    assert!(on(132).is_ok());
    let found = on(133).expect_err("no room");
    insta::assert_snapshot!(found.first().text(&|_| String::new()), @"
    error[resources]: 133 comm CTAs on 132 SMs
      help: all CTAs run together: at most 132
    ");
}

/// Boxes of both would be other columns.
#[test]
fn elements_of_several_sizes_in_one_item_are_refused() {
    let mut s = ScheduleBuilder::new("copies");
    let (x, z) = (s.local("x", Bf16), s.local("z", F32));
    let (y, of_z) = (s.out("y", Bf16), s.out("of_z", F32));
    let chunks = s.chunks("chunks", x, 128);
    s.comm(4, |s| {
        s.for_items("c", chunks.all(), |s, c| {
            s.copy(y.at(c), x.at(c));
            s.copy(of_z.at(c), z.at(c));
        });
    });
    insta::assert_snapshot!(refused(&s.finish()), @"
    error[resources]: copies of elements of several sizes in one item
      help: a loop for each: their chunks are other batches of boxes
    ");
}
