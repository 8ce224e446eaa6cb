//! Tiles whose rows are no multiple of 64: their columns are on the tensor cores' M side. What the verifier accepts, and
//! what it says when one thing is changed.

use crate::fixtures::left_out::unnoticed;
use crate::fixtures::library;
use crate::fixtures::strangers::one_shot;
use crate::fixtures::wide::{in_turn, wide};
use counterflow_codegen::builder::{GemmOptions, ScheduleBuilder, Tune};
use counterflow_codegen::diag::Diagnostics;
use counterflow_codegen::dtype::Dtype::{self, Bf16, E4M3, F32};
use counterflow_codegen::lower::lower;
use counterflow_codegen::plan::Plan;
use counterflow_codegen::program::{Program, Side};
use counterflow_codegen::shape::Shape;
use counterflow_codegen::sm90;
use counterflow_codegen::sm90::cta::{Mode, Wgmma};
use counterflow_codegen::variant::{Layout, Variant};
use counterflow_codegen::verify;
use counterflow_codegen::warp::{
    Along, Expr, FragmentOp, Node, Pipeline, Subtile, Symbol, Tile, TileNumber,
};
use proptest::prelude::*;

/// A number of the only loop's tiles.
fn tile(of: TileNumber) -> Symbol {
    let name = of.name().into();
    Symbol::Tile { of, name }
}

/// What is chosen beside the tile.
#[derive(Clone, Copy, Debug)]
struct Knobs {
    tile: (u32, u32),
    ping_pong: bool,
    cluster: (u32, u32),
    split: u32,
    layout: Layout,
}

const fn knobs(tile: (u32, u32), ping_pong: bool, split: u32) -> Knobs {
    Knobs {
        tile,
        ping_pong,
        cluster: (1, 1),
        split,
        layout: Layout::Nt,
    }
}

/// What an item does with its product.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum After {
    /// Stores it.
    Nothing,
    /// Stores a function of it.
    Function,
    /// Adds a vector, and stores it in two types.
    Vector,
    /// Adds a stored tile of f32, and a vector.
    Tile,
    /// Adds it to what is there.
    Accumulated,
}

fn program(knobs: Knobs, after: After) -> Program {
    let mut s = ScheduleBuilder::new("gemm");
    let (x, w) = (s.local("x", Bf16), s.local("w", Bf16));
    let input = (after == After::Tile).then(|| s.local("z", F32));
    let vector = matches!(after, After::Vector | After::Tile).then(|| s.vector("bias", F32));
    let y = match after {
        After::Accumulated => s.accumulated("y", F32),
        After::Nothing | After::Function | After::Vector | After::Tile => s.out("y", Bf16),
    };
    let wide = (after == After::Vector).then(|| s.out("wide", F32));
    let tiles = s.tiles("tiles", y, knobs.tile);
    let options = GemmOptions {
        cluster: Some(knobs.cluster.into()),
        split: Some(Tune::from(knobs.split)),
        ping_pong: Some(knobs.ping_pong.into()),
        ..GemmOptions::default()
    };
    s.gemm(options, |s| {
        s.for_items("t", tiles.grouped(8), |s, t| {
            let mut sum = s.dot(x.at(t), w.at(t));
            if after == After::Function {
                sum = sum * 2.0;
            }
            if let Some(bias) = vector {
                sum = sum + s.load(bias);
            }
            if let Some(z) = input {
                sum = sum + s.load(z.at(t));
            }
            if after == After::Accumulated {
                s.store_add(y.at(t), sum.clone());
            } else {
                s.store(y.at(t), sum.clone());
            }
            if let Some(wide) = wide {
                s.store(wide.at(t), sum);
            }
        });
    });
    s.finish()
}

fn built(knobs: Knobs, after: After) -> Result<Pipeline, Diagnostics> {
    let variant = Variant::new(1).layout(knobs.layout);
    let kernel = lower(&program(knobs, after), &variant).and_then(verify::kernel);
    kernel.and_then(|kernel| sm90::build(&kernel))
}

