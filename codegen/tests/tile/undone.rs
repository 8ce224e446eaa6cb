//! Each fix of the verifier's sums is needed: without it, a schedule is accepted that the emulator shows to be wrong.

use counterflow_codegen::builder::*;
use counterflow_codegen::dtype::Dtype::Bf16;
use counterflow_codegen::kernel::Kernel;
use counterflow_codegen::lower::lower;
use counterflow_codegen::machine::Machine;
use counterflow_codegen::plan::Plan;
use counterflow_codegen::program::Program;
use counterflow_codegen::shape::Shape;
use counterflow_codegen::undo::{Fix, undoing};
use counterflow_codegen::value::Value;
use counterflow_codegen::variant::{Arch, Variant};
use counterflow_codegen::verify;
use counterflow_emulator::{self as interp, Options};

/// A reduce-scatter whose ranks send `term` of their products and a bias.
fn reduce_scatter(term: fn(Value, Value) -> Value) -> Program {
    let mut s = ScheduleBuilder::new("reduce_scatter");
    let (x, w, bias) = (
        s.local("x", Bf16),
        s.local("w", Bf16),
        s.vector("bias", Bf16),
    );
    let y = s.reduce_scattered("y", Bf16);
    let tiles = s.tiles("tiles", y, (4, 8));
    let partial = s.symmetric("partial", Bf16, y, world());
    let landed = s.counters("landed", [world().into(), tiles.into()]);
    s.gemm(GemmOptions::default(), |s| {
        s.for_ranks("owner", ranks().after_me(), |s, owner| {
            s.for_items("t", tiles.of(&owner), |s, t| {
                let acc = s.dot(x.at(t), w.at(t));
                let bias = s.load(bias);
                s.store(partial.on(&owner).at(me()).at(t), term(acc, bias));
                s.signal(landed.on(&owner).at(me()).at(t), 1);
            });
        });
        s.for_items("t", tiles.of(me()), |s, t| {
            let mine = s.dot(x.at(t), w.at(t));
            s.wait(landed.at(others()).at(t));
            let theirs = s.sum(partial.at(others()).at(t));
            s.store(y.at(t), mine + theirs);
        });
    });
    s.finish()
}

/// A gather whose owners send another tensor's rows.
fn gather() -> Program {
    let mut s = ScheduleBuilder::new("gather");
    let (x, z) = (s.gathered("x", Bf16), s.local("z", Bf16));
    let (w, y) = (s.local("w", Bf16), s.out("y", Bf16));
    let chunks = s.chunks("chunks", x, 3);
    let tiles = s.tiles("tiles", y, (4, 8));
    let arrived = s.counters("arrived", [chunks.into()]);
    s.comm(2, |s| {
        s.for_ranks("peer", ranks().before_me(), |s, peer| {
            s.for_items("c", chunks.of(me()), |s, c| {
                s.copy(x.on(&peer).at(c), z.at(c));
                s.signal(arrived.on(&peer).at(c), 1);
            });
        });
    });
    s.gemm(GemmOptions::default(), |s| {
        s.for_ranks("shard", ranks().from_me(), |s, shard| {
            s.for_items("t", tiles.of(shard), |s, t| {
                s.wait(arrived.at(t.rows()));
                let acc = s.dot(x.at(t), w.at(t));
                s.store(y.at(t), acc);
            });
        });
    });
    s.finish()
}

/// An exchange in which every rank sends into the slot of the next one.
fn exchange() -> Program {
    let mut s = ScheduleBuilder::new("exchange");
    let (x, w) = (s.local("x", Bf16), s.local("w", Bf16));
    let y = s.all_to_all("y", Bf16);
    let tiles = s.tiles("tiles", y, (4, 8));
    let landed = s.counters("landed", [world().into(), tiles.into()]);
    s.gemm(GemmOptions::default(), |s| {
        s.for_ranks("owner", ranks().from_me(), |s, owner| {
            s.for_items("t", tiles.of(&owner), |s, t| {
                let product = s.dot(x.at(t), w.at(t));
                s.store(y.on(&owner).at((me() + 1) % world()).at(t), product);
                s.signal(landed.on(&owner).at(me()).at(t), 1);
            });
        });
        s.for_items("t", tiles.of(me()), |s, t| {
            s.wait(landed.at(everyone()).at(t))
        });
    });
    s.finish()
}

/// A gather of results in which every rank computes the rows of the next one.
fn gather_of_results() -> Program {
    let mut s = ScheduleBuilder::new("gather_of_results");
    let (x, w) = (s.local("x", Bf16), s.local("w", Bf16));
    let y = s.gathered_output("y", Bf16);
    let tiles = s.tiles("tiles", y, (4, 8));
    let arrived = s.counters("arrived", [tiles.into()]);
    s.gemm(GemmOptions::default(), |s| {
        s.for_items("t", tiles.of((me() + 1) % world()), |s, t| {
            let tile = s.dot(x.at(t), w.at(t));
            s.store(y.at(t), tile.clone());
            s.for_ranks("peer", ranks().after_me(), |s, peer| {
                s.store(y.on(&peer).at(t), tile);
                s.signal(arrived.on(&peer).at(t), 1);
            });
        });
        s.for_items("t", tiles.all(), |s, t| s.wait(arrived.at(t)));
    });
    s.finish()
}

fn accepted(kernel: &Kernel, plan: &Plan) -> bool {
    verify::kernel_findings(kernel).is_empty()
        && verify::plan_findings(kernel, plan, None).is_empty()
}

fn needed(fix: Fix, program: &Program) {
    let kernel = lower(program, &Variant::new(3).arch(Arch::Cpu)).expect("lowers");
    let plan = Plan::new(&kernel, &Shape::new(29, 24, 16), &Machine::h200()).expect("has a plan");
    assert!(!accepted(&kernel, &plan), "{fix:?}");
    assert!(undoing(fix, || accepted(&kernel, &plan)), "{fix:?}");
    let options = Options::seed(1).tags_only();
    let run = interp::provoke(&kernel, &[vec![&plan]], &options, |_, _| {});
    assert!(run.is_err(), "{fix:?}: runs without a failure");
}

#[test]
fn every_term_counts_as_often_as_it_is_added() {
    needed(
        Fix::Multiplicity,
        &reduce_scatter(|mine, _| mine.clone() + mine),
    );
}

#[test]
fn a_bias_is_a_term() {
    needed(
        Fix::AddedTerms,
        &reduce_scatter(|mine, bias| mine.bias(bias)),
    );
}

#[test]
fn a_gather_is_of_its_own_tensor() {
    needed(Fix::Provenance, &gather());
}

#[test]
fn a_slot_is_its_rank_s() {
    needed(Fix::Provenance, &exchange());
}

#[test]
fn rows_of_a_gathered_result_are_their_rank_s() {
    needed(Fix::Provenance, &gather_of_results());
}
