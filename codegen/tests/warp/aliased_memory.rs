//! CTAs that split the K of a tile, with partials and subtiles where the stages are: what the verifier says when these
//! come too early, are gone too soon, or lie elsewhere.

use crate::fixtures::left_out::unnoticed;
use crate::fixtures::wide::{in_turn, sampled};
use counterflow_codegen::builder::{GemmOptions, ScheduleBuilder};
use counterflow_codegen::dtype::Dtype::{Bf16, F32};
use counterflow_codegen::lower::lower;
use counterflow_codegen::sm90;
use counterflow_codegen::variant::{Layout, Variant};
use counterflow_codegen::verify;
use counterflow_codegen::warp::{self, Expr, Node, Pipeline, Side, Test};

/// What an epilogue reads and computes.
#[derive(Clone, Copy, PartialEq)]
enum Inputs {
    Nothing,
    /// A vector, and results of two types.
    Math,
    /// A stored tile.
    Tile,
}

fn built(tile: (u32, u32), split: u32, inputs: Inputs, layout: Layout) -> Pipeline {
    let mut s = ScheduleBuilder::new("gemm");
    let (x, w, y) = (s.local("x", Bf16), s.local("w", Bf16), s.out("y", Bf16));
    let bias = s.vector("bias", F32);
    let wide = (inputs == Inputs::Math).then(|| s.out("wide", F32));
    let z = (inputs == Inputs::Tile).then(|| s.local("z", Bf16));
    let tiles = s.tiles("tiles", y, tile);
    let options = GemmOptions {
        split: Some(split.into()),
        ..GemmOptions::default()
    };
    s.gemm(options, |s| {
        s.for_items("t", tiles.grouped(8), |s, t| {
            let acc = s.dot(x.at(t), w.at(t));
            match (wide, z) {
                (Some(wide), _) => {
                    let sum = acc + s.load(bias);
                    s.store(y.at(t), sum.clone());
                    s.store(wide.at(t), sum);
                }
                (None, Some(z)) => {
                    let sum = acc + s.load(z.at(t));
                    s.store(y.at(t), sum);
                }
                (None, None) => s.store(y.at(t), acc),
            }
        });
    });
    let kernel = lower(&s.finish(), &Variant::new(1).layout(layout)).and_then(verify::kernel);
    let built = kernel.and_then(|kernel| sm90::build(&kernel));
    built.unwrap_or_else(|found| panic!("{tile:?} by {split}: {found}"))
}

/// Two CTAs with three subtiles each.
fn two() -> Pipeline {
    built((128, 96), 2, Inputs::Nothing, Layout::Nt)
}

/// The rings.
const STAGES: usize = 0;
const SUBTILES: usize = 1;
const PARTIALS: usize = 2;
const TILES: usize = 3;

#[test]
fn every_sort_of_tile_is_accepted() {
    let mut cases = Vec::new();
    for (tile, splits) in [
        ((128, 96), &[2, 3, 4][..]),
        ((128, 128), &[2, 3, 4]),
        ((128, 160), &[2, 3, 4, 5]),
        ((128, 192), &[2, 4]),
        ((128, 256), &[2, 3]),
        ((256, 64), &[2, 4]),
        ((256, 176), &[2]),
    ] {
        for split in splits {
            for inputs in [Inputs::Nothing, Inputs::Math, Inputs::Tile] {
                // f32 beside 16 bits has subtiles of 16 columns or more.
                if inputs != Inputs::Nothing && (*split > 2 || tile.1 % 32 != 0) {
                    continue;
                }
                let layouts = in_turn(Layout::ALL, cases.len());
                cases.extend(layouts.map(|layout| (tile, *split, inputs, layout)));
            }
        }
    }
    for (tile, split, inputs, layout) in sampled(cases, 2) {
        let pipeline = built(tile, split, inputs, layout);
        assert_eq!(pipeline.cta.aliased(), inputs != Inputs::Tile);
        let checked = verify::pipeline(pipeline);
        checked.unwrap_or_else(|found| panic!("{tile:?} by {split}: {found}"));
    }
}

