//! Stores in places that the schedule does not write, where no order says so: nobody reads them.

use crate::fixtures::library;
use codegen::builder::*;
use codegen::dtype::Dtype::Bf16;
use codegen::lower::lower;
use codegen::program::Program;
use codegen::sm90;
use codegen::variant::Variant;
use codegen::verify;
use codegen::warp::{Expr, Node, Pipeline};
use counterflow_codegen as codegen;

/// Without counters: products that are kept in one of two slots, too.
fn kept() -> Program {
    let mut s = ScheduleBuilder::new("kept");
    let (x, w, y) = (s.local("x", Bf16), s.local("w", Bf16), s.out("y", Bf16));
    let tiles = s.tiles("tiles", y, (128, 128));
    let kept = s.symmetric("kept", Bf16, y, 2u32);
    s.gemm(GemmOptions::default(), |s| {
        s.for_items("t", tiles.all(), |s, t| {
            let product = s.dot(x.at(t), w.at(t));
            s.store(y.at(t), product.clone());
            s.store(kept.at(0).at(t), product);
        });
    });
    s.finish()
}

fn stored_in(program: &Program, tensor: &str, slot: Expr) -> Pipeline {
    let kernel = lower(program, &Variant::new(4)).and_then(verify::kernel);
    let kernel = kernel.unwrap_or_else(|found| panic!("{}: {found}", program.name));
    let mut pipeline = sm90::build(&kernel).unwrap_or_else(|found| panic!("{found}"));
    let maps = pipeline.maps.clone();
    let mut done = 0;
    pipeline.lists(&mut |list| {
        for node in list {
            if let Node::Store { at, map, .. } = node
                && maps[usize::from(map.0)].name == tensor
            {
                at.shard = slot.clone();
                done += 1;
            }
        }
    });
    assert!(done > 0, "nothing to change");
    pipeline
}

fn refused(pipeline: Pipeline) -> String {
    let found = verify::pipeline(pipeline).expect_err("refused");
    found.first().text(&|_| String::new())
}

#[test]
fn a_slot_that_nobody_writes() {
    verify::pipeline(stored_in(&kept(), "kept", 0.into())).expect("accepted");
    let wrong = stored_in(&kept(), "kept", 1.into());
    #[cfg(debug_assertions)]
    codegen::undo::undoing(codegen::undo::Fix::WarpPlaces, || {
        verify::pipeline(wrong.clone()).expect("accepted")
    });
    insta::assert_snapshot!(refused(wrong), @"
    error[coverage]: store of block 0 on rank 0 stores subtile 0 to rows 0..128, columns 0..64 of kept (shard or slot 1) on rank 0 for tile (0, 0)
      = the schedule writes nothing there
    ");
}

#[test]
fn a_slot_that_another_rank_writes() {
    let next = (Expr::me() + 1) % Expr::world();
    let wrong = stored_in(&library::all_to_all(&library::real()), "y", next);
    #[cfg(debug_assertions)]
    codegen::undo::undoing(codegen::undo::Fix::WarpPlaces, || {
        verify::pipeline(wrong.clone()).expect("accepted")
    });
    insta::assert_snapshot!(refused(wrong), @"
    error[coverage]: store of block 0 on rank 0 stores subtile 0 to rows 0..128, columns 0..64 of y (shard or slot 1) on rank 1 for tile (0, 0)
      = another role or rank of the schedule writes there, not this one
    ");
}

/// Every peer is told of a tile that nobody stores there.
#[test]
fn a_gathered_tile_that_a_peer_does_not_get() {
    let program = library::gemm_ag(&library::real());
    let kernel = lower(&program, &Variant::new(4)).and_then(verify::kernel);
    let mut pipeline = sm90::build(&kernel.expect("a kernel")).expect("a pipeline");
    let mut done = 0;
    pipeline.lists(&mut |list| {
        let before = list.len();
        list.retain(
            |node| !matches!(node, Node::Store { at, .. } if at.whose != Expr::me().into()),
        );
        done += before - list.len();
    });
    assert_eq!(done, 1);
    insta::assert_snapshot!(refused(pipeline), @"error[coverage]: 50688 of 151536 elements of y on rank 0 are written");
}

/// The next rank gets what is meant for each peer.
#[test]
fn a_gathered_tile_that_a_peer_gets_twice() {
    let program = library::gemm_ag(&library::real());
    let kernel = lower(&program, &Variant::new(4)).and_then(verify::kernel);
    let mut pipeline = sm90::build(&kernel.expect("a kernel")).expect("a pipeline");
    let mut done = 0;
    pipeline.lists(&mut |list| {
        for node in list {
            if let Node::Store { at, .. } = node
                && at.whose != Expr::me().into()
            {
                at.whose = ((Expr::me() + 1) % Expr::world()).into();
                done += 1;
            }
        }
    });
    assert_eq!(done, 1);
    insta::assert_snapshot!(refused(pipeline), @"
    error[race]: store of block 0 on rank 0 stores subtile 0 to rows 0..128, columns 0..64 of y (shard or slot 0) on rank 1 for tile (0, 0)
      = store of block 0 on rank 0 stores subtile 0 to rows 0..128, columns 0..64 of y (shard or slot 0) on rank 1 for tile (0, 0)
      = nothing orders these two
      help: wait for a signal that the first one is complete
    ");
}
