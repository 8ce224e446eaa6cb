//! Operands that are MN-major: which of their blocks come, which part of a block each CTA of a cluster loads, and
//! what the verifier says when that is changed.

use crate::fixtures::left_out::unnoticed;
use counterflow_codegen::builder::{GemmOptions, ScheduleBuilder};
use counterflow_codegen::dtype::Dtype::Bf16;
use counterflow_codegen::lower::lower;
use counterflow_codegen::sm90;
use counterflow_codegen::variant::{Layout, Variant};
use counterflow_codegen::verify;
use counterflow_codegen::warp::{Expr, Node, Pipeline};

/// A tile, and whether it is multiplied in ping-pong.
type Kind = ((u32, u32), bool);

const SHARED: Kind = ((128, 192), false);
const PING_PONG: Kind = ((128, 96), true);

fn good((tile, ping_pong): Kind, cluster: (u32, u32), split: u32, layout: Layout) -> Pipeline {
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
    let built = kernel.and_then(|kernel| sm90::build(&kernel));
    built.unwrap_or_else(|found| panic!("{found}"))
}

/// What the verifier says after `edit` has changed the nodes of a good pipeline that it can.
fn trace(mut pipeline: Pipeline, mut edit: impl FnMut(&mut Node) -> bool) -> String {
    let mut edited = false;
    pipeline.lists(&mut |list| {
        for node in list {
            edited |= edit(node);
        }
    });
    assert!(edited, "the edit found nothing to change");
    let found = verify::pipeline(pipeline).expect_err("refused");
    found.first().text(&|_| String::new())
}

/// One block less than exist, for the loads and for the bytes that are expected.
fn a_block_less(name: &str) -> impl FnMut(&mut Node) -> bool {
    move |node| {
        let Node::Let { name: known, value } = node else {
            return false;
        };
        let found = *known == name;
        if found {
            // Of tiles that are not whole, if they have one.
            let whole = value.clone() / if name == "x_blocks" { 2 } else { 3 };
            let one = Expr::from(1) - whole;
            *value = value.clone() - Expr::Min(one.into(), value.clone().into());
        }
        found
    }
}

#[test]
fn a_block_that_is_left_out() {
    for cluster in [(1, 1), (2, 1), (1, 2)] {
        for (name, layout) in [
            ("x_blocks", Layout::Tn),
            ("w_blocks", Layout::Tn),
            ("w_blocks", Layout::Nn),
        ] {
            let found = trace(good(SHARED, cluster, 1, layout), a_block_less(name));
            assert!(
                found.contains("was not loaded"),
                "{cluster:?} {layout:?}: {found}"
            );
        }
    }
}

/// Other loads of an operand's blocks than are expected: `change` of how many.
fn blocks_of(operand: usize, change: impl Fn(Expr) -> Expr) -> impl FnMut(&mut Node) -> bool {
    move |node| {
        let Node::For { var, to, body, .. } = node else {
            return false;
        };
        let found =
            var == "block" && matches!(body[..], [Node::Load { part, .. }] if part == operand);
        if found {
            *to = change(to.clone());
        }
        found
    }
}

#[test]
fn other_blocks_than_are_expected() {
    let more = |blocks: Expr| blocks + 1;
    let fewer = |blocks: Expr| blocks.clone() - Expr::Min(Expr::from(1).into(), blocks.into());
    for cluster in [(1, 1), (2, 1), (1, 2)] {
        let kernel = || good(SHARED, cluster, 1, Layout::Tn);
        let found = trace(kernel(), blocks_of(1, fewer));
        assert!(found.contains("for ever"), "{cluster:?}: {found}");
        let found = trace(kernel(), blocks_of(1, more));
        assert!(found.starts_with("error"), "{cluster:?}: {found}");
    }
}

/// Nothing tells the consumers that a block is stale: only what is stored of its rows.
#[test]
fn a_block_that_does_not_come_in_every_step() {
    for (split, name) in [(1, "step"), (2, "split_rank")] {
        // Of four blocks of rows, the last tile has two.
        let less = |blocks: Expr| {
            let then = Expr::Min(Expr::var(name).into(), Expr::from(1).into());
            blocks.clone() - then * (Expr::from(1) - blocks / 4)
        };
        let kernel = good(((256, 96), false), (1, 1), split, Layout::Tn);
        let found = trace(kernel, |node| match node {
            Node::Expect { barrier, bytes } if barrier.ring.0 == 0 => {
                let all = Expr::var("x_blocks");
                let missing = all.clone() - less(all);
                *bytes = bytes.clone() - missing * 8192;
                true
            }
            node => blocks_of(0, less)(node),
        });
        assert!(found.contains("was not loaded"), "{name}: {found}");
    }
}

/// The column of each load of w is another one.
fn loads(mut column: impl FnMut(Expr) -> Expr) -> impl FnMut(&mut Node) -> bool {
    move |node| {
        let Node::Load {
            part: 1,
            at,
            multicast: true,
            ..
        } = node
        else {
            return false;
        };
        at.column = column(at.column.clone());
        true
    }
}

#[test]
fn parts_of_a_block_that_do_not_follow_each_other() {
    let mine = || Expr::var("multicast_rank") * 32;
    // Both the first; each the other's.
    insta::assert_snapshot!(trace(good(SHARED, (2, 1), 1, Layout::Nn), loads(|column| column - mine())), @"
    error[coverage]: multiply of block 1 on rank 0 multiplies x of stage 0 by w of stage 0
      = a stage does not hold one tile of each operand
    ");
    insta::assert_snapshot!(trace(good(SHARED, (2, 1), 1, Layout::Tn), loads(|column| column - mine() + (Expr::from(32) - mine()))), @"
    error[coverage]: multiply of block 1 on rank 0 multiplies x of stage 0 by w of stage 0
      = a stage does not hold one tile of each operand
    ");
}

#[test]
fn a_part_of_a_block_that_comes_to_its_own_cta_alone() {
    let alone = |node: &mut Node| {
        let Node::Load { multicast, .. } = node else {
            return false;
        };
        std::mem::replace(multicast, false)
    };
    insta::assert_snapshot!(trace(good(PING_PONG, (1, 2), 1, Layout::Tn), alone), @"
    error[progress]: load of block 0 on rank 0 waits for a stage to be empty for tile (0, 0), for ever
      = load of block 0 on rank 0 waits for a stage to be empty for tile (0, 0)
      = store of block 0 on rank 0 waits for a subtile to be full for tile (0, 0)
      = store of block 0 on rank 0 waits for a subtile to be full for tile (2, 0)
      = multiply of block 0 on rank 0 waits for a stage to be full
      = multiply of block 0 on rank 0 waits at its order barrier
    ");
}

#[test]
fn every_node_counts() {
    for (cluster, layout) in [
        ((2, 1), Layout::Nn),
        ((2, 1), Layout::Tn),
        ((1, 2), Layout::Tn),
    ] {
        for kind in [SHARED, PING_PONG] {
            let kernel = || good(kind, cluster, 1, layout);
            insta::allow_duplicates! { insta::assert_snapshot!(unnoticed(kernel), @"
            AwaitStores
            ") };
        }
    }
}