fn good(knobs: Knobs, after: After) -> Pipeline {
    built(knobs, after).unwrap_or_else(|found| panic!("{knobs:?} {after:?}: {found}"))
}

fn accepted(knobs: Knobs, after: After) {
    let checked = verify::pipeline(good(knobs, after));
    checked.unwrap_or_else(|found| panic!("{knobs:?} {after:?}: {found}"));
}

#[test]
fn every_sort_of_tile_is_accepted() {
    let sorts = [
        ((208, 128), false, &[1, 2, 3, 4][..]),
        ((176, 256), false, &[1]),
        ((104, 256), false, &[1, 2]),
        ((80, 128), false, &[1, 2, 3, 4, 8]),
        ((8, 128), false, &[1]),
        ((144, 128), true, &[1, 2]),
        ((200, 64), true, &[1, 2]),
        ((72, 192), true, &[1, 3]),
        ((16, 64), true, &[1, 2]),
        ((32, 64), true, &[3, 4]),
        ((200, 256), false, &[1]),
    ];
    // The sample has each tile once, split as is its turn.
    let each = sorts.into_iter().enumerate();
    let each = each.flat_map(|(at, (tile, ping_pong, splits))| {
        let some = splits.iter().enumerate();
        let some = some.filter(move |(nth, _)| wide() || *nth == at % splits.len());
        some.map(move |(_, split)| knobs(tile, ping_pong, *split))
    });
    for (at, knobs) in each.enumerate() {
        for layout in in_turn(Layout::ALL, at) {
            accepted(Knobs { layout, ..knobs }, After::Nothing);
        }
    }
}

#[test]
fn what_comes_after_the_product_is_by_subtiles() {
    let all = [
        After::Function,
        After::Vector,
        After::Tile,
        After::Accumulated,
    ];
    for (at, after) in all.into_iter().enumerate() {
        for split in in_turn([1, 2, 3], at) {
            let tiles = [(208, 128), (80, 256), (24, 128)];
            for tile in in_turn(tiles, at + split as usize) {
                accepted(knobs(tile, false, split), after);
            }
        }
    }
    for split in in_turn([1, 2, 3], 1) {
        accepted(knobs((96, 128), true, split), After::Vector);
    }
    for split in in_turn([1, 2, 3], 2) {
        accepted(knobs((72, 64), true, split), After::Accumulated);
    }
}

#[test]
fn tiles_beside_each_other_load_together() {
    for (tile, ping_pong) in [((208, 128), false), ((80, 128), false), ((48, 64), true)] {
        for cluster in [(2, 1), (1, 2)] {
            let knobs = Knobs {
                cluster,
                ..knobs(tile, ping_pong, 1)
            };
            accepted(knobs, After::Nothing);
        }
    }
}

/// Tiles of kernels that communicate: of shards, with signals, and with sums of stored tiles.
#[test]
fn kernels_that_communicate_have_such_tiles() {
    for (at, program) in library::all().into_iter().enumerate() {
        for tile in in_turn([(208, 128), (48, 128)], at) {
            let variant = Variant::new(4).set("tiles", tile);
            let kernel = lower(&program, &variant).and_then(verify::kernel);
            let built = kernel.and_then(|kernel| sm90::build(&kernel));
            let checked = built.and_then(verify::pipeline);
            checked.unwrap_or_else(|found| panic!("{} {tile:?}: {found}", program.name));
        }
    }
}

/// The first operand's tile is smaller than a subtile of a term: terms lie where the second operand's would be.
#[test]
fn terms_of_a_sum_lie_where_they_have_room() {
    let scaled = Variant::new(4).dtype(E4M3);
    let library = library::all().into_iter();
    let sums = library.filter(|program| ["gemm_rs", "gemm_ar"].contains(&&*program.name));
    let sums = sums.map(|program| (program, scaled.clone()));
    let cases: Vec<_> = sums.chain([(one_shot(), Variant::new(4))]).collect();
    assert_eq!(cases.len(), 3);
    for (program, variant) in cases {
        let kernel = lower(&program, &variant.set("tiles", (80, 256))).and_then(verify::kernel);
        let built = kernel.and_then(|kernel| sm90::build(&kernel));
        let built = built.unwrap_or_else(|found| panic!("{}: {found}", program.name));
        assert_eq!(built.tiling().input_places(), [0, 1], "{}", program.name);
        let checked = verify::pipeline(built);
        checked.unwrap_or_else(|found| panic!("{}: {found}", program.name));
    }
}

