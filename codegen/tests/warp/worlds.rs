//! Schedules that are legal in some worlds alone: their warps are tried in one of those.

use counterflow_codegen::builder::*;
use counterflow_codegen::diag::{Diagnostics, Rule};
use counterflow_codegen::dtype::Dtype::Bf16;
use counterflow_codegen::kernel::Kernel;
use counterflow_codegen::lower::lower;
use counterflow_codegen::machine::Machine;
use counterflow_codegen::shape::Shape;
use counterflow_codegen::sm90;
use counterflow_codegen::variant::Variant;
use counterflow_codegen::verify::{self, Checked};
use counterflow_codegen::warp::{Node, Pipeline};

/// Partners swap their rows, in the order of `me ^ step`: legal for `world` ranks, a power of two, and no others.
fn exchange(world: u32) -> Checked<Kernel> {
    let mut s = ScheduleBuilder::new("exchange");
    let (x, w, y) = (s.gathered("x", Bf16), s.local("w", Bf16), s.out("y", Bf16));
    let chunks = s.chunks("chunks", x, 128);
    let tiles = s.tiles("tiles", y, (128, 256));
    let arrived = s.counters("arrived", [chunks.into()]);
    s.comm(4, |s| {
        for step in 1..world {
            s.for_items("c", chunks.of(me()), |s, c| {
                s.copy(x.on(me() ^ step).at(c), x.at(c));
                s.signal(arrived.on(me() ^ step).at(c), 1);
            });
        }
    });
    s.gemm(GemmOptions::default(), |s| {
        s.for_ranks("shard", ranks().from_me(), |s, shard| {
            s.for_items("t", tiles.of(&shard).grouped(8), |s, t| {
                s.wait(arrived.at(t.rows()));
                let acc = s.dot(x.at(t), w.at(t));
                s.store(y.at(t), acc);
            });
        });
    });
    let kernel = lower(&s.finish(), &Variant::new(world)).and_then(verify::kernel);
    let kernel = kernel.unwrap_or_else(|error| panic!("{world} ranks: {error}"));
    let shape = Shape::new(1024, 256, 256);
    verify::plan(&kernel, &shape, &Machine::h200())
        .unwrap_or_else(|error| panic!("{world} ranks: {error}"));
    kernel
}

#[track_caller]
fn refused(result: Result<Checked<Pipeline>, Diagnostics>) -> Diagnostics {
    result.expect_err("refused")
}

#[test]
fn warps_are_tried_in_a_world_in_which_the_schedule_is_legal() {
    for world in [2, 4, 8] {
        let kernel = exchange(world);
        verify::warps(&kernel).unwrap_or_else(|error| panic!("{world} ranks: {error}"));
    }
}

/// They are tried: what is wrong with the warps is found there.
#[test]
fn what_is_wrong_with_the_warps_is_found_in_that_world() {
    for world in [2, 4, 8] {
        let mut pipeline = sm90::build(&exchange(world)).expect("a pipeline");
        let mut done = false;
        pipeline.lists(&mut |list| {
            let wait = |node: &Node| matches!(node, Node::CounterWait { .. });
            if let Some(at) = list.iter().position(wait).filter(|_| !done) {
                list.remove(at);
                done = true;
            }
        });
        assert!(done, "nothing to leave out");
        let found = refused(verify::pipeline(pipeline));
        let rule = found.first().rule;
        assert!(![Rule::Resources, Rule::Bounds].contains(&rule), "{found}");
    }
}

/// Nobody is to blame: the schedule is safe, and so may the warps be.
#[test]
fn a_schedule_that_no_small_world_has_is_refused_and_nobody_blamed() {
    let found = refused(verify::warps(&exchange(16)));
    let text = found.first().text(&|_| String::new());
    assert!(!text.contains("our bug"), "{text}");
    assert_eq!(
        text,
        "error[resources]: all warps are tried for 3 ranks or 4, and the schedule is legal for neither: `me ^ 3` is rank 3 \
         on rank 0, but in a world of 3 ranks end at 2\n  help: make it legal for 3 or 4 ranks, whatever its rows, \
         columns and depth; one that is compiled for at most 8 is tried for those, too\n"
    );
    assert!(
        found
            .first()
            .at
            .is_some_and(|at| at.file().ends_with("worlds.rs"))
    );
}
