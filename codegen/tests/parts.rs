//! Items that have a part of K each: what the warp-level verifier says when one thing is changed.

use counterflow_codegen::builder::{GemmOptions, ScheduleBuilder};
use counterflow_codegen::dtype::Dtype::{Bf16, F32};
use counterflow_codegen::lower::lower;
use counterflow_codegen::pipeline::{self, Node, Pipeline};
use counterflow_codegen::program::Program;
use counterflow_codegen::variant::Variant;
use counterflow_codegen::verify;

fn gemm_split(tile: (u32, u32), options: fn() -> GemmOptions) -> Program {
    let mut s = ScheduleBuilder::new("gemm_split");
    let (x, w, y) = (s.local("x", Bf16), s.local("w", Bf16), s.out("y", Bf16));
    let tiles = s.tiles("tiles", y, tile);
    let parts = s.splits("parts", 3);
    let partial = s.symmetric("partial", F32, y, parts.before_last());
    let done = s.counters("done", [parts.before_last().into(), tiles.into()]);
    s.gemm(options(), |s| {
        s.for_parts("s", parts.before_last(), |s, part| {
            s.for_items("t", tiles.grouped(8), |s, t| {
                let acc = s.dot(x.at(t).at(part), w.at(t).at(part));
                s.store(partial.at(part).at(t), acc);
                s.signal(done.at(part).at(t), 1);
            });
        });
    });
    s.gemm(options(), |s| {
        s.for_parts("s", parts.last(), |s, part| {
            s.for_items("t", tiles.grouped(8), |s, t| {
                let acc = s.dot(x.at(t).at(part), w.at(t).at(part));
                s.wait(done.at(parts.before_last()).at(t));
                let sum = s.sum(partial.at(parts.before_last()).at(t));
                s.store(y.at(t), acc + sum);
            });
        });
    });
    s.finish()
}

fn built(tile: (u32, u32), options: fn() -> GemmOptions) -> Result<Pipeline, String> {
    let kernel = lower(&gemm_split(tile, options), &Variant::new(1)).and_then(verify::kernel);
    let built = kernel.and_then(|kernel| pipeline::build(&kernel));
    built.map_err(|found| found.first().text(&|_| String::new()))
}

fn good() -> Pipeline {
    built((128, 128), GemmOptions::default).unwrap_or_else(|found| panic!("{found}"))
}

/// What the verifier says after `edit` has changed the first nodes that it can.
fn story(edit: impl Fn(&mut Vec<Node>) -> bool) -> String {
    let mut pipeline = good();
    let mut done = false;
    pipeline.lists(&mut |list| done = done || edit(list));
    assert!(done, "the edit found nothing to change");
    let found = pipeline::verify(pipeline).expect_err("refused");
    found.first().text(&|_| String::new())
}

fn remove(list: &mut Vec<Node>, is: impl Fn(&Node) -> bool) -> bool {
    let at = list.iter().position(is);
    if let Some(at) = at {
        list.remove(at);
    }
    at.is_some()
}

#[test]
fn parts_run_on_the_small_case() {
    pipeline::verify(good()).unwrap_or_else(|found| panic!("{found}"));
}

#[test]
fn every_part_begins_with_the_first_step() {
    let found = story(|list| {
        let first = list.iter_mut().find_map(|node| match node {
            Node::Let { name, value } if name == "first_step" => Some(value),
            _ => None,
        });
        let found = first.is_some();
        if let Some(value) = first {
            *value = 0.into();
        }
        found
    });
    insta::assert_snapshot!(found);
}

#[test]
fn the_others_are_not_added() {
    let found = story(|list| remove(list, |node| matches!(node, Node::AddPanel { .. })));
    insta::assert_snapshot!(found);
}

#[test]
fn a_part_is_read_before_it_is_stored() {
    let found = story(|list| remove(list, |node| matches!(node, Node::CounterWait { .. })));
    insta::assert_snapshot!(found);
}

#[test]
fn a_part_is_announced_before_its_stores_are_complete() {
    let found = story(|list| {
        let wait = |node: &Node| matches!(node, Node::AwaitStores { pending: 0 });
        list.iter().any(|node| matches!(node, Node::Flush { .. })) && remove(list, wait)
    });
    insta::assert_snapshot!(found);
}

#[test]
fn what_a_pipeline_cannot_do_is_refused() {
    let found = built((64, 128), GemmOptions::default).expect_err("tiles in turn");
    assert!(
        found.contains("items of one part of K, with tiles taken in turn"),
        "{found}"
    );
    let shared = || GemmOptions {
        split: Some(2.into()),
        ..GemmOptions::default()
    };
    let found = built((128, 128), shared).expect_err("K is divided twice");
    assert!(found.contains("2 CTAs that share the steps"), "{found}");
}