fn any_knobs() -> impl Strategy<Value = Knobs> {
    let rows = (1u32..32).prop_map(|atoms| atoms * 8);
    let columns = (1u32..=4).prop_map(|blocks| blocks * 64);
    // CTAs of a cluster load together, or share steps.
    let split = (1u32..5).prop_map(|split| ((1, 1), split));
    let clusters = prop_oneof![split, Just(((2, 1), 1)), Just(((1, 2), 1))];
    let layouts = prop::sample::select(Layout::ALL.to_vec());
    (rows, columns, any::<bool>(), clusters, layouts)
        .prop_filter("not swapped", |(rows, ..)| rows % 64 != 0)
        .prop_map(
            |(rows, columns, ping_pong, (cluster, split), layout)| Knobs {
                tile: (rows, columns),
                ping_pong,
                cluster,
                split,
                layout,
            },
        )
}

fn any_after() -> impl Strategy<Value = After> {
    prop_oneof![
        Just(After::Nothing),
        Just(After::Function),
        Just(After::Vector),
        Just(After::Tile),
        Just(After::Accumulated)
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: if wide() { 150 } else { 25 }, failure_persistence: None, ..ProptestConfig::default() })]

    /// What is not refused is right: every element of every output once, from all of K, of its own rows and columns.
    #[test]
    fn what_has_a_pipeline_is_accepted(knobs in any_knobs(), after in any_after()) {
        let Ok(pipeline) = built(knobs, after) else {
            return Ok(());
        };
        let tiling = pipeline.tiling();
        let (tile, Subtile { rows, columns }) = (tiling.tile(), tiling.subtile());
        // Where warpgroups stagger the epilogues of such a tile, a subtile is of one warpgroup's half of the columns.
        let halved = pipeline.cta.staggered() && tiling.swap_ab();
        let wide = if halved { tile.columns / 2 } else { tile.columns };
        prop_assert_eq!((columns, rows % 8, tile.rows % rows), (wide, 0, 0));
        let plain = after == After::Nothing && knobs.split == 1 && knobs.cluster == (1, 1);
        let most = if plain { 200 } else { 176 };
        prop_assert!(tiling.accumulators() <= most);
        let checked = verify::pipeline(pipeline);
        prop_assert!(checked.is_ok(), "{}", checked.expect_err("refused"));
    }

    /// Whichever side is on the instruction's M side, the warpgroups have all of the tile between them.
    #[test]
    fn all_of_a_tile_is_multiplied(rows in (1u32..=32).prop_map(|atoms| atoms * 8), columns in (1u32..=16).prop_map(|few| few * 16), ping_pong in any::<bool>()) {
        let (tile, mode) = (Tile { rows, columns, k: 64 }, if ping_pong { Mode::PingPong } else { Mode::Cooperative });
        let wgmma = Wgmma {
            tile,
            mode,
            products: 1,
        };
        prop_assert_eq!(wgmma.swap_ab(), rows % 64 != 0);
        if wgmma.refused().is_none() && (ping_pong || wgmma.sides().0.is_multiple_of(128)) {
            let groups = if ping_pong { 1 } else { 2 };
            prop_assert_eq!(wgmma.accumulators() * 128 * groups, rows * columns);
        }
    }
}

/// What the verifier says after `edit` has changed the first nodes that it can.
fn verdict(knobs: Knobs, after: After, edit: impl Fn(&mut Node) -> bool) -> String {
    let (mut pipeline, mut done) = (good(knobs, after), false);
    pipeline.lists(&mut |list| {
        for node in list {
            done = done || edit(node);
        }
    });
    assert!(done, "the edit found nothing to change");
    let found = verify::pipeline(pipeline).expect_err("refused");
    found.first().text(&|_| String::new())
}

