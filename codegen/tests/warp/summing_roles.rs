//! `#[comm]` roles that add stored tiles and store what becomes of them, beside a GEMM.

use counterflow_codegen as codegen;

use crate::fixtures::library::{self, real};
use crate::fixtures::strangers::{added_around, added_beside};
use crate::roles::right;
use codegen::builder::*;
use codegen::diag::Rule;
use codegen::dtype::Dtype::Bf16;
use codegen::lower::lower;
use codegen::program::Program;
use codegen::sm90;
use codegen::variant::{Layout, Variant};
use codegen::verify;
use codegen::warp::{Ctas, FragmentOp, Node, Pipeline, ReadInto};

#[test]
fn tiles_that_are_sent_and_added() {
    right(&added_beside());
}

#[test]
fn a_ring_that_adds_and_sends_on() {
    right(&added_around());
}

#[test]
fn chunks_that_are_copied_and_then_added() {
    right(&library::bulk_rs(&real()));
}

#[test]
fn products_that_are_added_around_a_ring() {
    right(&library::rs_ring(&real()));
}

fn built(program: &Program, variant: &Variant) -> Result<Pipeline, String> {
    let kernel = lower(program, variant).and_then(verify::kernel);
    let kernel = kernel.unwrap_or_else(|found| panic!("{}: {found}", program.name));
    sm90::build(&kernel).map_err(|found| found.first().text(&|_| String::new()))
}

/// What the verifier says of a pipeline of which something is changed.
#[track_caller]
fn changed(change: impl Fn(&mut Pipeline)) -> Rule {
    let program = library::bulk_rs(&real());
    let mut pipeline = built(&program, &Variant::new(4)).expect("a pipeline");
    change(&mut pipeline);
    let found = verify::pipeline(pipeline).expect_err("refused");
    found.first().rule
}

#[test]
fn what_is_missing_in_a_sum_is_found() {
    let without = |gone: fn(&FragmentOp) -> bool| {
        changed(|pipeline| {
            let mut done = 0;
            pipeline.lists(&mut |list| {
                let before = list.len();
                list.retain(|node| !matches!(node, Node::Fragment(op) if gone(op)));
                done += before - list.len();
            });
            assert_eq!(done, 1, "one sum");
        })
    };
    let added = without(|op| {
        matches!(
            op,
            FragmentOp::ReadSubtile {
                into: ReadInto::Sum { .. },
                ..
            }
        )
    });
    assert_eq!(added, Rule::Coverage);
    let read = without(|op| {
        matches!(
            op,
            FragmentOp::ReadSubtile {
                into: ReadInto::Own { .. },
                ..
            }
        )
    });
    assert_eq!(read, Rule::Coverage);
}

/// Tiles that are given to other CTAs than those that compute them.
#[test]
fn sums_of_the_wrong_ctas() {
    let rule = changed(|pipeline| {
        let sums = pipeline.schedulers.last_mut().expect("that of the sums");
        let Ctas::Comm { count, .. } = &mut sums.ctas else {
            panic!("CTAs that move data");
        };
        *count = count.clone() + 1;
    });
    assert_eq!(rule, Rule::Coverage);
}

/// CTAs that compute tiles of their own do not join the GEMM.
#[test]
fn who_computes_stays_with_that() {
    let pipeline = built(&library::bulk_rs(&real()), &Variant::new(4)).expect("a pipeline");
    assert!(!pipeline.comm.expect("some CTAs move data").join_late);
}

/// A reduce-scatter by a `#[comm]` role, with something behind it, beside a GEMM.
fn beside(
    options: GemmOptions,
    sums: (u32, u32),
    behind: impl FnOnce(&mut ScheduleBuilder, PartitionRef, TensorRef, TensorRef),
) -> Program {
    let mut s = ScheduleBuilder::new("beside");
    let (x, w, y) = (s.local("x", Bf16), s.local("w", Bf16), s.out("y", Bf16));
    let (g, r) = (s.local("g", Bf16), s.reduce_scattered("r", Bf16));
    let tiles = s.tiles("tiles", y, (128, 128));
    let (sums, chunks) = (s.tiles("sums", r, sums), s.chunks("chunks", r, 128));
    let partial = s.symmetric("partial", Bf16, r, world());
    let landed = s.counters("landed", [world().into(), chunks.into()]);
    s.comm(2, |s| {
        s.for_ranks("owner", ranks().after_me(), |s, owner| {
            s.for_items("c", chunks.of(&owner), |s, c| {
                s.copy(partial.on(&owner).at(me()).at(c), g.at(c));
                s.signal(landed.on(&owner).at(me()).at(c), 1);
            });
        });
        s.for_items("t", sums.of(me()), |s, t| {
            s.wait(landed.at(others()).at(t.rows()));
            let mine = s.load(g.at(t));
            let theirs = s.sum(partial.at(others()).at(t));
            s.store(r.at(t), mine + theirs);
        });
        behind(s, chunks, partial, g);
    });
    s.gemm(options, |s| {
        s.for_items("t", tiles.all(), |s, t| {
            let acc = s.dot(x.at(t), w.at(t));
            s.store(y.at(t), acc);
        });
    });
    s.finish()
}

/// A `#[comm]` role stores what the GEMM multiplies, with a half more.
fn sums_of_an_operand() -> Program {
    let mut s = ScheduleBuilder::new("sums_of_an_operand");
    let (x, w, y) = (s.local("x", Bf16), s.local("w", Bf16), s.out("y", Bf16));
    let z = s.out("z", Bf16);
    let (tiles, sums) = (
        s.tiles("tiles", y, (128, 128)),
        s.tiles("sums", z, (128, 128)),
    );
    s.comm(2, |s| {
        s.for_items("t", sums.all(), |s, t| {
            let value = s.load(x.at(t));
            s.store(z.at(t), value.clone() + value);
        });
    });
    s.gemm(GemmOptions::default(), |s| {
        s.for_items("t", tiles.all(), |s, t| {
            let acc = s.dot(x.at(t), w.at(t));
            s.store(y.at(t), acc);
        });
    });
    s.finish()
}

#[test]
fn what_such_ctas_cannot_do_is_refused_with_what_is_possible() {
    let refused = |program| built(&program, &Variant::new(4)).expect_err("refused");
    let options = GemmOptions::default;
    let copy = beside(options(), (128, 128), |s, chunks, partial, g| {
        s.for_items("c", chunks.of(me()), |s, c| {
            s.copy(partial.at(me()).at(c), g.at(c));
        });
    });
    insta::assert_snapshot!("sums_copy_behind", refused(copy));
    let wider = beside(options(), (128, 256), |_, _, _, _| {});
    insta::assert_snapshot!("sums_of_another_tile", refused(wider));
    let ping_pong = GemmOptions {
        ping_pong: Some(true.into()),
        ..options()
    };
    let ping_pong = beside(ping_pong, (128, 128), |_, _, _, _| {});
    insta::assert_snapshot!("sums_beside_ping_pong", refused(ping_pong));
    insta::assert_snapshot!("sums_of_what_has_columns", {
        let tn = Variant::new(4).layout(Layout::Tn);
        built(&sums_of_an_operand(), &tn).expect_err("refused")
    });
}
