//! Tiles of all ranks' rows at once, as warps load, wait for and store them.

use crate::fixtures::across::{Mistake, SUMS, Sum, WAYS, Way, gather, one_shot};
use crate::fixtures::wide::{in_turn, sampled};
use crate::reach::names_stand_once;
use counterflow_codegen::builder::*;
use counterflow_codegen::diag::Diagnostics;
use counterflow_codegen::dtype::Dtype::{Bf16, E4M3, F16};
use counterflow_codegen::encoding;
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
    for (at, way) in WAYS.into_iter().enumerate() {
        let program = gather(way, (128, (128, 256).into()), Mistake::None);
        for world in in_turn([1, 2, 4, 8], at) {
            right(&program, &Variant::new(world));
        }
    }
}

/// Tiles larger and smaller than chunks, tiles whose columns are on the M side, and those of two CTAs beside each other.
#[test]
fn tiles_and_chunks_of_any_size_have_right_warps() {
    for (chunk, tile) in [
        (64, (128, 128)),
        (256, (128, 128)),
        (128, (256, 128)),
        (32, (208, 128)),
        (128, (64, 128)),
        (128, (16, 64)),
        (8, (8, 64)),
        (96, (80, 128)),
    ] {
        let program = gather(Way::Push, (chunk, tile.into()), Mistake::None);
        right(&program, &Variant::new(4));
    }
}

