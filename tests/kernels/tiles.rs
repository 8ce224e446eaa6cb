//! The knobs of the GEMM itself, compiled: tiles of every width, cooperative and in ping-pong, pass the SASS checks.

use crate::halves;
use crate::sass::all_pass;
use counterflow::codegen::builder::{GemmOptions, ScheduleBuilder, Tune};
use counterflow::codegen::lower::lower;
use counterflow::codegen::program::Setting;
use counterflow::codegen::sm90::cta::{Mode, Wgmma};
use counterflow::codegen::warp::Tile;
use counterflow::{Dtype, Layout, Program, Variant, schedules};

/// A tile and whether it is multiplied in ping-pong.
pub type Kind = ((u32, u32), bool);

/// Rows that are no multiple of 64: the columns are on the instruction's M side.
const SWAPPED: [Kind; 9] = [
    ((200, 256), false),
    ((208, 128), false),
    ((176, 256), false),
    ((104, 128), false),
    ((80, 128), false),
    ((144, 128), true),
    ((200, 64), true),
    ((16, 64), true),
    ((96, 192), true),
];

pub fn variant((tile, ping_pong): Kind) -> Variant {
    Variant::new(1)
        .set("tiles", tile)
        .set("gemm.ping_pong", ping_pong)
}

fn clustered(kind: Kind, cluster: (u32, u32)) -> (Program, Variant) {
    (
        schedules::gemm(),
        variant(kind).set("gemm.cluster", cluster),
    )
}

fn gemm(kinds: &[Kind]) -> Vec<(Program, Variant)> {
    let case = |kind: &Kind| (schedules::gemm(), variant(*kind));
    kinds.iter().map(case).collect()
}

#[test]
#[ignore = "a minute of compiling: `.ci/run` runs it"]
fn one_tile_of_each_sort_passes_the_sass_checks() {
    all_pass(&gemm(&[
        ((128, 224), false),
        ((128, 144), false),
        ((128, 96), false),
        ((256, 128), false),
        ((256, 144), false),
        ((256, 192), false),
        ((128, 160), true),
        ((64, 64), true),
        ((8, 64), true),
    ]));
    all_pass(&gemm(&SWAPPED));
    all_pass(&[
        clustered(((128, 256), false), (2, 1)),
        clustered(((128, 144), true), (1, 2)),
    ]);
    let laid_out = |kind, layout| (schedules::gemm(), variant(kind).layout(layout));
    all_pass(&[
        laid_out(((128, 160), true), Layout::Nn),
        laid_out(((256, 144), false), Layout::Tn),
        laid_out(((8, 64), true), Layout::Tn),
        laid_out(((208, 128), false), Layout::Nn),
        laid_out(((200, 128), false), Layout::Tn),
        laid_out(((80, 256), false), Layout::Tn),
        laid_out(((144, 128), true), Layout::Nn),
        laid_out(((96, 192), true), Layout::Nn),
    ]);
    let each = |kind, cluster, layout| {
        let (program, variant) = clustered(kind, cluster);
        (program, variant.layout(layout))
    };
    all_pass(&[
        each(((128, 144), false), (2, 1), Layout::Nn),
        each(((128, 128), true), (2, 1), Layout::Nn),
        each(((128, 192), false), (2, 1), Layout::Tn),
        each(((256, 144), false), (1, 2), Layout::Tn),
        each(((8, 64), true), (1, 2), Layout::Tn),
    ]);
}

#[test]
#[ignore = "minutes of compiling: `.ci/run` runs it"]
fn every_tile_passes_the_sass_checks() {
    let mut kinds = Vec::new();
    for columns in (16..=256).step_by(16) {
        kinds.push(((64, columns), true));
        kinds.push(((128, columns), false));
        if columns <= 160 {
            kinds.push(((128, columns), true));
        }
        if columns <= 176 {
            kinds.push(((256, columns), false));
        }
    }
    for rows in (8..256).step_by(8).filter(|rows| rows % 64 != 0) {
        kinds.push(((rows, 64), true));
        kinds.push(((rows, 128), false));
        let more = [
            ((rows, 128), true, 160),
            ((rows, 192), true, 104),
            ((rows, 256), true, 80),
            ((rows, 256), false, 200),
        ];
        let fits = more.into_iter().filter(|(.., most)| rows <= *most);
        kinds.extend(fits.map(|(tile, ping_pong, _)| (tile, ping_pong)));
    }
    let mut cases = gemm(&kinds);
    // The types differ in few instructions: of swapped tiles, every third height will do.
    kinds.retain(|((rows, _), _)| rows % 64 == 0 || rows % 24 == 0);
    let halves = gemm(&kinds).into_iter();
    cases.extend(halves.map(|(program, variant)| (program, variant.dtype(Dtype::F16))));
    // The most accumulators that there are.
    for tile in [(200, 256), (184, 256), (256, 192)] {
        let (program, variant) = (schedules::gemm(), variant((tile, false)));
        cases.push((program.clone(), variant.clone().dtype(Dtype::F16)));
        for layout in [Layout::Nn, Layout::Tn] {
            cases.push((program.clone(), variant.clone().layout(layout)));
        }
    }
    all_pass(&cases);
}