const TALL: Knobs = knobs((208, 128), false, 1);

#[test]
fn a_slice_that_is_stored_elsewhere() {
    let found = verdict(TALL, After::Nothing, |node| {
        let Node::Store { at, .. } = node else {
            return false;
        };
        at.column = Expr::var("t.column") * Expr::symbol(tile(TileNumber::Columns), 128);
        true
    });
    insta::assert_snapshot!(found, @"
    error[coverage]: store of block 0 on rank 0 stores subtile 0 to rows 0..104, columns 0..64 of y (shard or slot 0) on rank 0 for tile (0, 0)
      = the subtile is of another place
    ");
    let found = verdict(TALL, After::Nothing, |node| {
        let Node::Store { slice, .. } = node else {
            return false;
        };
        *slice = 0.into();
        true
    });
    insta::assert_snapshot!(found, @"
    error[coverage]: store of block 0 on rank 0 stores subtile 0 to rows 0..104, columns 64..128 of y (shard or slot 0) on rank 0 for tile (0, 0)
      = the subtile is of another place
    ");
}

#[test]
fn a_subtile_of_other_rows() {
    let found = verdict(TALL, After::Nothing, |node| {
        let Node::Store { at, .. } = node else {
            return false;
        };
        at.row = Expr::var("t.row") * Expr::symbol(tile(TileNumber::Rows), 208);
        true
    });
    insta::assert_snapshot!(found, @"
    error[coverage]: store of block 0 on rank 0 stores subtile 1 to rows 0..104, columns 0..64 of y (shard or slot 0) on rank 0 for tile (0, 0)
      = the subtile is of another place
    ");
}

/// Changes how many slices move.
fn first_slice_alone(node: &mut Node) -> bool {
    match node {
        Node::For { var, to, .. } if var == "slice" => {
            *to = 1.into();
            true
        }
        _ => false,
    }
}

#[test]
fn a_slice_that_is_not_stored() {
    insta::assert_snapshot!(verdict(TALL, After::Nothing, first_slice_alone), @"error[coverage]: 67248 of 127024 elements of y on rank 0 are written");
}

#[test]
fn a_slice_of_a_stored_tile_that_does_not_come() {
    // The loading warp comes first.
    insta::assert_snapshot!(verdict(TALL, After::Tile, first_slice_alone), @"
    error[progress]: load of block 0 on rank 0 waits for a stage to be empty for tile (0, 0), for ever
      = load of block 0 on rank 0 waits for a stage to be empty for tile (0, 0)
      = store of block 0 on rank 0 waits for a subtile to be full for tile (0, 0)
      = multiply of block 0 on rank 0 waits for a stage to be full for tile (0, 0)
      = multiply of block 0 on rank 0 waits for a stage to be full for tile (0, 0)
      = load of block 1 on rank 0 waits for a stage to be empty for tile (1, 0)
    ");
}

#[test]
fn a_stored_tile_of_another_place() {
    let moved = |change: fn(Expr, Expr) -> (Expr, Expr)| {
        verdict(TALL, After::Tile, |node| {
            let Node::Load { slice, at, .. } = node else {
                return false;
            };
            if *slice == Expr::from(0) {
                return false;
            }
            (at.row, at.column) = change(at.row.clone(), at.column.clone());
            true
        })
    };
    insta::assert_snapshot!(moved(|row, column| (row + 8, column)), @"
    error[coverage]: multiply of block 0 on rank 0 applies y_value to subtile 0 for tile (0, 0)
      = `z` is not there for these rows and columns
    ");
    insta::assert_snapshot!(moved(|row, column| (row, column + 32)), @"
    error[coverage]: multiply of block 0 on rank 0 applies y_value to subtile 0 for tile (0, 0)
      = `z` is not there for these rows and columns
    ");
    insta::assert_snapshot!(moved(|row, column| (row, column + Expr::var("slice") * 8)), @"
    error[coverage]: multiply of block 0 on rank 0 reads x of stage 1 for tile (0, 0)
      = a stage does not hold one stored subtile
    ");
}

#[test]
fn a_vector_of_another_subtile() {
    let found = verdict(TALL, After::Vector, |node| {
        let Node::Fragment(FragmentOp::Broadcast {
            along:
                Some(Along {
                    side: Side::Columns,
                    first: column,
                    ..
                }),
            ..
        }) = node
        else {
            return false;
        };
        *column = column.clone() + Expr::var("part") * 64;
        true
    });
    insta::assert_snapshot!(found, @"
    error[coverage]: multiply of block 0 on rank 0 applies y_value to subtile 1 for tile (0, 0)
      = `bias` is not there for these rows and columns
    ");
}

#[test]
fn rows_that_exist_and_do_not_come() {
    let short = |name: &'static str| {
        verdict(TALL, After::Nothing, move |node| match node {
            Node::Let { name: known, value } if known == name => {
                *value = 32.into();
                true
            }
            _ => false,
        })
    };
    insta::assert_snapshot!(short("x_rows"), @"
    error[coverage]: store of block 0 on rank 0 stores subtile 0 to rows 0..104, columns 0..64 of y (shard or slot 0) on rank 0 for tile (0, 0)
      = some of what exists of its operands was not loaded
    ");
    insta::assert_snapshot!(short("w_rows"), @"
    error[coverage]: store of block 0 on rank 0 stores subtile 0 to rows 0..104, columns 0..64 of y (shard or slot 0) on rank 0 for tile (0, 0)
      = some of what exists of its operands was not loaded
    ");
}

#[test]
fn no_step_can_be_left_out() {
    // The end of a kernel completes its stores, too.
    for knobs in [TALL, knobs((80, 128), false, 2), knobs((16, 64), true, 2)] {
        assert_eq!(unnoticed(|| good(knobs, After::Nothing)), "AwaitStores");
    }
}

#[test]
fn what_cannot_be_multiplied_is_refused_with_what_can() {
    let refused = |tile, ping_pong| {
        let found = built(knobs(tile, ping_pong, 1), After::Nothing).expect_err("refused");
        found.first().text(&|_| String::new())
    };
    insta::assert_snapshot!(refused((100, 128), false), @"
    error[resources]: tiles of 100x128
      help: sm90 multiplies 64 (in ping-pong), 128 or 256 rows by a multiple of 16 columns, and any other multiple of 8 rows by 128 or 256 columns, or in ping-pong by a multiple of 64; up to 256 of each
    ");
    insta::assert_snapshot!(refused((208, 192), false), @"
    error[resources]: tiles of 208x192
      help: sm90 multiplies 64 (in ping-pong), 128 or 256 rows by a multiple of 16 columns, and any other multiple of 8 rows by 128 or 256 columns, or in ping-pong by a multiple of 64; up to 256 of each
    ");
    insta::assert_snapshot!(refused((16, 32), false), @"
    error[resources]: tiles of 16x32
      help: sm90 multiplies 64 (in ping-pong), 128 or 256 rows by a multiple of 16 columns, and any other multiple of 8 rows by 128 or 256 columns, or in ping-pong by a multiple of 64; up to 256 of each
    ");
    insta::assert_snapshot!(refused((208, 256), false), @"
    error[resources]: tiles of 208x256
      help: rows that are no multiple of 64, by 64 columns in ping-pong or 128 cooperative up to 248 rows; by 128 in ping-pong up to 160, 256 cooperative up to 160 (152 beside a sum over ranks that is not just added, 176 by CTAs alone, 200 of their plain products), 192 and 256 in ping-pong up to 104 and 80
    ");
    insta::assert_snapshot!(refused((264, 128), false), @"
    error[resources]: tiles of 264x128
      help: sm90 multiplies 64 (in ping-pong), 128 or 256 rows by a multiple of 16 columns, and any other multiple of 8 rows by 128 or 256 columns, or in ping-pong by a multiple of 64; up to 256 of each
    ");
    let shared = built(knobs((8, 128), false, 2), After::Tile).expect_err("refused");
    insta::assert_snapshot!(shared.first().text(&|_| String::new()), @"
    error[resources]: 2 CTAs that share a tile of 1 subtiles of 8 rows
      help: a subtile each: `split` is at most 1
    ");
    let shared = built(knobs((8, 256), false, 2), After::Nothing).expect_err("refused");
    insta::assert_snapshot!(shared.first().text(&|_| String::new()), @"
    error[resources]: 2 CTAs that share a tile of 1 subtiles of 8 rows
      help: a subtile each: `split` is at most 1
    ");
    // The plan says the same, before there is a pipeline.
    let kernel = lower(&program(TALL, After::Nothing), &Variant::new(1)).and_then(verify::kernel);
    assert!(kernel.is_ok());
    let kernel = lower(
        &program(knobs((208, 192), false, 1), After::Nothing),
        &Variant::new(1),
    );
    let kernel = kernel.and_then(verify::kernel).expect("a kernel");
    let plan = Plan::new(
        &kernel,
        &Shape::new(208, 192, 512),
        &counterflow_codegen::machine::Machine::h200(),
    );
    let found = plan.expect_err("refused");
    insta::assert_snapshot!(found.first().text(&|_| String::new()), @"
    error[resources]: tiles of 208x192
      help: sm90 multiplies 64 (in ping-pong), 128 or 256 rows by a multiple of 16 columns, and any other multiple of 8 rows by 128 or 256 columns, or in ping-pong by a multiple of 64; up to 256 of each
    ");
}

/// A subtile of f32 has twice as many slices of half as many columns.
#[test]
fn slices_are_lines_of_128_bytes() {
    let pipeline = good(TALL, After::Accumulated);
    let map = &pipeline
        .maps
        .iter()
        .find(|map| map.name == "y")
        .expect("a map");
    assert_eq!(
        (map.box_rows, map.box_columns),
        (pipeline.tiling().subtile().rows, 32)
    );
    assert_eq!(pipeline.tiling().slice_columns(Dtype::Bf16.bytes()), 64);
}

/// Two of a tall tile, as many for each CTA that shares its steps, fewer rows where registers or room want it.
#[test]
fn subtiles_are_as_tall_as_they_may_be() {
    let rows = |tile, ping_pong, split, after| {
        good(knobs(tile, ping_pong, split), after)
            .tiling()
            .subtile()
            .rows
    };
    let plain = |tile, split| rows(tile, false, split, After::Nothing);
    assert_eq!(
        [1, 2, 4].map(|split| plain((208, 128), split)),
        [104, 104, 16]
    );
    assert_eq!(
        [1, 2, 3].map(|split| plain((144, 128), split)),
        [72, 72, 48]
    );
    assert_eq!([1, 2, 3].map(|split| plain((80, 128), split)), [40, 40, 16]);
    assert_eq!([1, 2].map(|split| plain((16, 128), split)), [16, 8]);
    // 13 atoms are no two subtiles.
    assert_eq!(plain((104, 128), 1), 104);
    // Two blocks of columns: a thread has twice as many of each row.
    assert_eq!(plain((144, 256), 1), 48);
    // Of 88 rows, two subtiles leave no room for a third stage.
    assert_eq!(plain((176, 256), 1), 16);
    // What is stored as it is needs no registers of its own.
    assert_eq!(plain((200, 256), 1), 40);
    let after = [After::Nothing, After::Function];
    assert_eq!(
        after.map(|after| rows((160, 256), false, 1, after)),
        [40, 32]
    );
    // f32, and a stored tile of it: a stage has room for one subtile.
    assert_eq!(rows((208, 128), false, 1, After::Accumulated), 16);
    assert_eq!(rows((96, 128), false, 1, After::Tile), 32);
    assert_eq!(rows((96, 128), true, 1, After::Nothing), 48);
}