#[test]
fn operands_of_any_type_have_right_warps() {
    let program = pushed();
    right(&program, &Variant::new(2).dtype(F16));
    for scales in [Scales::PerTensor, Scales::PerRow] {
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
    let tiles = [(128, 256), (128, 128), (128, 64), (16, 128), (80, 256)];
    let worlds = [1, 2, 3, 4, 5, 6, 7, 8].map(|world| tiles.map(|tile| (world, tile)));
    let all = SUMS.map(|to| worlds.map(|each| each.map(|(world, tile)| (to, world, tile))));
    for (to, world, tile) in sampled(all.into_iter().flatten().flatten(), 9) {
        let program = one_shot(to, tune([tile]), Mistake::None);
        right(&program, &Variant::new(world));
    }
}

#[test]
fn parts_of_tiles_of_any_type_have_right_warps() {
    let program = one_shot(Sum::Owner, tune([(128, 128)]), Mistake::None);
    right(&program, &Variant::new(3).dtype(F16));
    for scales in [Scales::PerTensor, Scales::PerRow, Scales::Blocks1d2d] {
        right(&program, &Variant::new(3).dtype(E4M3).scales(scales));
    }
    for layout in Layout::ALL
        .into_iter()
        .filter(|layout| !layout.mn_major()[0])
    {
        right(&program, &Variant::new(3).layout(layout));
    }
}

/// Scales that are made of a tile are of all of it, and this rank's own term has none.
#[test]
fn parts_of_tiles_with_computed_scales_are_refused() {
    let variant = Variant::new(2).dtype(E4M3).scales(Scales::Blocks1d2d);
    let variant = variant.quantised_reduction(encoding::rule::ScaleRule::deep_gemm());
    let program = one_shot(Sum::Owner, tune([(128, 128)]), Mistake::None);
    let found = warps(&program, &variant).expect_err("refused");
    let first = found.first();
    assert!(first.at.is_some_and(|at| at.file().ends_with("across.rs")));
    assert!(
        first.message.contains("partial sums with scales"),
        "{found}"
    );
}

/// A part that goes to another place of its owner, or is added from there.
#[test]
fn another_place_of_a_part_is_found() {
    let moved = |view: View, stored: bool| {
        changed(parts(), |node, maps| {
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
    insta::assert_snapshot!(moved(View::SharedSlots, true), @"
    error[coverage]: store of block 0 on rank 1 stores subtile 0 to rows 8..136, columns 0..64 of partial (shard or slot 1) on rank 0 for tile (0, 0)
      = the subtile is of another place
    ");
    insta::assert_snapshot!(moved(View::SharedSlots, false), @"
    error[coverage]: multiply of block 0 on rank 1 adds its own term of subtile 0 to a sum
      = this rank's own term is of another place than those it is added to
    ");
    insta::assert_snapshot!(moved(View::SharedShard, true), @"
    error[coverage]: store of block 0 on rank 0 stores subtile 0 to rows 8..136, columns 0..64 of y (shard or slot 0) on rank 0 for tile (0, 0)
      = the subtile is of another place
    ");
}

/// Behind a shard's last row is memory of nobody, or of another slot: a part that ends later, or that another rank's rows end.
#[test]
fn a_part_that_ends_behind_its_shard_is_found() {
    let ends = |view: View, end: fn(Expr) -> Expr| {
        changed(parts(), |node, maps| {
            if let Node::Store { map, shard_end, .. } = node
                && maps[usize::from(map.0)].view == view
                && let Some(before) = shard_end
            {
                *before = end(before.clone());
                return true;
            }
            false
        })
    };
    insta::assert_snapshot!(ends(View::SharedSlots, |end| end + 1), @"
    error[bounds]: store of block 0 on rank 1 stores subtile 0 to rows 128..193, columns 0..64 of partial (shard or slot 1) on rank 0 for tile (1, 0)
      = shard 0 ends after 192 rows, and the part of the tile does not end there
      help: `shard_end`: the rows of the shard that the part is of
    ");
    insta::assert_snapshot!(ends(View::SharedShard, |end| end + 1), @"
    error[bounds]: store of block 0 on rank 0 stores subtile 0 to rows 128..193, columns 0..64 of y (shard or slot 0) on rank 0 for tile (1, 0)
      = shard 0 ends after 192 rows, and the part of the tile does not end there
      help: `shard_end`: the rows of the shard that the part is of
    ");
    let of_first = |end: Expr| match end {
        Expr::RowsOf(rows, _) => Expr::RowsOf(rows, Box::new(0.into())),
        other => other,
    };
    insta::assert_snapshot!(ends(View::SharedShard, of_first), @"
    error[bounds]: store of block 0 on rank 2 stores subtile 0 to rows 128..192, columns 0..64 of y (shard or slot 0) on rank 2 for tile (4, 0)
      = shard 2 ends after 190 rows, and the part of the tile does not end there
      help: `shard_end`: the rows of the shard that the part is of
    ");
    insta::assert_snapshot!(ends(View::SharedShard, |end| end - 1), @"
    error[bounds]: store of block 0 on rank 2 in the next launch stores subtile 0 to rows 0..124, columns 0..64 of y (shard or slot 0) on rank 2 for tile (0, 0)
      = shard 2 ends after 0 rows, and the part of the tile does not end there
      help: `shard_end`: the rows of the shard that the part is of
    ");
}

/// TMA stores no box that begins before its tensor.
#[test]
fn a_part_that_tma_stores_is_found() {
    let by_tma = |view: View| {
        changed(parts(), |node, maps| {
            if let Node::Store { map, shard_end, .. } = node
                && maps[usize::from(map.0)].view == view
            {
                *shard_end = None;
                return true;
            }
            false
        })
    };
    insta::assert_snapshot!(by_tma(View::SharedSlots), @"
    error[bounds]: store of block 0 on rank 0 stores subtile 0 to rows 0..0, columns 0..64 of partial (shard or slot 0) on rank 1 for tile (0, 0)
      = the box begins before the tensor's first row, as no TMA store may
    ");
    insta::assert_snapshot!(by_tma(View::SharedShard), @"
    error[bounds]: store of block 0 on rank 1 stores subtile 0 to rows 0..0, columns 0..64 of y (shard or slot 0) on rank 1 for tile (0, 0)
      = the box begins before the tensor's first row, as no TMA store may
    ");
}

/// Lanes store what one of them waited for, and one of them announces what all have stored.
#[test]
fn lanes_meet_around_the_stores_of_parts() {
    let without = |drop: &dyn Fn(&[Node], usize) -> bool| {
        let (mut pipeline, mut dropped) = (parts(), 0);
        pipeline.lists(&mut |list| {
            let kept: Vec<bool> = (0..list.len()).map(|at| !drop(list, at)).collect();
            let mut kept = kept.into_iter();
            let before = list.len();
            list.retain(|_| kept.next() != Some(false));
            dropped += before - list.len();
        });
        assert!(dropped > 0, "nothing to change");
        said(pipeline)
    };
    let behind_waits = |list: &[Node], at: usize| {
        list[at] == Node::SyncWarp && at > 0 && list[at - 1] == Node::FenceGlobal
    };
    insta::assert_snapshot!(without(&behind_waits), @"
    error[race]: store of block 0 on rank 0 stores subtile 0 to rows 0..0, columns 0..64 of partial (shard or slot 0) on rank 1 for tile (0, 0)
      = the first lane of its warp has waited for a counter, and the others have not met it since
      help: `__syncwarp` between the wait and what all lanes do
    ");
    let has_parts = |nodes: &[Node]| {
        let mut found = false;
        nodes
            .iter()
            .for_each(|node| node.visit(&mut |node| found |= node.is_part()));
        found
    };
    let met = |list: &[Node], at: usize| list[at] == Node::SyncWarp && has_parts(&list[..at]);
    insta::assert_snapshot!(without(&met), @"
    error[race]: multiply of block 0 on rank 1 writes subtile 0
      = store of block 0 on rank 1 stores subtile 0 to rows 0..0, columns 0..64 of partial (shard or slot 1) on rank 2 for tile (0, 0)
      = nothing orders these two
      help: wait for a signal that the first one is complete
    ");
}

/// Whoever reads a part by TMA fences the memory behind the wait: other lanes wrote it by ordinary stores.
#[test]
fn a_part_is_fenced_from_tma_that_reads_it() {
    let (mut pipeline, mut dropped) = (parts(), 0);
    pipeline.lists(&mut |list| {
        let before = list.len();
        let waits = |node: &Node| matches!(node, Node::Others { .. });
        if list.iter().any(waits) {
            list.retain(|node| *node != Node::FenceGlobal);
        }
        dropped += before - list.len();
    });
    assert!(dropped > 0, "nothing to change");
    insta::assert_snapshot!(said(pipeline), @"
    error[race]: load of block 0 on rank 0 loads rows 0..128, columns 0..64 of partial (shard or slot 1) on rank 0 into x of stage 1 for tile (0, 0)
      = store of block 0 on rank 1 stores subtile 0 to rows 0..128, columns 0..64 of partial (shard or slot 1) on rank 0 for tile (0, 0)
      = a barrier or a counter orders them, but no proxy fence
      help: `fence_async_global` after the wait on a counter, before TMA touches the data
    ");
}

/// Every rank writes its own rows of each tile, then adds to the others' rows.
fn added() -> Program {
    let mut s = ScheduleBuilder::new("added_parts");
    let (x, w) = (s.local("x", Bf16), s.local("w", Bf16));
    let y = s.reduce_scattered("y", Bf16);
    let tiles = s.tiles_across("tiles", y, (128, 128));
    let begun = s.counters("begun", [world().into(), tiles.into()]);
    let landed = s.counters("landed", [world().into(), tiles.into()]);
    s.gemm(GemmOptions::default(), |s| {
        s.for_items("t", tiles.all(), |s, t| {
            let product = s.dot(x.at(t), w.at(t));
            s.store(y.at(t), product);
            s.for_ranks("peer", ranks().after_me(), |s, peer| {
                s.signal(begun.on(&peer).at(me()).at(t), 1);
            });
        });
    });
    s.gemm(GemmOptions::default(), |s| {
        s.for_ranks("owner", ranks().after_me(), |s, owner| {
            s.for_items("t", tiles.all(), |s, t| {
                let product = s.dot(x.at(t), w.at(t));
                s.wait(begun.at(&owner).at(t));
                s.store_add(y.on(&owner).at(t), product);
                s.signal(landed.on(&owner).at(me()).at(t), 1);
            });
        });
    });
    s.gemm(GemmOptions::default(), |s| {
        s.for_items("t", tiles.all(), |s, t| s.wait(landed.at(others()).at(t)));
    });
    s.finish()
}

#[test]
fn adds_of_parts_are_refused() {
    let found = warps(&added(), &Variant::new(2)).expect_err("refused");
    insta::assert_snapshot!(found.first().text(&|_| String::new()), @"
    error[resources]: an add of a part of a tile into `y`, which has one shard
      help: tiles of each shard: `y.tiles(..)`, `.of(rank)`
    ");
}

fn parts() -> Pipeline {
    built(&one_shot(Sum::Owner, tune([(128, 256)]), Mistake::None))
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

/// A tile that waits for the chunks of one of its shards only, or for too few of each.
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
    error[race]: load of block 2 on rank 0 loads rows 256..384, columns 0..64 of x (shard or slot 0) on rank 0 into x of stage 2 for tile (2, 0)
      = not everything that the schedule orders before it came before it
      = conflicting accesses of 0 elements came before it in its launch, where 8192 should
      help: wait for everything that the schedule waits for, in this thread or in one that it waits for
    ");
    insta::assert_snapshot!(fewer("chunk", |to| *to = to.clone() - 1), @"
    error[race]: load of block 2 on rank 1 loads rows 0..128, columns 0..64 of x (shard or slot 0) on rank 1 into x of stage 0 for tile (0, 0)
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
    error[race]: load of block 2 on rank 1 loads rows 0..128, columns 0..64 of x (shard or slot 0) on rank 0 into w of stage 0 for tile (0, 0)
      = the caller fills or takes rows 0..192, columns 0..1088 of x (shard or slot 0) on rank 0 between launches
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
    error[coverage]: store of block 2 on rank 0 stores subtile 0 to rows 0..128, columns 0..64 of y (shard or slot 0) on rank 0 for tile (0, 0)
      = the subtile is of another place
    ");
    insta::assert_snapshot!(moved(View::Flat, true), @"
    error[coverage]: store of block 2 on rank 0 stores subtile 0 to rows 8..136, columns 0..64 of y (shard or slot 0) on rank 0 for tile (0, 0)
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
              for chunk in ((t.row * TILE_M - min(t.row * TILE_M, shard_start)) / CHUNK)..ceil_div(min(min(t.row * TILE_M + TILE_M, m) - shard_start, rows), CHUNK)
                arrived_cell = shard * chunks_m + chunk
                wait arrived[arrived_cell]
            fence global memory for TMA
          expect x_rows * TILE_K * 2 + w_rows * TILE_K * 2 at stage.full
          load stage.x <- x_tiles{step * TILE_K, t.row * TILE_M, 0, me}, or by partial boxes x_rows of its TILE_M rows
    ");
}
