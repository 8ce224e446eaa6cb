//! CTAs that load together and share the K steps of their tiles: what the verifier accepts, and what it says when one
//! thing is changed.

use crate::fixtures::left_out::unnoticed;
use counterflow_codegen::builder::{GemmOptions, ScheduleBuilder};
use counterflow_codegen::diag::Diagnostics;
use counterflow_codegen::dtype::Dtype::{Bf16, F32};
use counterflow_codegen::kernel::Kernel;
use counterflow_codegen::lower::lower;
use counterflow_codegen::model::Machine;
use counterflow_codegen::plan::Plan;
use counterflow_codegen::shape::Shape;
use counterflow_codegen::sm90;
use counterflow_codegen::variant::{Layout, Variant};
use counterflow_codegen::verify::{self, Checked};
use counterflow_codegen::warp::{Barrier, Expr, FragmentOp, Node, Pipeline, Test};

/// A tile and whether it is multiplied in ping-pong.
type Kind = ((u32, u32), bool);

fn kernel(kind: Kind, cluster: (u32, u32), split: u32, layout: Layout) -> Checked<Kernel> {
    let (tile, ping_pong) = kind;
    let mut s = ScheduleBuilder::new("gemm");
    let (x, w, y) = (s.local("x", Bf16), s.local("w", Bf16), s.out("y", Bf16));
    let tiles = s.tiles("tiles", y, tile);
    let options = GemmOptions {
        cluster: Some(cluster.into()),
        split: Some(split.into()),
        ping_pong: Some(ping_pong.into()),
        ..GemmOptions::default()
    };
    s.gemm(options, |s| {
        s.for_items("t", tiles.grouped(8), |s, t| {
            let acc = s.dot(x.at(t), w.at(t));
            s.store(y.at(t), acc);
        });
    });
    let kernel = lower(&s.finish(), &Variant::new(1).layout(layout)).and_then(verify::kernel);
    kernel.unwrap_or_else(|found| panic!("{found}"))
}

/// What is said of a tile whose product is stored in f32 and in 16 bits.
fn of_two_types(tile: (u32, u32), split: u32) -> String {
    let mut s = ScheduleBuilder::new("gemm");
    let (x, w) = (s.local("x", Bf16), s.local("w", Bf16));
    let (y, z) = (s.out("y", F32), s.out("z", Bf16));
    let tiles = s.tiles("tiles", y, tile);
    let options = GemmOptions {
        split: Some(split.into()),
        ..GemmOptions::default()
    };
    s.gemm(options, |s| {
        s.for_items("t", tiles.all(), |s, t| {
            let acc = s.dot(x.at(t), w.at(t));
            s.store(y.at(t), acc.clone());
            s.store(z.at(t), acc);
        });
    });
    let kernel = lower(&s.finish(), &Variant::new(1)).and_then(verify::kernel);
    let built = kernel.and_then(|kernel| sm90::build(&kernel));
    let text = |found: Diagnostics| found.first().text(&|_| String::new());
    built.err().map_or(String::new(), text)
}

/// A row of a subtile is a line of the narrowest swizzle, in each type that is stored.
#[test]
fn narrow_subtiles_of_two_types_are_refused() {
    assert_eq!(
        of_two_types((128, 48), 2),
        "error[resources]: 16-bit subtiles of 8 columns, beside f32 of 32 bytes a row\n  \
         help: tiles of a multiple of 32 columns: 16 for each CTA that splits K\n"
    );
    for (tile, split) in [((128, 64), 2), ((128, 96), 3), ((128, 48), 1)] {
        assert_eq!(of_two_types(tile, split), "");
    }
}

fn good(kind: Kind, cluster: (u32, u32), split: u32) -> Pipeline {
    let built = sm90::build(&kernel(kind, cluster, split, Layout::Nt));
    built.unwrap_or_else(|found| panic!("{found}"))
}

/// Clusters of four whose tiles are cooperative.
fn four() -> Pipeline {
    good(((128, 128), false), (2, 1), 2)
}

/// The same in ping-pong: sums lie beside the stages, and are released.
fn ping_pong() -> Pipeline {
    good(((64, 64), true), (2, 1), 2)
}

