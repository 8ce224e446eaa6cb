//! Tiles of all ranks' rows at once, as warps load, wait for and store them.

use crate::fixtures::across::{Mistake, Sum, WAYS, Way, gather, one_shot};
use crate::reach::names_stand_once;
use counterflow_codegen::builder::tune;
use counterflow_codegen::diag::{Diagnostics, Rule};
use counterflow_codegen::dtype::Dtype::{E4M3, F16};
use counterflow_codegen::lower::lower;
use counterflow_codegen::program::Program;
use counterflow_codegen::sm90;
use counterflow_codegen::variant::{Layout, Scales, Variant};
use counterflow_codegen::verify;
use counterflow_codegen::verify::Checked;
use counterflow_codegen::warp::{Expr, Map, Node, Pipeline, View};

fn pushed() -> Program {
    gather(Way::Push, (128, (128, 256).into()), Mistake::None)
}

fn warps(program: &Program, variant: &Variant) -> Result<Checked<Pipeline>, Diagnostics> {
    let kernel = lower(program, variant).and_then(verify::kernel);
    let kernel = kernel.unwrap_or_else(|error| panic!("{}: {error}", program.name));
    verify::warps(&kernel)
}

fn right(program: &Program, variant: &Variant) -> Checked<Pipeline> {
    let pipeline = warps(program, variant);
    let pipeline = pipeline.unwrap_or_else(|error| panic!("{} {variant}: {error}", program.name));
    names_stand_once(&pipeline);
    pipeline
}

#[test]
fn gathers_have_right_warps_whoever_moves_the_rows() {
    for way in WAYS {
        let program = gather(way, (128, (128, 256).into()), Mistake::None);
        for world in [1, 2, 4, 8] {
            right(&program, &Variant::new(world));
        }
    }
}

/// Tiles larger and smaller than pieces, tiles whose columns are on the M side, and those of two CTAs beside each other.
#[test]
fn tiles_and_pieces_of_any_size_have_right_warps() {
    for (piece, tile) in [
        (64, (128, 128)),
        (256, (128, 128)),
        (128, (256, 128)),
        (32, (208, 128)),
        (128, (64, 128)),
        (128, (16, 64)),
        (8, (8, 64)),
        (96, (80, 128)),
    ] {
        let program = gather(Way::Push, (piece, tile.into()), Mistake::None);
        right(&program, &Variant::new(4));
    }
}

#[test]
fn operands_of_any_type_have_right_warps() {
    let program = pushed();
    right(&program, &Variant::new(2).dtype(F16));
    for scales in [Scales::Whole, Scales::Rows] {
        right(&program, &Variant::new(2).dtype(E4M3).scales(scales));
    }
    for layout in Layout::ALL
        .into_iter()
        .filter(|layout| !layout.mn_major()[0])
    {
        right(&program, &Variant::new(2).layout(layout));
    }
}

/// Where rows are contiguous, no box is in two shards: those of an operand, and those of its scales of blocks.
#[test]
fn shards_that_are_no_matrix_together_are_refused() {
    let layouts = Layout::ALL
        .into_iter()
        .filter(|layout| layout.mn_major()[0]);
    let layouts = layouts.map(|layout| ("x", Variant::new(2).layout(layout)));
    let scales = [Scales::Blocks1d1d, Scales::Blocks1d2d];
    let scales = scales.map(|scales| ("x.scale", Variant::new(2).dtype(E4M3).scales(scales)));
    for (tensor, variant) in layouts.chain(scales) {
        let program = gather(Way::CopyEngine, (128, (128, 64).into()), Mistake::None);
        let found = warps(&program, &variant).expect_err("refused");
        let first = found.first();
        assert!(first.at.is_some_and(|at| at.file().ends_with("across.rs")));
        let wanted = format!("a tile of `{tensor}` in several shards, whose rows are contiguous");
        assert!(first.message.starts_with(&wanted), "{variant}: {found}");
    }
}

#[test]
fn sums_in_one_shot_have_right_warps() {
    for tile in [(128, 256), (128, 128), (128, 64), (16, 128), (80, 256)] {
        for world in [1, 2, 4, 8] {
            let program = one_shot(Sum::Everybody, tune([tile]), Mistake::None);
            right(&program, &Variant::new(world));
        }
    }
}

/// A part of a tile may begin before the rows of its owner's shard, and a store may not.
#[test]
fn stores_of_parts_of_tiles_are_refused() {
    for world in [1, 2, 4, 8] {
        let program = one_shot(Sum::Owner, tune([(128, 128)]), Mistake::None);
        let found = warps(&program, &Variant::new(world)).expect_err("refused");
        for tensor in ["partial", "y"] {
            let wanted = format!(
                "a store of a part of a tile into `{tensor}`, which has one shard: a TMA store may not begin before its tensor"
            );
            let told = found.iter().find(|found| found.message == wanted);
            let told = told.unwrap_or_else(|| panic!("{tensor}: {found}"));
            assert_eq!(told.rule, Rule::Resources);
            assert!(told.at.is_some_and(|at| at.file().ends_with("across.rs")));
        }
    }
}

fn built(program: &Program) -> Pipeline {
    let kernel = lower(program, &Variant::new(3)).and_then(verify::kernel);
    sm90::build(&kernel.expect("a kernel")).expect("a pipeline")
}

/// What is said where `change` changes some of the nodes.
fn changed(mut pipeline: Pipeline, change: impl Fn(&mut Node, &[Map]) -> bool) -> String {
    let (maps, mut done) = (pipeline.maps.clone(), false);
    pipeline.lists(&mut |list| {
        for node in list {
            done |= change(node, &maps);
        }
    });
    assert!(done, "nothing to change");
    said(pipeline)
}

