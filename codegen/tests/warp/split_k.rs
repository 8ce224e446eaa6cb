//! CTAs that split the K of a tile: what the verifier accepts, and what it says when one thing is changed.

use crate::fixtures::left_out::unnoticed;
use crate::fixtures::library;
use crate::fixtures::wide::{in_turn, sampled};
use counterflow_codegen::builder::{GemmOptions, ScheduleBuilder, Tune};
use counterflow_codegen::diag::Diagnostics;
use counterflow_codegen::dtype::Dtype::{Bf16, F32};
use counterflow_codegen::kernel::Kernel;
use counterflow_codegen::lower::lower;
use counterflow_codegen::machine::Machine;
use counterflow_codegen::plan::Plan;
use counterflow_codegen::program::{Choice, Program, RoleKind, Setting};
use counterflow_codegen::shape::Shape;
use counterflow_codegen::sm90;
use counterflow_codegen::variant::{Layout, Variant};
use counterflow_codegen::verify::{self, Checked};
use counterflow_codegen::warp::{BarrierId, Expr, FragmentOp, Node, Pipeline, RingId, Scope, Test};

/// The partials that CTAs which share a tile send each other.
const PARTIALS: RingId = RingId(2);

fn kernel(options: GemmOptions, tile: (u32, u32), layout: Layout) -> Checked<Kernel> {
    let variant = Variant::new(1).layout(layout);
    let kernel = lower(&gemm(options, tile), &variant).and_then(verify::kernel);
    kernel.unwrap_or_else(|found| panic!("{found}"))
}

fn gemm(options: GemmOptions, tile: (u32, u32)) -> Program {
    let mut s = ScheduleBuilder::new("gemm");
    let (x, w, y) = (s.local("x", Bf16), s.local("w", Bf16), s.out("y", Bf16));
    let tiles = s.tiles("tiles", y, tile);
    s.gemm(options, |s| {
        s.for_items("t", tiles.grouped(8), |s, t| {
            let acc = s.dot(x.at(t), w.at(t));
            s.store(y.at(t), acc);
        });
    });
    s.finish()
}

fn shared(split: u32) -> GemmOptions {
    GemmOptions {
        split: Some(Tune::from(split)),
        ..GemmOptions::default()
    }
}

fn good(split: u32, tile: (u32, u32), layout: Layout) -> Pipeline {
    let kernel = kernel(shared(split), tile, layout);
    sm90::build(&kernel).unwrap_or_else(|found| panic!("{found}"))
}

#[test]
fn every_sort_of_tile_is_split_along_k() {
    let sorts = [
        ((128, 128), &[2, 3, 4][..]),
        ((128, 160), &[2, 4]),
        ((128, 256), &[2, 3, 4]),
        ((128, 64), &[2, 3, 4]),
        ((256, 64), &[2]),
        ((64, 64), &[2, 3, 4]),
        ((64, 128), &[2, 3, 4]),
        ((16, 64), &[2]),
        ((32, 64), &[3, 4]),
        ((48, 128), &[5, 6]),
    ];
    let each = sorts.into_iter().flat_map(|(tile, splits)| {
        let splits = splits.iter();
        splits.map(move |split| (tile, *split))
    });
    for (at, (tile, split)) in sampled(each.enumerate(), 2) {
        for layout in in_turn(Layout::ALL, at) {
            let checked = verify::pipeline(good(split, tile, layout));
            checked.unwrap_or_else(|found| panic!("{tile:?} by {split}: {found}"));
        }
    }
}