#[test]
#[ignore = "minutes of compiling: `.ci/run` runs it"]
fn every_tile_that_the_library_offers_passes_the_sass_checks() {
    let mut cases = Vec::new();
    for program in schedules::ALL.map(|schedule| schedule()) {
        let ping_pong = program
            .tunables
            .iter()
            .any(|choice| choice.name == "gemm.ping_pong");
        for dtype in [Dtype::Bf16, Dtype::F16] {
            let variant = Variant::new(4).dtype(dtype);
            let tiles = of_all_tiles(&program, &variant);
            cases.extend(tiles.into_iter().map(|variant| (program.clone(), variant)));
            for tile in [(128, 160), (128, 144), (128, 128)]
                .into_iter()
                .filter(|_| ping_pong)
            {
                // Half of 144 columns are no multiple of 16.
                let tile = halves::tile(&program, tile);
                if !tile.1.is_multiple_of(16) {
                    continue;
                }
                let variant = variant
                    .clone()
                    .set("tiles", tile)
                    .set("gemm.ping_pong", true);
                cases.push((program.clone(), variant));
            }
        }
    }
    all_pass(&cases);
}

/// One variant for each option of the tiles, and where several loops have a choice, for each pair of options. A schedule
/// without a product may have none.
fn of_all_tiles(program: &Program, variant: &Variant) -> Vec<Variant> {
    let choices = program.tunables.iter();
    let tiles: Vec<_> = choices
        .filter(|choice| choice.name.ends_with("tiles"))
        .collect();
    let kernel = lower(program, variant).expect("the schedule lowers");
    let multiplies = kernel.gemm().is_some();
    assert!(
        !multiplies || !tiles.is_empty(),
        "tiles of a product are a choice"
    );
    let mut names = program.tunables.iter().map(|choice| &*choice.name);
    let may_ping_pong = names.any(|name| name == "gemm.ping_pong");
    tiles
        .iter()
        .fold(vec![variant.clone()], |variants, choice| {
            let options = |variant: Variant| {
                let with = move |tile: &Setting| {
                    let variant = variant.clone().set(&choice.name, *tile);
                    if may_ping_pong && only_ping_pong(*tile) {
                        variant.set("gemm.ping_pong", true)
                    } else {
                        variant
                    }
                };
                choice.options.iter().map(with)
            };
            variants.into_iter().flat_map(options).collect()
        })
}

/// Whether two warpgroups cannot share such a tile.
fn only_ping_pong(tile: Setting) -> bool {
    let Setting::Pair(rows, columns) = tile else {
        panic!("a tile is a pair");
    };
    let k = 64;
    let tile = Tile { rows, columns, k };
    let mode = Mode::Cooperative;
    Wgmma {
        tile,
        mode,
        products: 1,
    }
    .refused()
    .is_some()
}

/// Subtiles of f32, which TMA adds to what is there: one reduction where a tile would be stored.
#[test]
#[ignore = "a minute of compiling: `.ci/run` runs it"]
fn what_a_launch_adds_to_passes_the_sass_checks() {
    let kinds = [
        ((128, 256), false),
        ((128, 192), false),
        ((256, 128), false),
        ((128, 160), true),
        ((128, 144), true),
        ((128, 128), true),
    ];
    let wgrad = kinds.map(|kind| (schedules::wgrad(), variant(kind).layout(Layout::Tn)));
    all_pass(&wgrad);
}

