//! Orders are what their documentation says, for every world and grid.

use counterflow_codegen::builder::{GemmOptions, ScheduleBuilder, ranks};
use counterflow_codegen::dtype::Dtype::Bf16;
use counterflow_codegen::lower::lower;
use counterflow_codegen::order::{self, TileOrder, affine};
use counterflow_codegen::program::Program;
use counterflow_codegen::rank::{RankError, RankExpr, Var};
use counterflow_codegen::variant::Variant;
use proptest::prelude::*;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

/// An order of a kernel.
type RankOrder = order::RankOrder;

fn gcd(a: u32, b: u32) -> u32 {
    if b == 0 { a } else { gcd(b, a % b) }
}

proptest! {
    #[test]
    fn affine_orders_are_their_definition(
        world in 1u32..=16, start in -20i32..=20, stride in -20i32..=20, skipped in 0u32..=17,
    ) {
        let order = RankOrder::FromMe { start, stride, skipped, but_last: Vec::new() };
        let steps = order.steps(0, world, &|_| None);
        prop_assert_eq!(steps, Ok(world.saturating_sub(skipped)));
        for me in 0..world {
            let visited: Vec<u32> = (0..order.most_steps(world)).map(|s| order.at(me, s, world)).collect();
            for (step, rank) in (0i64..).zip(&visited) {
                let sum = i64::from(me) + i64::from(start) + i64::from(stride) * step;
                prop_assert_eq!(i64::from(*rank), sum.rem_euclid(i64::from(world)));
            }
            // A stride that shares a factor with the world comes back early; any other visits each rank once.
            if gcd(stride.unsigned_abs(), world) == 1 {
                let distinct: BTreeSet<u32> = visited.iter().copied().collect();
                prop_assert_eq!(distinct.len(), visited.len());
            }
        }
    }

    #[test]
    fn orders_without_their_last_ranks_are_prefixes(world in 1u32..=16, left_out in 0u32..=17) {
        for order in [
            RankOrder::FromMe { start: 0, stride: 1, skipped: 0, but_last: Vec::new() },
            RankOrder::FromMe { start: 0, stride: -1, skipped: 0, but_last: Vec::new() },
        ] {
            let short = order.clone().but_last(left_out);
            for me in 0..world {
                for step in 0..short.most_steps(world) {
                    prop_assert_eq!(short.at(me, step, world), order.at(me, step, world));
                }
            }
        }
    }
}

#[test]
fn what_is_left_out_may_depend_on_ranks() {
    let ring = || RankOrder::FromMe {
        start: 0,
        stride: -1,
        skipped: 0,
        but_last: Vec::new(),
    };
    let none = |_| None;
    for world in 1..=128 {
        for me in 0..world {
            let half = ring().but_last(RankExpr::World / 2);
            assert_eq!(half.steps(me, world, &none), Ok(world - world / 2));
            let twice = ring().but_last(1).but_last(RankExpr::Me);
            assert_eq!(
                twice.steps(me, world, &none),
                Ok(world.saturating_sub(1 + me))
            );
            // More than all leaves nothing; fewer than none is a mistake.
            let all = ring().but_last(RankExpr::World * 3);
            assert_eq!(all.steps(me, world, &none), Ok(0));
            let fewer = ring().but_last(RankExpr::Me - world);
            assert_eq!(fewer.steps(me, world, &none), Err(RankError::Negative));
            // Also where others leave out more than it.
            for fewer in [RankExpr::from(-1), RankExpr::Me - world] {
                let behind = ring().but_last(world).but_last(fewer).but_last(1);
                assert_eq!(behind.steps(me, world, &none), Err(RankError::Negative));
            }
        }
        let most = ring().but_last(RankExpr::Me).most_steps(world);
        assert_eq!(most, world);
    }
    let by_variable = ring().but_last(RankExpr::Var(Var(3)));
    assert_eq!(by_variable.steps(0, 4, &|_| Some(3)), Ok(1));
    assert_eq!(by_variable.most_steps(4), 4);
    assert_eq!(
        ring().but_last(RankExpr::World / 2).to_string(),
        "ring(1).but_last(world / 2)"
    );
}