fn accepted(kind: Kind, cluster: (u32, u32), split: u32, layout: Layout) {
    let built = sm90::build(&kernel(kind, cluster, split, layout));
    let checked = built.and_then(verify::pipeline);
    checked.unwrap_or_else(|found| panic!("{kind:?} {cluster:?} by {split} {layout:?}: {found}"));
}

#[test]
fn every_sort_of_tile_is_accepted() {
    for (kind, splits) in [
        (((128, 192), false), &[2][..]),
        (((128, 128), false), &[2, 3, 4]),
        (((128, 96), false), &[2, 3]),
        (((256, 64), false), &[2]),
        (((128, 96), true), &[2]),
        (((64, 64), true), &[2, 3, 4]),
        (((64, 128), true), &[2, 3]),
    ] {
        for split in splits {
            for (cluster, layout) in [(2, 1), (1, 2)]
                .into_iter()
                .flat_map(|cluster| Layout::ALL.map(|layout| (cluster, layout)))
            {
                accepted(kind, cluster, *split, layout);
            }
        }
    }
    // Tiles of so few rows share only their columns.
    accepted(((16, 64), true), (2, 1), 2, Layout::Nt);
    accepted(((32, 64), true), (2, 1), 4, Layout::Nt);
}

fn verdict(pipeline: Pipeline) -> String {
    let found = verify::pipeline(pipeline).expect_err("refused");
    found.first().text(&|_| String::new())
}

/// What the verifier says after `edit` has changed nodes of a good pipeline.
fn trace(mut pipeline: Pipeline, mut edit: impl FnMut(&mut Node) -> bool) -> String {
    let mut edited = false;
    pipeline.lists(&mut |list| {
        for node in list {
            edited |= edit(node);
        }
    });
    assert!(edited, "the edit found nothing to change");
    verdict(pipeline)
}

/// The rank in its cluster of a CTA of four.
fn rank(split_rank: Expr, multicast_rank: Expr) -> Expr {
    split_rank * 2 + multicast_rank
}

fn other(name: &str) -> Expr {
    Expr::from(1) - Expr::var(name)
}

fn loaded_into(first: &Expr) -> String {
    trace(four(), |node| {
        let Node::Load {
            multicast: Some(to),
            ..
        } = node
        else {
            return false;
        };
        *to = first.clone();
        true
    })
}