/// What comes after the product is shared, too: vectors and stored tiles by subtiles, several types of results.
#[test]
fn every_cta_applies_the_math_to_its_own_subtiles() {
    for split in [2, 3, 4] {
        let mut s = ScheduleBuilder::new("linear");
        let (x, w, z) = (s.local("x", Bf16), s.local("w", Bf16), s.local("z", Bf16));
        let bias = s.vector("bias", F32);
        let (y, wide) = (s.out("y", Bf16), s.out("wide", F32));
        let tiles = s.tiles("tiles", y, (128, 128));
        s.gemm(shared(split), |s| {
            s.for_items("t", tiles.grouped(8), |s, t| {
                let acc = s.dot(x.at(t), w.at(t));
                let (bias, residual) = (s.load(bias), s.load(z.at(t)));
                let sum = acc + bias + residual;
                s.store(y.at(t), sum.clone());
                s.store(wide.at(t), sum);
            });
        });
        let kernel = lower(&s.finish(), &Variant::new(1)).and_then(verify::kernel);
        let built = kernel.and_then(|kernel| sm90::build(&kernel));
        let checked = built.and_then(verify::pipeline);
        checked.unwrap_or_else(|found| panic!("by {split}: {found}"));
    }
}

/// What the verifier says after `edit` has changed the first nodes that it can.
fn trace(tile: (u32, u32), edit: impl Fn(&mut Vec<Node>) -> bool) -> String {
    let mut pipeline = good(3, tile, Layout::Nt);
    let mut done = false;
    pipeline.lists(&mut |list| done = done || edit(list));
    assert!(done, "the edit found nothing to change");
    verdict(pipeline)
}

fn verdict(pipeline: Pipeline) -> String {
    let found = verify::pipeline(pipeline).expect_err("refused");
    found.first().text(&|_| String::new())
}

fn remove(list: &mut Vec<Node>, is: impl Fn(&Node) -> bool) -> bool {
    let at = list.iter().position(is);
    if let Some(at) = at {
        list.remove(at);
    }
    at.is_some()
}

fn awaits(node: &Node, wanted: BarrierId) -> bool {
    matches!(node, Node::Await { barrier, .. } if *barrier == wanted)
}