#[test]
fn every_rank_meets_every_peer_once_before_and_after() {
    for world in 1..=16u32 {
        for order in [
            RankOrder::FromMe {
                start: 1,
                stride: 1,
                skipped: 1,
                but_last: Vec::new(),
            },
            RankOrder::FromMe {
                start: -1,
                stride: -1,
                skipped: 1,
                but_last: Vec::new(),
            },
        ] {
            for me in 0..world {
                let peers: BTreeSet<u32> = (0..order.most_steps(world))
                    .map(|s| order.at(me, s, world))
                    .collect();
                let expected: BTreeSet<u32> = (0..world).filter(|rank| *rank != me).collect();
                assert_eq!(peers, expected, "world {world} me {me} {order}");
            }
            // In each step the ranks' peers are distinct, so no link carries two.
            for step in 0..order.most_steps(world) {
                let at: BTreeSet<u32> = (0..world).map(|me| order.at(me, step, world)).collect();
                assert_eq!(at.len(), world as usize);
            }
        }
    }
}

#[test]
fn numbers_do_not_go_below_zero() {
    for world in 1..=16u32 {
        for me in 0..world {
            for step in 0..world {
                assert!(affine(-3, -5, me, step, world) < world);
            }
        }
    }
}

#[test]
fn tile_orders_are_permutations() {
    let groups = (1..=25).map(TileOrder::Grouped);
    let orders: Vec<TileOrder> = [
        TileOrder::RowMajor,
        TileOrder::ColumnMajor,
        TileOrder::Grouped(0),
    ]
    .into_iter()
    .chain(groups)
    .collect();
    for order in orders {
        for rows in 1..=20u32 {
            for columns in 1..=20u32 {
                let mut seen = vec![false; (rows * columns) as usize];
                for index in 0..rows * columns {
                    let (row, column) = order.at(index, rows, columns);
                    assert!(
                        row < rows && column < columns,
                        "{order} {rows}x{columns} at {index}"
                    );
                    let cell = &mut seen[(row * columns + column) as usize];
                    assert!(
                        !*cell,
                        "{order} visits ({row}, {column}) of {rows}x{columns} twice"
                    );
                    *cell = true;
                }
            }
        }
    }
}

#[test]
fn groups_go_column_by_column() {
    let at = |index| TileOrder::Grouped(2).at(index, 3u32, 2u32);
    let visited: Vec<(u32, u32)> = (0..6).map(at).collect();
    assert_eq!(visited, [(0, 0), (1, 0), (0, 1), (1, 1), (2, 0), (2, 1)]);
}

/// A schedule that multiplies shards in that order.
fn multiplying(order: fn(u32, u32, u32) -> u32) -> Program {
    let mut s = ScheduleBuilder::new("multiplying");
    let (x, w, y) = (
        s.local("x", Bf16),
        s.local("w", Bf16),
        s.reduce_scattered("y", Bf16),
    );
    let tiles = s.tiles("tiles", y, (8u32, 8u32));
    let partial = s.symmetric("partial", Bf16, y, 1u32);
    s.gemm(GemmOptions::default(), |s| {
        s.for_ranks("shard", ranks().by(order), |s, shard| {
            s.for_items("t", tiles.of(&shard), |s, t| {
                let product = s.dot(x.at(t), w.at(t));
                s.store(partial.on(&shard).at(0).at(t), product);
            });
        });
    });
    s.finish()
}

/// A closure is asked once for each step of each rank, and lowering what it said asks nothing.
#[test]
fn what_a_closure_said_once_is_what_is_lowered() {
    static ASKED: AtomicU32 = AtomicU32::new(0);
    fn moody(me: u32, step: u32, world: u32) -> u32 {
        (ASKED.fetch_add(1, SeqCst) / 16 + me + step) % world
    }
    let program = multiplying(moody);
    let tabulated = program.tabulated(4);
    let again = tabulated.tabulated(4).into_owned();
    for program in [&*tabulated, &again] {
        let kernel = lower(program, &Variant::new(4)).expect("a kernel");
        let order = &kernel.orders()[0];
        let visited: Vec<u32> = (0..4).map(|step| order.at(1, step, 4)).collect();
        assert_eq!((visited, ASKED.load(SeqCst)), (vec![1, 2, 3, 0], 16));
    }
    // As it was written it is asked at each lowering.
    lower(&program, &Variant::new(4)).expect("a kernel");
    assert_eq!(ASKED.load(SeqCst), 32);
}

#[test]
fn a_table_says_nothing_of_another_world() {
    let program = multiplying(|me, step, _| me ^ step);
    let found = lower(&program.tabulated(4), &Variant::new(8)).expect_err("another world");
    insta::assert_snapshot!(found.first().text(&|_| String::new()), @"
    error[shape]: this order by closure was asked for a world of 4, and this kernel is for a world of 8
      help: lower the schedule as it was written: `Program::tabulated` makes tables for one world
    ");
    let at = found.first().at.expect("at the loop");
    assert!(at.file().ends_with("orders.rs"));
}