/// Two products an item: of every sort of tile, with everything that a tile may have beside them.
#[test]
#[ignore = "a minute of compiling: `.ci/run` runs it"]
fn two_products_pass_the_sass_checks() {
    let plain = [
        ((128, 128), false),
        ((128, 112), false),
        ((128, 96), false),
        ((128, 64), false),
        ((256, 80), false),
        ((256, 64), false),
        ((64, 128), true),
        ((64, 64), true),
        ((128, 80), true),
        ((128, 64), true),
        ((80, 128), false),
        ((104, 128), false),
        ((104, 64), true),
        ((72, 128), true),
        ((16, 64), true),
    ];
    let swiglu = |kind| (schedules::swiglu(), variant(kind));
    let mut cases: Vec<_> = plain.into_iter().map(swiglu).collect();
    cases.extend(plain.into_iter().take(2).map(|kind| {
        let (program, variant) = swiglu(kind);
        (program, variant.dtype(Dtype::F16))
    }));
    for (kind, cluster) in [
        (((128, 128), false), (2, 1)),
        (((128, 96), false), (1, 2)),
        (((256, 80), false), (2, 1)),
        (((128, 80), true), (2, 1)),
        (((80, 128), false), (1, 2)),
    ] {
        let (program, variant) = swiglu(kind);
        cases.push((program, variant.set("gemm.cluster", cluster)));
    }
    for (kind, layout) in [
        (((128, 128), false), Layout::Nn),
        (((128, 96), false), Layout::Nn),
        (((128, 128), false), Layout::Tn),
        (((80, 128), false), Layout::Tn),
    ] {
        let (program, variant) = swiglu(kind);
        cases.push((program, variant.layout(layout)));
    }
    for kind in [
        plain[0],
        plain[1],
        plain[2],
        ((128, 80), true),
        ((128, 64), true),
    ] {
        let of = Variant::new(4).set("tiles", kind.0);
        let of = of.set("gemm.ping_pong", kind.1);
        cases.push((schedules::ag_swiglu(), of.clone()));
        cases.push((schedules::ag_swiglu(), of.layout(Layout::Nn)));
    }
    all_pass(&cases);
}

fn split(kind: Kind, split: u32) -> (Program, Variant) {
    (schedules::gemm(), variant(kind).set("gemm.split", split))
}

#[test]
#[ignore = "a minute of compiling: `.ci/run` runs it"]
fn split_k_passes_the_sass_checks() {
    let kinds = [
        ((32, 64), true),
        ((64, 64), true),
        ((64, 128), true),
        ((128, 64), false),
        ((128, 128), false),
    ];
    let all = kinds.map(|kind| [2, 3, 4].map(|by| split(kind, by)));
    all_pass(all.as_flattened());
    let laid_out = |kind, by, layout| {
        let (program, variant) = split(kind, by);
        (program, variant.layout(layout))
    };
    // Two blocks of rows a warpgroup, rows that a warp does not have, subtiles that do not divide evenly among CTAs.
    all_pass(&[
        split(((256, 64), false), 2),
        split(((128, 96), true), 2),
        split(((128, 96), false), 2),
        split(((128, 96), false), 3),
        split(((32, 64), true), 4),
        split(((16, 64), true), 2),
        split(((208, 128), false), 2),
        split(((208, 128), false), 4),
        split(((176, 128), false), 3),
        split(((144, 256), false), 2),
        split(((80, 128), false), 2),
        split(((96, 128), true), 2),
        split(((40, 64), true), 2),
        split(((128, 144), false), 2),
        split(((128, 160), false), 2),
        split(((128, 160), false), 4),
        split(((128, 192), false), 2),
        split(((128, 192), false), 4),
        split(((128, 224), false), 2),
        split(((128, 256), false), 2),
        laid_out(((64, 64), true), 3, Layout::Nn),
        laid_out(((128, 160), false), 2, Layout::Nn),
        laid_out(((128, 256), false), 2, Layout::Nn),
        laid_out(((128, 128), false), 2, Layout::Nn),
        laid_out(((208, 128), false), 2, Layout::Nn),
        laid_out(((80, 128), false), 4, Layout::Tn),
        laid_out(((64, 128), true), 2, Layout::Tn),
        laid_out(((128, 64), false), 3, Layout::Tn),
    ]);
}

/// A vector, results of two types, and perhaps a stored tile beside the product: it keeps sums out of the stages.
fn linear(by: u32, tile: bool) -> Program {
    let mut s = ScheduleBuilder::new("linear");
    let [x, w] = ["x", "w"].map(|name| s.local(name, Dtype::Bf16));
    let z = tile.then(|| s.local("z", Dtype::Bf16));
    let bias = s.vector("bias", Dtype::F32);
    let (y, wide) = (s.out("y", Dtype::Bf16), s.out("wide", Dtype::F32));
    let tiles = s.tiles("tiles", y, (128, 128));
    let options = GemmOptions {
        split: Some(Tune::from(by)),
        ..GemmOptions::default()
    };
    s.gemm(options, |s| {
        s.for_items("t", tiles.grouped(8), |s, t| {
            let acc = s.dot(x.at(t), w.at(t));
            let mut sum = acc + s.load(bias);
            if let Some(z) = z {
                sum = sum + s.load(z.at(t));
            }
            s.store(y.at(t), sum.clone());
            s.store(wide.at(t), sum);
        });
    });
    s.finish()
}

#[test]
#[ignore = "a minute of compiling: `.ci/run` runs it"]
fn fused_epilogues_of_split_k_pass_the_sass_checks() {
    let all = [2, 3, 4].map(|by| [true, false].map(|tile| (linear(by, tile), Variant::new(1))));
    all_pass(all.as_flattened());
}