fn said(pipeline: Pipeline) -> String {
    let found = verify::pipeline(pipeline).expect_err("refused");
    found.first().text(&|_| String::new())
}

/// A tile that waits for the pieces of one of its shards only, or for too few of each.
#[test]
fn a_shard_that_is_not_waited_for_is_found() {
    let fewer = |counted: &str, change: fn(&mut Expr)| {
        changed(built(&pushed()), |node, _| {
            if let Node::For { var, to, .. } = node
                && var == counted
            {
                change(to);
                return true;
            }
            false
        })
    };
    let first_alone = |to: &mut Expr| *to = Expr::Min(to.clone().into(), Box::new(1.into()));
    insta::assert_snapshot!(fewer("shard", first_alone), @"
    error[race]: load of block 2 on rank 0 loads rows 256..384, columns 0..64 of x (chunk or slot 0) on rank 0 into x of stage 2 for tile (2, 0)
      = not everything that the schedule orders before it came before it
      = conflicting accesses of 0 elements came before it in its launch, where 8192 should
      help: wait for everything that the schedule waits for, in this thread or in one that it waits for
    ");
    insta::assert_snapshot!(fewer("piece", |to| *to = to.clone() - 1), @"
    error[race]: load of block 2 on rank 1 loads rows 0..128, columns 0..64 of x (chunk or slot 0) on rank 1 into x of stage 0 for tile (0, 0)
      = not everything that the schedule orders before it came before it
      = conflicting accesses of 0 elements came before it in its launch, where 8192 should
      help: wait for everything that the schedule waits for, in this thread or in one that it waits for
    ");
}

/// A CTA that fills more stages than there are before it waits, or that loads what peers send among them.
#[test]
fn what_is_filled_ahead_is_what_nobody_sends() {
    let more = changed(built(&pushed()), |node, _| {
        if let Node::Let { name, value } = node
            && name == "filled"
        {
            *value = Expr::var("steps");
            return true;
        }
        false
    });
    insta::assert_snapshot!(more, @"
    error[progress]: load of block 0 on rank 0 waits for a stage to be empty for tile (1, 0), for ever
      = load of block 0 on rank 0 waits for a stage to be empty for tile (1, 0)
      = store of block 0 on rank 0 waits for a subtile to be full for tile (1, 0)
      = multiply of block 0 on rank 0 waits for a stage to be full
      = multiply of block 0 on rank 0 waits for a stage to be full
      = load of block 1 on rank 0 waits for a stage to be empty for tile (1, 1)
    ");
    let sent = changed(built(&pushed()), |node, maps| {
        if let Node::Ahead { body, .. } = node {
            let Some(Node::For { body, .. }) = body.first_mut() else {
                return false;
            };
            for node in body {
                if let Node::Load { map, .. } = node {
                    let x = maps.iter().position(|map| map.view == View::SharedRows);
                    map.0 = u16::try_from(x.expect("x")).expect("few maps");
                    return true;
                }
            }
        }
        false
    });
    insta::assert_snapshot!(sent, @"
    error[race]: load of block 2 on rank 1 loads rows 0..128, columns 0..64 of x (chunk or slot 0) on rank 0 into w of stage 0 for tile (0, 0)
      = the caller fills or takes rows 0..192, columns 0..1088 of x (chunk or slot 0) on rank 0 between launches
      = nothing orders these two
      help: wait for a signal that the first one is complete
    ");
}

/// A box that is loaded from, or stored to, the rows of another tile.
#[test]
fn another_place_is_found() {
    let moved = |view: View, stored: bool| {
        changed(built(&pushed()), |node, maps| {
            let is_store = matches!(node, Node::Store { .. });
            if let Node::Load { at, map, .. } | Node::Store { at, map, .. } = node
                && maps[usize::from(map.0)].view == view
                && is_store == stored
            {
                at.row = at.row.clone() + 8;
                return true;
            }
            false
        })
    };
    insta::assert_snapshot!(moved(View::SharedRows, false), @"
    error[coverage]: store of block 2 on rank 0 stores subtile 0 to rows 0..128, columns 0..64 of y (chunk or slot 0) on rank 0 for tile (0, 0)
      = the subtile is of another place
    ");
    insta::assert_snapshot!(moved(View::Flat, true), @"
    error[coverage]: store of block 2 on rank 0 stores subtile 0 to rows 8..136, columns 0..64 of y (chunk or slot 0) on rank 0 for tile (0, 0)
      = the subtile is of another place
    ");
}

#[test]
fn the_text_says_what_a_tile_waits_for() {
    let text = right(&pushed(), &Variant::new(2)).text();
    let start = text.find("# wait arrived[t.rows]").expect("a wait");
    let rest = &text[start..];
    let end = rest.find("next stage").expect("the loads");
    insta::assert_snapshot!(&rest[..end], @"
    # wait arrived[t.rows]
            for shard in (t.row * TILE_M / rows)..ceil_div(min(t.row * TILE_M + TILE_M, m), rows)
              shard_start = shard * rows
              for piece in ((t.row * TILE_M - min(t.row * TILE_M, shard_start)) / PIECE)..ceil_div(min(min(t.row * TILE_M + TILE_M, m) - shard_start, rows), PIECE)
                arrived_cell = shard * pieces_m + piece
                wait arrived[arrived_cell]
            fence global memory for TMA
          expect x_rows * TILE_K * 2 + w_rows * TILE_K * 2 at stage.full
          load stage.x <- x_tiles{step * TILE_K, t.row * TILE_M, 0, me}, or by partial boxes x_rows of its TILE_M rows
    ");
}