#[test]
fn stages_have_all_the_memory() {
    let stages = |tile, split| {
        let pipeline = built(tile, split, Inputs::Nothing, Layout::Nt);
        let end = |ring: &warp::Ring| ring.buffer.as_ref().expect("memory").end();
        let ends = [STAGES, SUBTILES, PARTIALS].map(|ring| end(&pipeline.rings[ring]));
        assert!(ends[0] >= ends[1].max(ends[2]), "{ends:?}");
        pipeline.rings[STAGES].slots
    };
    assert_eq!(stages((128, 128), 2), 7);
    assert_eq!(stages((128, 160), 2), 6);
    assert_eq!(stages((128, 192), 4), 5);
    assert_eq!(stages((128, 256), 2), 4);
}

#[test]
fn no_step_can_be_left_out() {
    // The end of a kernel completes its stores, too.
    insta::assert_snapshot!(unnoticed(two), @"AwaitStores");
}

/// What the verifier says after `edit`.
fn verdict(mut pipeline: Pipeline, edit: impl FnOnce(&mut Pipeline)) -> String {
    edit(&mut pipeline);
    let found = verify::pipeline(pipeline).expect_err("refused");
    found.first().text(&|_| String::new())
}

/// What it says without one of the nodes that `is` finds.
fn without(pipeline: Pipeline, nth: usize, is: impl Fn(&Node) -> bool) -> String {
    verdict(pipeline, |pipeline| {
        let mut seen = 0;
        pipeline.lists(&mut |list| {
            list.retain(|node| {
                seen += usize::from(is(node));
                !is(node) || seen != nth + 1
            });
        });
        assert!(seen > nth, "the edit found nothing to remove");
    })
}

/// Whether it awaits a side of the tile that lies in the stages.
fn awaits(node: &Node, wanted: Side) -> bool {
    matches!(node, Node::Await { barrier, .. } if (usize::from(barrier.ring.0), barrier.side) == (TILES, wanted))
}

/// Whether it arrives there.
fn arrives(node: &Node, wanted: Side) -> bool {
    matches!(node, Node::Arrive { barrier, .. } if (usize::from(barrier.ring.0), barrier.side) == (TILES, wanted))
}

