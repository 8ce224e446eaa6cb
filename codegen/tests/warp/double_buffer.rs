//! A buffer in a few slots: what the reader acknowledges by a counter of the schedule's own is written again, by the warps, too.

use crate::fixtures::strangers::slots::{Edit, few_slots};
use counterflow_codegen::lower::lower;
use counterflow_codegen::sm90;
use counterflow_codegen::variant::Variant;
use counterflow_codegen::verify;
use counterflow_codegen::warp::{Node, Pipeline};

fn built(slots: u32) -> Pipeline {
    let program = few_slots(Edit::Nothing, slots, (128, 128));
    let kernel = lower(&program, &Variant::new(4)).and_then(verify::kernel);
    let kernel = kernel.unwrap_or_else(|error| panic!("{error}"));
    sm90::build(&kernel).unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn its_warps_wait_for_what_was_acknowledged() {
    // Of three ranks, as the case has, two write into one slot.
    for slots in [1, 2] {
        verify::pipeline(built(slots)).unwrap_or_else(|error| panic!("{slots}: {error}"));
    }
}

#[test]
fn a_slot_that_was_not_acknowledged() {
    let mut pipeline = built(1);
    let free = pipeline
        .kernel
        .counters
        .iter()
        .position(|counter| counter.name == "free");
    let mut gone = 0;
    pipeline.lists(&mut |list| {
        let before = list.len();
        list.retain(|node| {
            !matches!(node, Node::CounterWait { counter, .. } if Some(counter.index()) == free)
        });
        gone += before - list.len();
    });
    assert_eq!(gone, 1);
    let found = verify::pipeline(pipeline).expect_err("refused");
    insta::assert_snapshot!(found.first().text(&|_| String::new()));
}