#[test]
fn a_slot_is_written_before_it_was_read() {
    let found = trace((64, 64), |list| {
        remove(list, |node| awaits(node, PARTIALS.empty()))
    });
    insta::assert_snapshot!(found, @"
    error[race]: multiply of block 0 on rank 0 sends subtile 1 of its part to split-K partial 0 of CTA 1 of its cluster
      = multiply of block 0 on rank 0 sends subtile 1 of its part to split-K partial 0 of CTA 1 of its cluster
      = nothing orders these two
      help: wait for a signal that the first one is complete
    ");
}

#[test]
fn a_partial_is_read_before_it_came() {
    let found = trace((128, 128), |list| {
        remove(list, |node| awaits(node, PARTIALS.full()))
    });
    insta::assert_snapshot!(found, @"
    error[coverage]: multiply of block 2 on rank 0 adds split-K partial 1 to subtile 2
      = no partial of this subtile of its tile lies there
    ");
}

#[test]
fn bytes_that_nobody_announced() {
    let found = trace((64, 64), |list| {
        remove(
            list,
            |node| matches!(node, Node::Expect { barrier, .. } if *barrier == PARTIALS.full()),
        )
    });
    insta::assert_snapshot!(found, @"
    error[progress]: load of block 0 on rank 0 waits for a stage to be empty for tile (1, 1), for ever
      = load of block 0 on rank 0 waits for a stage to be empty for tile (1, 1)
      = store of block 0 on rank 0 waits for a subtile to be full for tile (0, 0)
      = store of block 0 on rank 0 waits for a subtile to be full for tile (2, 0)
      = multiply of block 0 on rank 0 waits for a split-K partial to be full
      = multiply of block 0 on rank 0 waits for a split-K partial to be full
    ");
}

#[test]
fn a_slot_is_not_released() {
    let found = trace((64, 64), |list| {
        remove(
            list,
            |node| matches!(node, Node::Arrive { barrier, .. } if *barrier == PARTIALS.empty()),
        )
    });
    insta::assert_snapshot!(found, @"
    error[progress]: load of block 0 on rank 0 waits for all warps of its cluster, for ever
      = load of block 0 on rank 0 waits for all warps of its cluster
      = store of block 0 on rank 0 waits for a subtile to be full for tile (4, 0)
      = store of block 0 on rank 0 waits for a subtile to be full for tile (1, 1)
      = multiply of block 0 on rank 0 waits for a split-K partial to be empty
      = multiply of block 0 on rank 0 waits for a split-K partial to be empty
    ");
}

#[test]
fn reads_that_are_not_fenced_from_the_next_partials() {
    let mut pipeline = good(2, (64, 64), Layout::Nt);
    let fence = |node: &Node| *node == Node::FenceShared;
    pipeline.lists(&mut |list| {
        while remove(list, fence) {}
    });
    insta::assert_snapshot!(verdict(pipeline), @"
    error[race]: multiply of block 0 on rank 0 sends subtile 1 of its part to split-K partial 0 of CTA 1 of its cluster
      = multiply of block 1 on rank 0 adds split-K partial 0 to subtile 1
      = a barrier or a counter orders them, but no proxy fence
      help: `fence_async_shared` after ordinary accesses, before the slot is released
    ");
}

#[test]
fn arrivals_that_order_nothing_beyond_their_cta() {
    let mut pipeline = good(2, (64, 64), Layout::Nt);
    let sums = &mut pipeline.rings[2];
    for barrier in [Some(&mut sums.full), sums.empty.as_mut()] {
        barrier.expect("both").scope = Scope::Cta;
    }
    insta::assert_snapshot!(verdict(pipeline), @"
    error[race]: multiply of block 1 on rank 0 adds split-K partial 0 to subtile 1
      = multiply of block 0 on rank 0 sends subtile 1 of its part to split-K partial 0 of CTA 1 of its cluster
      = nothing orders these two
      help: wait for a signal that the first one is complete
    ");
}

#[test]
fn bytes_on_a_barrier_that_counts_arrivals_alone() {
    let without = |ring: usize| {
        let mut pipeline = good(2, (64, 64), Layout::Nt);
        pipeline.rings[ring].full.tx = false;
        verdict(pipeline)
    };
    insta::assert_snapshot!(without(0), @"
    error[progress]: load of block 0 on rank 0 announces a load for tile (0, 0)
      = no bytes complete on this barrier: a phase of it ends with arrivals alone
      help: name the barrier that counts bytes, or declare that this one does
    ");
    insta::assert_snapshot!(without(2), @"
    error[progress]: multiply of block 0 on rank 0 announces a load
      = no bytes complete on this barrier: a phase of it ends with arrivals alone
      help: name the barrier that counts bytes, or declare that this one does
    ");
}

fn steps(change: impl Fn(&str, Expr) -> Expr) -> Pipeline {
    let mut pipeline = good(3, (64, 64), Layout::Nt);
    for (name, value) in &mut pipeline.lets {
        *value = change(name, value.clone());
    }
    pipeline
}

#[test]
fn steps_that_are_skipped_or_repeated() {
    // The second and third begin a step late.
    let skipped = steps(|name, value| match name {
        "first_step" => (Expr::var("all_steps") * Expr::var("split_rank") + 2) / 3,
        _ => value,
    });
    insta::assert_snapshot!(verdict(skipped), @"
    error[coverage]: store of block 2 on rank 0 stores subtile 0 to rows 0..64, columns 32..48 of y (shard or slot 0) on rank 0 for tile (0, 0)
      = the product does not have all of K
    ");
    let repeated = steps(|name, value| match name {
        "steps" => value + 1,
        _ => value,
    });
    insta::assert_snapshot!(verdict(repeated), @"
    error[coverage]: store of block 2 on rank 0 stores subtile 0 to rows 0..64, columns 32..48 of y (shard or slot 0) on rank 0 for tile (0, 0)
      = the product does not have all of K
    ");
    let all = steps(|name, value| match name {
        "first_step" => 0.into(),
        _ => value,
    });
    insta::assert_snapshot!(verdict(all), @"
    error[coverage]: store of block 2 on rank 0 stores subtile 0 to rows 0..64, columns 32..48 of y (shard or slot 0) on rank 0 for tile (0, 0)
      = the product does not have all of K
    ");
}

#[test]
fn a_part_that_is_added_twice_or_left_out() {
    let index = |to: Expr| {
        let mut pipeline = good(3, (64, 64), Layout::Nt);
        pipeline.lists(&mut |list| {
            for node in list {
                if let Node::Fragment(FragmentOp::AddPartial { index, .. }) = node {
                    *index = to.clone();
                }
            }
        });
        verdict(pipeline)
    };
    insta::assert_snapshot!(index(Expr::var("part") / 3), @"
    error[coverage]: store of block 2 on rank 0 stores subtile 0 to rows 0..64, columns 32..48 of y (shard or slot 0) on rank 0 for tile (0, 0)
      = the product does not have all of K
    ");
    insta::assert_snapshot!(index(Expr::var("from") * 2 + 1), @"
    error[coverage]: multiply of block 2 on rank 0 adds split-K partial 0 to subtile 2
      = no partial of this subtile of its tile lies there
    ");
    let left_out = trace((64, 64), |list| {
        remove(list, |node| {
            matches!(node, Node::Fragment(FragmentOp::AddPartial { .. }))
        })
    });
    insta::assert_snapshot!(left_out, @"
    error[coverage]: store of block 2 on rank 0 stores subtile 0 to rows 0..64, columns 32..48 of y (shard or slot 0) on rank 0 for tile (0, 0)
      = the product does not have all of K
    ");
}

#[test]
fn no_step_can_be_left_out() {
    // The end of a kernel completes its stores, too.
    insta::assert_snapshot!(unnoticed(|| good(2, (128, 96), Layout::Nt)), @"
    AwaitStores
    ");
    insta::assert_snapshot!(unnoticed(|| good(2, (64, 64), Layout::Nt)), @"
    AwaitStores
    ");
}

/// A CTA that does not go on to the next phase takes the slot of the tile before for full, and for free.
#[test]
fn the_partials_of_the_tile_before() {
    let advances = |node: &Node| matches!(node, Node::Advance { ring, .. } if ring.0 == 2);
    let found = trace((64, 64), |list| remove(list, advances));
    insta::assert_snapshot!(found, @"
    error[race]: multiply of block 0 on rank 0 sends subtile 1 of its part to split-K partial 0 of CTA 1 of its cluster
      = multiply of block 0 on rank 0 sends subtile 1 of its part to split-K partial 0 of CTA 1 of its cluster
      = nothing orders these two
      help: wait for a signal that the first one is complete
    ");
}

#[test]
fn a_cluster_that_ends_before_all_have_sent() {
    let mut pipeline = good(2, (64, 64), Layout::Nt);
    pipeline.end.clear();
    insta::assert_snapshot!(verdict(pipeline), @"
    error[race]: load of block 0 on rank 0 ends while another CTA of its cluster may still write its shared memory
      help: wait for the whole cluster at the end
    ");
}

/// What is said if a sum is released under another condition.
fn released_if(to: impl Fn(Expr, Expr) -> Test) -> String {
    let releases =
        |node: &Node| matches!(node, Node::Arrive { barrier, .. } if *barrier == PARTIALS.empty());
    trace((64, 64), |list| {
        let mut found = list.iter_mut().filter_map(|node| match node {
            Node::If { test, body } if body.iter().any(releases) => Some(test),
            _ => None,
        });
        let Some(test) = found.next() else {
            return false;
        };
        let [next, tiles] = [0, 1].map(|side| test.exprs()[side].clone());
        *test = to(next, tiles);
        true
    })
}

#[test]
fn an_arrival_that_nobody_waits_for_is_under_way_at_the_end() {
    let always = |_, _| Test::Equal(0.into(), 0.into());
    insta::assert_snapshot!(released_if(always), @"
    error[race]: store of block 1 on rank 0 ends while its cluster's shared memory may still change
      = multiply of block 2 on rank 0 releases a split-K partial
      = nobody waits until this has landed in the other CTA: the cluster barrier at the end does not complete it
      help: wait for the barrier it completes on, or leave it out if nobody needs it
    ");
}

#[test]
fn a_slot_that_is_not_released_though_there_is_a_next_tile() {
    let late = |next: Expr, tiles| Test::Less(next + Expr::Blocks / 3, tiles);
    insta::assert_snapshot!(released_if(late), @"
    error[progress]: load of block 0 on rank 0 waits for all warps of its cluster, for ever
      = load of block 0 on rank 0 waits for all warps of its cluster
      = store of block 0 on rank 0 waits for a subtile to be full for tile (3, 1)
      = store of block 0 on rank 0 waits for all warps of its cluster
      = multiply of block 0 on rank 0 waits for a split-K partial to be empty
      = multiply of block 0 on rank 0 waits for all warps of its cluster
    ");
}

#[test]
fn several_loops_are_not_split_along_k() {
    let mut s = ScheduleBuilder::new("gemm");
    let (x, w) = (s.local("x", Bf16), s.local("w", Bf16));
    let outs = [s.out("y", Bf16), s.out("z", Bf16)];
    let tiles = outs.map(|out| s.tiles("tiles", out, (64, 64)));
    s.gemm(shared(2), |s| {
        for (out, tiles) in outs.into_iter().zip(tiles) {
            s.for_items("t", tiles.grouped(8), |s, t| {
                let acc = s.dot(x.at(t), w.at(t));
                s.store(out.at(t), acc);
            });
        }
    });
    let kernel = lower(&s.finish(), &Variant::new(1)).and_then(verify::kernel);
    insta::assert_snapshot!(refused(kernel.and_then(|kernel| sm90::build(&kernel))), @"
    error[resources]: 2 CTAs that split the K of a tile, in several loops
      help: split = 1, or one loop over tiles
    ");
}

fn refused<T: std::fmt::Debug>(result: Result<T, Diagnostics>) -> String {
    let found = result.expect_err("refused");
    found.first().text(&|_| String::new())
}

#[test]
fn what_cannot_be_shared_is_refused_with_the_numbers() {
    let build =
        |options: GemmOptions, tile| refused(sm90::build(&kernel(options, tile, Layout::Nt)));
    insta::assert_snapshot!(build(shared(9), (64, 64)), @"
    error[resources]: 9 CTAs that split the K of a tile
      help: at most 8: a cluster has no more CTAs
    ");
    for cluster in [(2, 1), (1, 2)] {
        let clustered = GemmOptions {
            cluster: Some(cluster.into()),
            ..shared(2)
        };
        let (down, across) = cluster;
        assert_eq!(
            build(clustered, (64, 64)),
            format!(
                "error[resources]: 2 CTAs that split the K of a tile, in a cluster of {down}x{across}\n  \
                 help: cluster = (1, 1), or split = 1: the CTAs of a cluster share operands or steps\n"
            )
        );
    }
    // With sums, 176 accumulators a thread spill where columns are on the M side, and do not where rows are.
    verify::pipeline(good(2, (256, 176), Layout::Nt)).unwrap_or_else(|found| panic!("{found}"));
    insta::assert_snapshot!(build(shared(2), (176, 256)), @"
    error[resources]: tiles of 176x256
      help: rows that are no multiple of 64, by 64 columns in ping-pong or 128 cooperative up to 248 rows; by 128 in ping-pong up to 160, 256 cooperative up to 160 (152 beside a sum over ranks that is not just added, 176 by CTAs alone, 200 of their plain products), 192 and 256 in ping-pong up to 104 and 80
    ");
    let ping_pong = GemmOptions {
        ping_pong: Some(true.into()),
        ..shared(4)
    };
    insta::assert_snapshot!(build(ping_pong, (128, 160)), @"
    error[resources]: not even 2 stages of 36864 bytes fit beside 4 subtiles of 4096 bytes and 147456 bytes of partials
      help: an SM has 232448 bytes: use smaller tiles, or a smaller k
    ");
    let few = |stages: u32| GemmOptions {
        stages: Some(stages.into()),
        ..shared(4)
    };
    insta::assert_snapshot!(build(few(2), (128, 256)), @"
    error[resources]: 114688 bytes of partials and subtiles where 2 stages of 49152 bytes are
      help: 3 stages or more, or a smaller `split`
    ");
    insta::assert_snapshot!(build(few(5), (128, 256)), @"
    error[resources]: 5 stages of 49152 bytes
      help: an SM has 232448 bytes: 2 to 4 stages
    ");
    let subtiles = GemmOptions {
        subtiles: Some(2.into()),
        ..shared(4)
    };
    insta::assert_snapshot!(build(subtiles, (128, 256)), @"
    error[resources]: 2 subtiles, where 4 CTAs that share a tile have 1 each
      help: leave `subtiles` open: partials and subtiles lie where the stages are
    ");
    insta::assert_snapshot!(build(shared(7), (128, 96)), @"
    error[resources]: 7 CTAs that share a tile of 6 subtiles of 16 columns
      help: a subtile each: `split` is at most 6
    ");
    let few = kernel(shared(4), (64, 64), Layout::Nt);
    let plan = Plan::new(&few, &Shape::new(64, 64, 152), &Machine::h200());
    insta::assert_snapshot!(refused(plan), @"
    error[resources]: 4 CTAs split 3 steps of 64 of a K of 152
      help: a step each: `split` is at most 3
    ");
    let many = kernel(shared(16), (64, 64), Layout::Nt);
    let plan = Plan::new(&many, &Shape::new(64, 64, 8192), &Machine::h200());
    insta::assert_snapshot!(refused(plan), @"
    error[resources]: a cluster of 16 CTAs
      help: a cluster has at most 8 CTAs
    ");
}

#[test]
fn kernels_that_communicate_are_not_split_along_k() {
    let all = library::all();
    let named = |name: &str| all.iter().find(|program| program.name == name);
    for name in ["ag_gemm", "gemm_rs"] {
        let mut program = named(name).expect("a schedule").clone();
        for role in &mut program.roles {
            if let RoleKind::Gemm { split, .. } = &mut role.kind {
                *split = Some(Choice::Fixed(Setting::One(2)));
            }
        }
        let variant = Variant::new(4).set("tiles", (128, 128));
        let kernel = lower(&program, &variant).and_then(verify::kernel);
        let kernel = kernel.unwrap_or_else(|found| panic!("{found}"));
        let verdict = refused(sm90::build(&kernel));
        assert!(
            verdict.contains(
                "2 CTAs that split the K of a tile, in a kernel that moves data or signals"
            ),
            "{name}: {verdict}"
        );
    }
}

#[test]
fn a_cluster_is_a_worker() {
    let grid_of = |tile, m, n, split| {
        let kernel = kernel(shared(split), tile, Layout::Nt);
        let plan = Plan::new(&kernel, &Shape::new(m, n, 8192), &Machine::h200());
        plan.unwrap_or_else(|found| panic!("{found}")).grid.gemm
    };
    let grid = |m, n, split| grid_of((64, 64), m, n, split);
    assert_eq!(grid(64, 2560, 1), 40);
    assert_eq!(grid(64, 1280, 3), 60);
    // 39 clusters of 3, and 22 of 5, run at once.
    assert_eq!(grid(256, 2560, 3), 39 * 3);
    assert_eq!(grid_of((64, 128), 256, 5120, 5), 22 * 5);
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

/// A cluster has tiles beside each other, of which some may be outside.
#[test]
fn three_rows_of_tiles_are_two_of_pairs() {
    let pairs = GemmOptions {
        cluster: Some((2, 1).into()),
        ..GemmOptions::default()
    };
    let kernel = kernel(pairs, (128, 192), Layout::Nt);
    let plan = Plan::new(&kernel, &Shape::new(384, 768, 8192), &Machine::h200());
    let grid = plan.unwrap_or_else(|found| panic!("{found}")).grid;
    assert_eq!((grid.tiles, grid.gemm), (12, 8 * 2));
}