#[test]
fn partials_come_before_all_are_done_with_their_steps() {
    insta::assert_snapshot!(without(two(), 0, |node| awaits(node, Side::Full)), @"
    error[race]: load of block 1 on rank 0 loads rows 0..128, columns 512..576 of x (shard or slot 0) on rank 0 into x of stage 0 for tile (0, 0)
      = multiply of block 0 on rank 0 sends subtile 1 of its part to split-K partial 0 of CTA 1 of its cluster
      = nothing orders these two
      help: wait for a signal that the first one is complete
    ");
    // As if they were done when half of them are.
    insta::assert_snapshot!(verdict(two(), |pipeline| pipeline.rings[TILES].full.arrivals -= 8), @"
    error[race]: load of block 1 on rank 0 loads rows 0..128, columns 576..640 of x (shard or slot 0) on rank 0 into x of stage 1 for tile (0, 0)
      = multiply of block 0 on rank 0 sends subtile 1 of its part to split-K partial 1 of CTA 1 of its cluster
      = nothing orders these two
      help: wait for a signal that the first one is complete
    ");
    // As if each were alone.
    let alone = verdict(two(), |pipeline| {
        let ring = &mut pipeline.rings[TILES];
        (ring.full.arrivals, ring.full.multicast) = (8, None);
    });
    insta::assert_snapshot!(alone, @"
    error[race]: load of block 1 on rank 0 loads rows 0..128, columns 576..640 of x (shard or slot 0) on rank 0 into x of stage 1 for tile (0, 0)
      = multiply of block 0 on rank 0 sends subtile 1 of its part to split-K partial 1 of CTA 1 of its cluster
      = nothing orders these two
      help: wait for a signal that the first one is complete
    ");
    // Before the last multiply has read its stage.
    let wait = |node: &Node| *node == Node::MmaWait { pending: 0 };
    insta::assert_snapshot!(without(two(), 0, wait), @"
    error[race]: multiply of block 1 on rank 0 sends subtile 0 of its part to split-K partial 1 of CTA 0 of its cluster
      = multiplies into `acc` are under way
      help: `wgmma_wait` for all groups of an item before its accumulators are named
    ");
}

#[test]
fn nobody_says_that_steps_are_done() {
    insta::assert_snapshot!(without(two(), 0, |node| arrives(node, Side::Full)), @"
    error[progress]: load of block 0 on rank 0 waits until the subtiles before have been read for tile (2, 0), for ever
      = load of block 0 on rank 0 waits until the subtiles before have been read for tile (2, 0)
      = store of block 0 on rank 0 waits for a subtile to be full for tile (0, 0)
      = multiply of block 0 on rank 0 waits until all are done with the steps of a tile
      = multiply of block 0 on rank 0 waits until all are done with the steps of a tile
      = load of block 1 on rank 0 waits until the subtiles before have been read for tile (2, 0)
    ");
    let too_many = verdict(two(), |pipeline| pipeline.rings[TILES].full.arrivals += 1);
    insta::assert_snapshot!(too_many, @"
    error[progress]: load of block 0 on rank 0 waits until the subtiles before have been read for tile (2, 0), for ever
      = load of block 0 on rank 0 waits until the subtiles before have been read for tile (2, 0)
      = store of block 0 on rank 0 waits for a subtile to be full for tile (0, 0)
      = multiply of block 0 on rank 0 waits until all are done with the steps of a tile
      = multiply of block 0 on rank 0 waits until all are done with the steps of a tile
      = load of block 1 on rank 0 waits until the subtiles before have been read for tile (2, 0)
    ");
}

/// The arrival of the thread that stores, moved behind its first subtile.
fn released_too_soon(pipeline: &mut Pipeline) {
    let mut given = None;
    pipeline.lists(&mut |list| {
        let at = list.iter().position(|node| arrives(node, Side::Empty));
        given = given.take().or(at.map(|at| list.remove(at)));
    });
    pipeline.lists(&mut |list| {
        if let Some(at) = list.iter().position(|node| *node == Node::Commit) {
            let given = given.take();
            let first = Test::Less(Expr::var("part"), 2.into());
            let body = vec![Node::AwaitRead { pending: 0.into() }];
            let body = body.into_iter().chain(given).collect();
            list.insert(at + 1, Node::If { test: first, body });
        }
    });
}

#[test]
fn the_next_tile_is_loaded_before_subtiles_were_read() {
    insta::assert_snapshot!(without(two(), 0, |node| awaits(node, Side::Empty)), @"
    error[race]: multiply of block 1 on rank 0 sends subtile 0 of its part to split-K partial 1 of CTA 0 of its cluster
      = load of block 0 on rank 0 loads rows 256..384, columns 64..128 of x (shard or slot 0) on rank 0 into x of stage 1 for tile (2, 0)
      = nothing orders these two
      help: wait for a signal that the first one is complete
    ");
    let read = |node: &Node| matches!(node, Node::AwaitRead { .. });
    insta::assert_snapshot!(without(two(), 0, read), @"
    error[race]: load of block 1 on rank 0 loads rows 256..384, columns 960..1024 of x (shard or slot 0) on rank 0 into x of stage 0 for tile (2, 0)
      = store of block 1 on rank 0 stores subtile 0 to rows 0..128, columns 16..32 of y (shard or slot 0) on rank 0 for tile (0, 0)
      = nothing orders these two
      help: wait for a signal that the first one is complete
    ");
    insta::assert_snapshot!(verdict(two(), released_too_soon), @"
    error[race]: load of block 1 on rank 0 loads rows 256..384, columns 960..1024 of x (shard or slot 0) on rank 0 into x of stage 0 for tile (2, 0)
      = multiply of block 1 on rank 0 writes subtile 1
      = nothing orders these two
      help: wait for a signal that the first one is complete
    ");
}

#[test]
fn nobody_says_that_subtiles_were_read() {
    insta::assert_snapshot!(without(two(), 0, |node| arrives(node, Side::Empty)), @"
    error[progress]: load of block 0 on rank 0 waits until the subtiles before have been read for tile (2, 0), for ever
      = load of block 0 on rank 0 waits until the subtiles before have been read for tile (2, 0)
      = store of block 0 on rank 0 waits for a subtile to be full for tile (2, 0)
      = multiply of block 0 on rank 0 waits for a stage to be full
      = multiply of block 0 on rank 0 waits for a stage to be full
      = load of block 1 on rank 0 waits until the subtiles before have been read for tile (2, 0)
    ");
}

#[test]
fn partials_and_subtiles_in_the_same_place() {
    let together = verdict(two(), |pipeline| {
        let at = |ring: &warp::Ring| ring.buffer.as_ref().expect("memory").at;
        let subtiles = at(&pipeline.rings[SUBTILES]);
        pipeline.rings[PARTIALS].buffer.as_mut().expect("memory").at = subtiles;
    });
    insta::assert_snapshot!(together, @"
    error[race]: multiply of block 1 on rank 0 sends subtile 0 of its part to split-K partial 0 of CTA 0 of its cluster
      = multiply of block 0 on rank 0 writes subtile 0
      = nothing orders these two
      help: wait for a signal that the first one is complete
    ");
    let subtiles = verdict(two(), |pipeline| pipeline.rings[SUBTILES].slots -= 1);
    insta::assert_snapshot!(subtiles, @"
    error[coverage]: store of block 0 on rank 0 stores subtile 0 to rows 0..128, columns 0..16 of y (shard or slot 0) on rank 0 for tile (0, 0)
      = the subtile is of another place
    ");
}

/// Who does not go on to the next phase waits for one that is over.
#[test]
fn the_phase_of_the_tile_before() {
    let advances =
        |node: &Node| matches!(node, Node::Advance { ring, .. } if usize::from(ring.0) == TILES);
    insta::assert_snapshot!(without(two(), 0, advances), @"
    error[race]: multiply of block 1 on rank 0 sends subtile 0 of its part to split-K partial 1 of CTA 0 of its cluster
      = load of block 0 on rank 0 loads rows 256..384, columns 64..128 of x (shard or slot 0) on rank 0 into x of stage 1 for tile (2, 0)
      = nothing orders these two
      help: wait for a signal that the first one is complete
    ");
    insta::assert_snapshot!(without(two(), 1, advances), @"
    error[race]: multiply of block 0 on rank 0 sends subtile 1 of its part to split-K partial 0 of CTA 1 of its cluster
      = load of block 1 on rank 0 loads rows 256..384, columns 960..1024 of x (shard or slot 0) on rank 0 into x of stage 0 for tile (2, 0)
      = nothing orders these two
      help: wait for a signal that the first one is complete
    ");
}

#[test]
fn accesses_that_are_not_fenced_from_the_next_loads() {
    let fence = |node: &Node| *node == Node::FenceShared;
    insta::assert_snapshot!(without(two(), 0, fence), @"
    error[race]: store of block 1 on rank 0 stores subtile 0 to rows 0..128, columns 16..32 of y (shard or slot 0) on rank 0 for tile (0, 0)
      = multiply of block 1 on rank 0 writes subtile 0
      = a barrier or a counter orders them, but no proxy fence
      help: `fence_async_shared` after ordinary accesses, before the slot is released
    ");
}
