//! What TMA does not take: each clause, with a kernel that breaks it. A GPU would call these illegal instructions, or the encoder of
//! maps would refuse them at launch.

use crate::fixtures::library;
use counterflow_codegen::dtype::Dtype::E4M3;
use counterflow_codegen::lower::lower;
use counterflow_codegen::sm90;
use counterflow_codegen::variant::{Scales, Variant};
use counterflow_codegen::verify;
use counterflow_codegen::warp::{At, Expr, Map, Node, Pipeline};

fn built(variant: &Variant) -> Pipeline {
    let kernel = lower(&library::gemm(&library::real()), variant).and_then(verify::kernel);
    sm90::build(&kernel.expect("a kernel")).expect("a pipeline")
}

fn plain() -> Pipeline {
    built(&Variant::new(1))
}

fn said(pipeline: Pipeline) -> String {
    let found = verify::pipeline(pipeline).expect_err("refused");
    found.first().text(&|_| String::new())
}

/// What is said where the map of a tensor is another one.
fn mapped(mut pipeline: Pipeline, tensor: &str, change: impl Fn(&mut Map)) -> String {
    let map = pipeline.maps.iter_mut().find(|map| map.name == tensor);
    change(map.expect("a map"));
    said(pipeline)
}

/// What is said where stores, or loads, are of another place.
fn placed(stores: bool, change: impl Fn(&mut At)) -> String {
    let (mut pipeline, mut done) = (plain(), false);
    pipeline.lists(&mut |list| {
        for node in list {
            let is_store = matches!(node, Node::Store { .. });
            if let Node::Load { at, .. } | Node::Store { at, .. } = node
                && is_store == stores
            {
                change(at);
                done = true;
            }
        }
    });
    assert!(done, "nothing to change");
    said(pipeline)
}

fn before(first: &Expr, by: u32) -> Expr {
    first.clone() - by
}

/// A load gives zeros there: what is found of it is the place, not the access.
#[test]
fn a_store_that_begins_before_its_tensor() {
    insta::assert_snapshot!(placed(true, |at| at.row = before(&at.row, 8)), @"
    error[bounds]: store of block 0 on rank 0 stores subtile 0 to rows 0..120, columns 0..64 of y (shard or slot 0) on rank 0 for tile (0, 0)
      = the box begins before the tensor's first row, as no TMA store may
    ");
    insta::assert_snapshot!(placed(true, |at| at.column = before(&at.column, 64)), @"
    error[bounds]: store of block 0 on rank 0 stores subtile 0 to rows 0..128, columns 0..0 of y (shard or slot 0) on rank 0 for tile (0, 0)
      = the box begins before the tensor's first column, as no TMA store may
    ");
    insta::assert_snapshot!(placed(false, |at| at.row = before(&at.row, 8)), @"
    error[coverage]: store of block 0 on rank 0 stores subtile 0 to rows 0..128, columns 0..64 of y (shard or slot 0) on rank 0 for tile (0, 0)
      = the subtile is of another place
    ");
}

#[test]
fn a_box_that_begins_within_16_bytes() {
    insta::assert_snapshot!(placed(true, |at| at.column = at.column.clone() + 4), @"
    error[bounds]: store of block 0 on rank 0 stores subtile 0 to rows 0..128, columns 4..68 of y (shard or slot 0) on rank 0 for tile (0, 0)
      = the box begins at a column that is no multiple of 16 bytes
    ");
    insta::assert_snapshot!(placed(false, |at| at.column = at.column.clone() + 7), @"
    error[bounds]: load of block 0 on rank 0 loads rows 0..128, columns 7..71 of x (shard or slot 0) on rank 0 into x of stage 0 for tile (0, 0)
      = the box begins at a column that is no multiple of 16 bytes
    ");
}

#[test]
fn a_box_that_is_too_large_or_empty() {
    insta::assert_snapshot!(mapped(plain(), "y", |map| map.box_rows = 264), @"error[bounds]: the map of y: its boxes have 264 rows: 1 to 256 are legal");
    insta::assert_snapshot!(mapped(plain(), "x", |map| map.box_rows = 0), @"error[bounds]: the map of x: its boxes have 0 rows: 1 to 256 are legal");
    insta::assert_snapshot!(mapped(plain(), "w", |map| map.box_columns = 512), @"error[bounds]: the map of w: its boxes have 512 columns: 1 to 256 are legal");
}

#[test]
fn a_line_that_no_swizzle_spans() {
    insta::assert_snapshot!(mapped(plain(), "y", |map| map.box_columns = 4), @"error[bounds]: the map of y: a line of its boxes is 8 bytes, no multiple of 16");
    insta::assert_snapshot!(mapped(plain(), "y", |map| map.box_columns = 24), @"error[bounds]: the map of y: a line of its boxes is 48 bytes: a swizzle spans 32, 64 or 128");
    insta::assert_snapshot!(mapped(plain(), "x", |map| map.box_columns = 128), @"error[bounds]: the map of x: a line of its boxes is 256 bytes: a swizzle spans 32, 64 or 128");
}

/// Numbers of a vector are 4 bytes apart.
#[test]
fn rows_that_are_no_multiple_of_16_bytes_apart() {
    let pipeline = built(&Variant::new(1).dtype(E4M3).scales(Scales::PerRow));
    let mut buffers = pipeline.kernel.buffers.iter();
    let scale = buffers.position(|buffer| buffer.name == "x.scale");
    let scale = u16::try_from(scale.expect("a scale")).expect("few tensors");
    let of_scale = |map: &mut Map| {
        map.tensor.0 = scale;
        map.box_columns = 32;
    };
    insta::assert_snapshot!(mapped(pipeline, "x", of_scale), @"error[bounds]: the map of x: its rows are 4 bytes apart: multiples of 16 below 1 TiB are legal");
}

#[test]
fn a_place_in_shared_memory_that_no_swizzle_begins_at() {
    for ring in 0..2 {
        let mut pipeline = plain();
        let buffer = pipeline.rings[ring].buffer.as_mut();
        buffer.expect("a buffer").at += 512;
        let told = said(pipeline);
        assert!(told.starts_with("error[bounds]"), "{told}");
        assert!(
            told.contains("its place in shared memory is no multiple of 1024 bytes"),
            "{told}"
        );
    }
}
