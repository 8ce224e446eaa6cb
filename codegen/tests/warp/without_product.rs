//! Tiles of which nothing is multiplied, and sums of stored tiles that are not just added to a product: what is refused, and
//! what the verifier says when one thing is changed.

use crate::fixtures::strangers;
use counterflow_codegen::builder::*;
use counterflow_codegen::diag::Rule;
use counterflow_codegen::dtype::Dtype::Bf16;
use counterflow_codegen::lower::lower;
use counterflow_codegen::program::Program;
use counterflow_codegen::sm90;
use counterflow_codegen::variant::{Layout, Variant};
use counterflow_codegen::verify;
use counterflow_codegen::warp::{FragmentOp, Node, Pipeline, ReadInto};
use counterflow_emitter as cuda;

fn built(program: &Program, variant: &Variant) -> Result<Pipeline, String> {
    let kernel = lower(program, variant).and_then(verify::kernel);
    let kernel = kernel.unwrap_or_else(|found| panic!("{}: {found}", program.name));
    sm90::build(&kernel).map_err(|found| found.first().text(&|_| String::new()))
}

fn pipeline(program: fn() -> Program) -> Pipeline {
    let variant = Variant::new(4).set("tiles", (128, 128));
    built(&program(), &variant).unwrap_or_else(|found| panic!("{found}"))
}

/// What the verifier says without the first node of a kind.
#[track_caller]
fn without(program: fn() -> Program, gone: impl Fn(&Node) -> bool) -> Rule {
    let mut pipeline = pipeline(program);
    let mut done = false;
    pipeline.lists(&mut |list| {
        if let Some(at) = list.iter().position(&gone).filter(|_| !done) {
            list.remove(at);
            done = true;
        }
    });
    assert!(done, "nothing to remove");
    let found = verify::pipeline(pipeline).expect_err("refused");
    found.first().rule
}

fn is(op: fn(&FragmentOp) -> bool) -> impl Fn(&Node) -> bool {
    move |node| matches!(node, Node::Fragment(it) if op(it))
}

#[test]
fn a_sum_lacks_a_term_or_begins_with_another() {
    for program in [strangers::sum_of_inputs, strangers::taken_apart] {
        let added = is(|op| {
            matches!(
                op,
                FragmentOp::ReadSubtile {
                    into: ReadInto::Sum { .. },
                    ..
                }
            )
        });
        assert_eq!(without(program, added), Rule::Coverage);
        let started = is(|op| matches!(op, FragmentOp::StartSum { .. }));
        assert_eq!(without(program, started), Rule::Coverage);
        let applied = is(|op| matches!(op, FragmentOp::Apply { .. }));
        assert_eq!(without(program, applied), Rule::Coverage);
    }
    let read = is(|op| {
        matches!(
            op,
            FragmentOp::ReadSubtile {
                into: ReadInto::Own { .. },
                ..
            }
        )
    });
    assert_eq!(without(strangers::sum_of_inputs, read), Rule::Coverage);
}

/// A subtile that is loaded from beside its tile.
#[test]
fn a_tile_of_another_place() {
    let mut pipeline = pipeline(strangers::gathered_and_rectified);
    let x = pipeline.maps.iter().position(|map| map.name == "x_tiles");
    let x = x.or_else(|| pipeline.maps.iter().position(|map| map.name == "x"));
    let x = x.expect("a map of x");
    let mut done = false;
    pipeline.lists(&mut |list| {
        for node in list {
            if let Node::Load { map, at, ring, .. } = node
                && usize::from(map.0) == x
                && ring.0 == 0
            {
                at.row = at.row.clone() + 8;
                done = true;
            }
        }
    });
    assert!(done, "nothing to change");
    let found = verify::pipeline(pipeline).expect_err("refused");
    assert_eq!(found.first().rule, Rule::Coverage, "{found}");
}

fn copied(tile: (u32, u32), options: GemmOptions) -> Program {
    let mut s = ScheduleBuilder::new("copied");
    let (x, y) = (s.local("x", Bf16), s.out("y", Bf16));
    let tiles = s.tiles("tiles", y, tile);
    s.gemm(options, |s| {
        s.for_items("t", tiles.all(), |s, t| {
            let value = s.load(x.at(t));
            s.store(y.at(t), value);
        });
    });
    s.finish()
}