#[test]
fn loads_into_ctas_that_have_other_steps() {
    insta::assert_snapshot!(loaded_into(&rank(other("split_rank"), 0.into())), @"
    error[coverage]: multiply of block 2 on rank 0 multiplies x of stage 0 by w of stage 0
      = its operands are not the next of its tile's along K
    ");
    // All into the first two.
    insta::assert_snapshot!(loaded_into(&0.into()), @"
    error[race]: load of block 2 on rank 0 loads rows 0..64, columns 448..512 of w (chunk or slot 0) on rank 0 into w of stage 0 for tile (0, 0)
      = load of block 0 on rank 0 loads rows 0..64, columns 0..64 of w (chunk or slot 0) on rank 0 into w of stage 0 for tile (0, 0)
      = nothing orders these two
      help: wait for a signal that the first one is complete
    ");
    // Into one of its own and one beyond.
    insta::assert_snapshot!(loaded_into(&rank(Expr::var("split_rank"), Expr::from(1))), @"
    error[coverage]: load of block 2 on rank 0 loads rows 0..64, columns 448..512 of w (chunk or slot 0) on rank 0 into w of stage 0 for tile (0, 0)
      = its cluster has no CTA 4
    ");
}

fn emptied(pipeline: &mut Pipeline, ring: usize) -> &mut Barrier {
    pipeline.rings[ring].empty.as_mut().expect("a barrier")
}

fn emptied_at(peer: Expr) -> String {
    let mut pipeline = four();
    emptied(&mut pipeline, 0)
        .multicast
        .as_mut()
        .expect("several")
        .peer = peer;
    verdict(pipeline)
}

#[test]
fn stages_that_are_released_to_others() {
    insta::assert_snapshot!(emptied_at(rank(other("split_rank"), Expr::var("lane"))), @"
    error[progress]: load of block 2 on rank 0 waits for a stage to be empty for tile (0, 0)
      = multiply of block 0 on rank 0 releases a stage
      = the barrier may complete its next phase before all waiting warps have observed this one: its parity is then ambiguous
      help: let every waiting warp arrive after its wait, not only one of them
    ");
    // To the first two, whoever loaded.
    insta::assert_snapshot!(emptied_at(Expr::var("lane")), @"
    error[progress]: load of block 0 on rank 0 waits until the subtiles before have been read for tile (2, 0), for ever
      = load of block 0 on rank 0 waits until the subtiles before have been read for tile (2, 0)
      = store of block 0 on rank 0 waits for a subtile to be full for tile (0, 0)
      = multiply of block 0 on rank 0 waits until all are done with the steps of a tile
      = multiply of block 0 on rank 0 waits until all are done with the steps of a tile
      = load of block 1 on rank 0 waits until the subtiles before have been read for tile (2, 0)
    ");
    // To those of its rank, as partials are.
    insta::assert_snapshot!(emptied_at(rank(Expr::var("lane"), Expr::var("multicast_rank"))), @"
    error[race]: load of block 3 on rank 0 loads rows 64..128, columns 896..904 of w (chunk or slot 0) on rank 0 into w of stage 0 for tile (0, 0)
      = load of block 3 on rank 0 loads rows 64..128, columns 448..512 of w (chunk or slot 0) on rank 0 into w of stage 0 for tile (0, 0)
      = nothing orders these two
      help: wait for a signal that the first one is complete
    ");
}

#[test]
fn a_stage_is_loaded_again_before_all_who_have_it_are_done() {
    let mut pipeline = four();
    emptied(&mut pipeline, 0).arrivals /= 2;
    insta::assert_snapshot!(verdict(pipeline), @"
    error[race]: load of block 2 on rank 0 loads rows 0..128, columns 896..904 of x (chunk or slot 0) on rank 0 into x of stage 0 for tile (0, 0)
      = load of block 2 on rank 0 loads rows 0..128, columns 448..512 of x (chunk or slot 0) on rank 0 into x of stage 0 for tile (0, 0)
      = nothing orders these two
      help: wait for a signal that the first one is complete
    ");
}

fn sent_to(cta: impl Fn(Expr) -> Expr) -> String {
    trace(four(), |node| {
        let Node::Fragment(FragmentOp::SendPartial { to, .. }) = node else {
            return false;
        };
        *to = cta(Expr::var("part") % 2);
        true
    })
}

#[test]
fn partials_that_are_sent_to_a_cta_with_another_tile() {
    insta::assert_snapshot!(sent_to(|owner| rank(owner, other("multicast_rank"))), @"
    error[race]: multiply of block 2 on rank 0 sends subtile 0 of its part to split-K partial 1 of CTA 1 of its cluster
      = load of block 1 on rank 0 loads rows 128..256, columns 128..192 of x (chunk or slot 0) on rank 0 into x of stage 2 for tile (0, 0)
      = nothing orders these two
      help: wait for a signal that the first one is complete
    ");
    // As if there were no halves.
    insta::assert_snapshot!(sent_to(|owner| owner), @"
    error[race]: multiply of block 3 on rank 0 sends subtile 0 of its part to split-K partial 1 of CTA 0 of its cluster
      = multiply of block 2 on rank 0 sends subtile 0 of its part to split-K partial 1 of CTA 0 of its cluster
      = nothing orders these two
      help: wait for a signal that the first one is complete
    ");
    // Beyond the cluster.
    insta::assert_snapshot!(sent_to(|owner| rank(owner + 2, Expr::var("multicast_rank"))), @"
    error[coverage]: multiply of block 2 on rank 0 sends subtile 0 of its part to split-K partial 1 of CTA 4 of its cluster
      = its cluster has no CTA 4
    ");
}

fn partials_released_to(peer: Expr) -> String {
    let mut pipeline = ping_pong();
    emptied(&mut pipeline, 2)
        .multicast
        .as_mut()
        .expect("several")
        .peer = peer;
    verdict(pipeline)
}

#[test]
fn partials_that_are_released_to_others() {
    insta::assert_snapshot!(partials_released_to(rank(Expr::var("lane"), other("multicast_rank"))), @"
    error[progress]: multiply of block 1 on rank 0 waits for a split-K partial to be empty
      = multiply of block 2 on rank 0 releases a split-K partial
      = the barrier may complete its next phase before all waiting warps have observed this one: its parity is then ambiguous
      help: let every waiting warp arrive after its wait, not only one of them
    ");
    insta::assert_snapshot!(partials_released_to(Expr::var("lane")), @"
    error[progress]: multiply of block 1 on rank 0 waits for a split-K partial to be empty
      = multiply of block 0 on rank 0 releases a split-K partial
      = the barrier may complete its next phase before all waiting warps have observed this one: its parity is then ambiguous
      help: let every waiting warp arrive after its wait, not only one of them
    ");
}

#[test]
fn both_load_the_same_half() {
    let found = trace(good(((128, 128), false), (1, 2), 2), |node| {
        let Node::Load { part: 0, at, .. } = node else {
            return false;
        };
        at.row = 0.into();
        true
    });
    insta::assert_snapshot!(found, @"
    error[coverage]: multiply of block 1 on rank 0 multiplies x of stage 0 by w of stage 0
      = a stage does not hold one tile of each operand
    ");
}

/// Nothing that one CTA did to another may be under way when it leaves: neither loads and releases of stages, nor
/// releases of partials.
#[test]
fn what_is_under_way_at_the_end() {
    let mut pipeline = four();
    pipeline.end.clear();
    insta::assert_snapshot!(verdict(pipeline), @"
    error[race]: multiply of block 4 on rank 0 ends while another CTA of its cluster may still write its shared memory
      help: wait for the whole cluster at the end
    ");
    let mut pipeline = four();
    let mut edited = false;
    pipeline.lists(&mut |list| {
        let before = list.len();
        list.retain(|node| !matches!(node, Node::For { var, .. } if var == "i"));
        edited |= list.len() < before;
    });
    assert!(edited);
    insta::assert_snapshot!(verdict(pipeline), @"
    error[race]: load of block 5 on rank 0 ends while its cluster's shared memory may still change
      = multiply of block 7 on rank 0 releases a stage
      = nobody waits until this has landed in the other CTA: the cluster barrier at the end does not complete it
      help: wait for the barrier it completes on, or leave it out if nobody needs it
    ");
    let releases =
        |node: &Node| matches!(node, Node::Arrive { barrier, .. } if barrier.ring.0 == 2);
    let always = trace(ping_pong(), |node| match node {
        Node::If { test, body } if body.iter().any(releases) => {
            *test = Test::Equal(0.into(), 0.into());
            true
        }
        _ => false,
    });
    insta::assert_snapshot!(always, @"
    error[race]: store of block 4 on rank 0 ends while its cluster's shared memory may still change
      = multiply of block 6 on rank 0 releases a split-K partial
      = nobody waits until this has landed in the other CTA: the cluster barrier at the end does not complete it
      help: wait for the barrier it completes on, or leave it out if nobody needs it
    ");
}

/// What is said if a sum is released as if the next tile of its warpgroup were so many on.
fn released_among(tiles_on: &Expr) -> String {
    let releases =
        |node: &Node| matches!(node, Node::Arrive { barrier, .. } if barrier.ring.0 == 2);
    trace(ping_pong(), |node| match node {
        Node::If { test, body } if body.iter().any(releases) => {
            let tiles = test.exprs()[1].clone();
            *test = Test::Less(Expr::Within + tiles_on.clone(), tiles);
            true
        }
        _ => false,
    })
}

#[test]
fn a_cluster_has_ctas_beside_each_other_and_ctas_that_share() {
    insta::assert_snapshot!(released_among(&Expr::Blocks), @"
    error[progress]: load of block 0 on rank 0 waits for all warps of its cluster, for ever
      = load of block 0 on rank 0 waits for all warps of its cluster
      = store of block 0 on rank 0 waits for a subtile to be full for tile (2, 2)
      = store of block 0 on rank 0 waits for a subtile to be full for tile (0, 2)
      = multiply of block 0 on rank 0 waits for a split-K partial to be empty
      = multiply of block 0 on rank 0 waits for a split-K partial to be empty
    ");
    insta::assert_snapshot!(released_among(&(Expr::Blocks * 2)), @"
    error[progress]: load of block 0 on rank 0 waits for a stage to be empty, for ever
      = load of block 0 on rank 0 waits for a stage to be empty
      = store of block 0 on rank 0 waits for a subtile to be full for tile (1, 1)
      = store of block 0 on rank 0 waits for a subtile to be full for tile (0, 2)
      = multiply of block 0 on rank 0 waits for a split-K partial to be empty
      = multiply of block 0 on rank 0 waits for a split-K partial to be empty
    ");
}

#[test]
fn no_step_can_be_left_out() {
    // The end of a kernel completes its stores, too.
    for (kind, cluster) in [
        (((128, 96), false), (2, 1)),
        (((64, 64), true), (2, 1)),
        (((64, 64), true), (1, 2)),
    ] {
        insta::allow_duplicates! { insta::assert_snapshot!(unnoticed(|| good(kind, cluster, 2)), @"
        AwaitStores
        ") };
    }
}

fn refused<T: std::fmt::Debug>(result: Result<T, Diagnostics>) -> String {
    let found = result.expect_err("refused");
    found.first().text(&|_| String::new())
}

#[test]
fn clusters_that_cannot_be_are_refused_with_the_numbers() {
    let build =
        |kind, cluster, split, layout| refused(sm90::build(&kernel(kind, cluster, split, layout)));
    let small = ((64, 64), true);
    insta::assert_snapshot!(build(small, (2, 1), 5, Layout::Nt), @"
    error[resources]: 5 CTAs that split the K of a tile, in a cluster of 2x1
      help: at most 8 CTAs in all: `split` is at most 4
    ");
    insta::assert_snapshot!(build(small, (2, 2), 2, Layout::Nt), @"
    error[resources]: a cluster of 2x2
      help: 1x1, 2x1 or 1x2
    ");
    // With sums, 176 accumulators a thread spill where columns are on the M side, and do not where rows are.
    accepted(((256, 176), false), (1, 1), 2, Layout::Nt);
    insta::assert_snapshot!(build(((176, 256), false), (1, 1), 2, Layout::Nt), @"
    error[resources]: tiles of 176x256
      help: rows that are no multiple of 64, by 64 columns in ping-pong or 128 cooperative up to 248 rows; by 128 in ping-pong up to 160, 256 cooperative up to 160 (152 beside a sum over ranks that is not just added, 176 by CTAs alone, 200 of their plain products), 192 and 256 in ping-pong up to 104 and 80
    ");
    insta::assert_snapshot!(build(((24, 64), true), (1, 2), 2, Layout::Nt), @"
    error[resources]: a cluster that shares the rows of tiles of 24
      help: a multiple of 16 rows: its CTAs load whole swizzle atoms
    ");
    let large = kernel(small, (1, 2), 8, Layout::Nt);
    let plan = Plan::new(&large, &Shape::new(64, 64, 8192), &Machine::h200());
    insta::assert_snapshot!(refused(plan), @"
    error[resources]: a cluster of 16 CTAs
      help: a cluster has at most 8 CTAs
    ");
}

/// A cluster has tiles beside each other, of which some may be outside, and all its CTAs have each.
#[test]
fn a_cluster_has_several_tiles_and_several_ctas_for_each() {
    let grid = |tile, cluster, split, [m, n]: [u32; 2]| {
        let kernel = kernel((tile, false), cluster, split, Layout::Nt);
        let plan = Plan::new(&kernel, &Shape::new(m, n, 8192), &Machine::h200());
        plan.unwrap_or_else(|found| panic!("{found}")).grid
    };
    let deep = grid((128, 192), (2, 1), 2, [512, 2560]);
    assert_eq!((deep.tiles, deep.gemm), (56, 28 * 4));
    // Three rows of tiles are two of pairs.
    let ragged = grid((128, 192), (2, 1), 2, [384, 768]);
    assert_eq!((ragged.tiles, ragged.gemm), (12, 8 * 4));
    assert_eq!(grid((128, 192), (1, 2), 2, [384, 576]).gemm, 6 * 4);
    assert_eq!(grid((128, 192), (2, 1), 1, [384, 768]).gemm, 8 * 2);
    // No more than run at once.
    assert_eq!(grid((128, 128), (2, 1), 4, [4096, 4096]).gemm, 15 * 8);
}