#[test]
fn what_multiplies_nothing_is_refused_with_what_is_possible() {
    let refused = |tile, options| {
        let found = built(&copied(tile, options), &Variant::new(2));
        found.expect_err("refused")
    };
    let options = GemmOptions::default();
    assert!(built(&copied((128, 128), options.clone()), &Variant::new(2)).is_ok());
    insta::assert_snapshot!(refused((64, 128), options.clone()), @"
    error[resources]: tiles of 64x128 that multiply nothing
      help: tiles of 128 or 256 rows: both warpgroups share a tile where nothing is multiplied
    ");
    insta::assert_snapshot!(refused((128, 20), options.clone()), @"
    error[resources]: tiles of 128x20
      help: 128 or 256 shared rows by a multiple of 16 columns: at most 256, of 256 rows 160 (128 where tiles of ranks are added, 176 without clusters, 192 of plain products by CTAs alone)
    ");
    let cluster = GemmOptions {
        cluster: Some((2, 1).into()),
        ..options
    };
    insta::assert_snapshot!(refused((128, 128), cluster), @"
    error[resources]: clusters of CTAs that multiply nothing
      help: cluster = (1, 1) and split = 1: they share operands and steps
    ");
}

/// A product, and a loop beside it whose items are sums of so many stored tiles, of a vector where there are none.
fn beside_a_product(options: GemmOptions, tiles: usize) -> Program {
    let mut s = ScheduleBuilder::new("beside");
    let (x, w, b) = (s.local("x", Bf16), s.local("w", Bf16), s.vector("b", Bf16));
    let (y, z) = (s.out("y", Bf16), s.out("z", Bf16));
    let names = ["r0", "r1", "r2", "r3", "r4", "r5", "r6", "r7", "r8"];
    let stored = names.map(|name| s.local(name, Bf16));
    let items = s.tiles("tiles", y, (128, 128));
    s.gemm(options, |s| {
        s.for_items("t", items.all(), |s, t| {
            let product = s.dot(x.at(t), w.at(t));
            s.store(y.at(t), product);
        });
        s.for_items("t", items.all(), |s, t| {
            let first = s.load(b);
            let stored = stored[..tiles].iter();
            let sum = stored.fold(first.relu(), |sum, tile| sum + s.load(tile.at(t)));
            s.store(z.at(t), sum);
        });
    });
    s.finish()
}

#[test]
fn beside_a_product_it_goes_through_the_same_stages() {
    let plain = GemmOptions::default;
    let ping_pong = || GemmOptions {
        ping_pong: Some(true.into()),
        ..plain()
    };
    let cluster = || GemmOptions {
        cluster: Some((2, 1).into()),
        ..plain()
    };
    for (options, tiles) in [(plain(), 3), (ping_pong(), 0), (cluster(), 0)] {
        let program = beside_a_product(options, tiles);
        let pipeline = built(&program, &Variant::new(2)).unwrap_or_else(|found| panic!("{found}"));
        verify::pipeline(pipeline).unwrap_or_else(|found| panic!("{tiles}: {found}"));
    }
    let refused = |options, tiles| {
        let found = built(&beside_a_product(options, tiles), &Variant::new(2));
        found.expect_err("refused")
    };
    insta::assert_snapshot!(refused(plain(), 9), @"
    error[resources]: 9 stored tiles in one item
      help: at most 2: as many subtiles as a stage has room for
    ");
    insta::assert_snapshot!(refused(ping_pong(), 1), @"
    error[resources]: a stored tile where nothing is multiplied, with tiles in ping-pong
      help: no `ping_pong`: warpgroups that take tiles by turns cannot read a stored tile
    ");
    insta::assert_snapshot!(refused(cluster(), 1), @"
    error[resources]: a stored tile where nothing is multiplied, in a cluster
      help: `cluster = (1, 1)`: CTAs of a cluster cannot read a stored tile
    ");
}

/// In ping-pong the warpgroups take tiles by turns, and one without a product has no steps.
#[test]
fn between_products_in_ping_pong_it_is_refused() {
    let mut s = ScheduleBuilder::new("between");
    let (x, w, b) = (s.local("x", Bf16), s.local("w", Bf16), s.vector("b", Bf16));
    let (y, z, u) = (s.out("y", Bf16), s.out("z", Bf16), s.out("u", Bf16));
    let items = s.tiles("tiles", y, (128, 128));
    let options = GemmOptions {
        ping_pong: Some(true.into()),
        ..GemmOptions::default()
    };
    s.gemm(options, |s| {
        s.for_items("t", items.all(), |s, t| {
            let product = s.dot(x.at(t), w.at(t));
            s.store(y.at(t), product);
        });
        s.for_items("t", items.all(), |s, t| {
            let rectified = s.load(b).relu();
            s.store(z.at(t), rectified);
        });
        s.for_items("t", items.all(), |s, t| {
            let product = s.dot(x.at(t), w.at(t));
            s.store(u.at(t), product);
        });
    });
    let found = built(&s.finish(), &Variant::new(2)).expect_err("refused");
    insta::assert_snapshot!(found, @"
    error[resources]: a loop that multiplies nothing before one that does, with tiles in ping-pong
      help: such loops last, or cooperative tiles: of 128 or 256 rows, without `ping_pong`
    ");
}

/// Beside a product, too, tiles are read by rows.
#[test]
fn a_tile_that_has_its_columns_in_lines() {
    let mut s = ScheduleBuilder::new("by_columns");
    let (x, w) = (s.local("x", Bf16), s.local("w", Bf16));
    let (y, z) = (s.out("y", Bf16), s.out("z", Bf16));
    let tiles = s.tiles("tiles", y, (128, 128));
    let copied = s.tiles_like("copied", z, tiles);
    s.gemm(GemmOptions::default(), |s| {
        s.for_items("t", tiles.all(), |s, t| {
            let product = s.dot(x.at(t), w.at(t));
            s.store(y.at(t), product);
        });
        s.for_items("t", copied.all(), |s, t| {
            let read = s.load(x.at(t));
            s.store(z.at(t), read.relu());
        });
    });
    let program = s.finish();
    let variant = Variant::new(2);
    let pipeline = built(&program, &variant).unwrap_or_else(|found| panic!("{found}"));
    verify::pipeline(pipeline).unwrap_or_else(|found| panic!("{found}"));
    let refused = built(&program, &variant.layout(Layout::Tn));
    insta::assert_snapshot!(refused.expect_err("refused"), @"
    error[resources]: tiles of `x`, which layout tn has by columns
      help: a layout in which the operand that is stored has rows: nt, or nn for the first one
    ");
}

/// What people read: a kernel without a product has no word of one.
#[test]
fn the_text_of_a_kernel_without_a_product() {
    let checked = verify::pipeline(pipeline(strangers::sum_of_inputs));
    let text = cuda::emit(&checked.expect("warps")).text;
    for word in ["wgmma", "TILE_K", "steps", "acc["] {
        assert!(!text.contains(word), "{word} in\n{text}");
    }
}
