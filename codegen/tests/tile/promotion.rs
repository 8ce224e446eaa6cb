//! What the model says of promoted sums: which tiles are fast, as measured.

use counterflow_codegen::builder::{GemmOptions, ScheduleBuilder};
use counterflow_codegen::dtype::Dtype::{Bf16, E4M3};
use counterflow_codegen::lower::lower;
use counterflow_codegen::machine::Machine;
use counterflow_codegen::plan::Plan;
use counterflow_codegen::shape::Shape;
use counterflow_codegen::variant::{Scales, Variant};
use counterflow_timeline::model::predict;

/// Seconds of a product of FP8 on a GPU at its power limit.
fn total(variant: &Variant, tile: (u32, u32), ping_pong: bool, [m, n, k]: [u32; 3]) -> f64 {
    let mut s = ScheduleBuilder::new("gemm");
    let (x, w) = (s.local("x", Bf16), s.local("w", Bf16));
    let y = s.out("y", Bf16);
    let tiles = s.tiles("tiles", y, tile);
    let options = GemmOptions {
        ping_pong: Some(ping_pong.into()),
        ..GemmOptions::default()
    };
    s.gemm(options, |s| {
        s.for_items("t", tiles.grouped(8), |s, t| {
            let product = s.dot(x.at(t), w.at(t));
            s.store(y.at(t), product);
        });
    });
    let kernel = lower(&s.finish(), variant).unwrap_or_else(|found| panic!("{found}"));
    let (shape, machine) = (Shape::new(m, n, k), Machine::h200().at_power_limit());
    let plan = Plan::new(&kernel, &shape, &machine).unwrap_or_else(|found| panic!("{found}"));
    let timeline = predict(&kernel, &plan, &machine);
    timeline.unwrap_or_else(|found| panic!("{found}")).total
}

fn scaled(scales: Scales) -> Variant {
    Variant::new(1).dtype(E4M3).scales(scales)
}

const LARGE: [[u32; 3]; 3] = [[8192, 8192, 8192], [4096, 4096, 7168], [2048, 14336, 8192]];

/// A kernel takes a step of zeros where there is nothing to multiply.
#[test]
fn no_depth_takes_a_step() {
    let plain = Variant::new(1).dtype(E4M3);
    for variant in [plain, scaled(Scales::Blocks1d2d)] {
        let of = |k| total(&variant, (128, 128), false, [4096, 4096, k]);
        let (none, least) = (of(0), of(16));
        assert!(
            (0.98 * least..=least).contains(&none),
            "{variant}: {none}, not {least}"
        );
    }
}

/// While a warpgroup promotes, the other one multiplies: not so in ping-pong.
#[test]
fn promotion_is_hidden_where_warpgroups_share_a_tile() {
    for shape in LARGE {
        for scales in [Scales::Blocks1d2d, Scales::Blocks1d1d] {
            let of = |ping_pong| total(&scaled(scales), (128, 128), ping_pong, shape);
            assert!(of(true) > 1.2 * of(false), "{shape:?} {scales:?}");
        }
        let plain = Variant::new(1).dtype(E4M3);
        let of = |ping_pong| total(&plain, (128, 128), ping_pong, shape);
        assert!(of(true) <= of(false), "{shape:?}: nothing to hide");
    }
}

/// Scales that come behind the product are in the cache for all tiles but the first: many tiles of a short K take no longer.
#[test]
fn scales_are_read_from_memory_once() {
    let shape = [4096, 32768, 512];
    let without = total(&Variant::new(1).dtype(E4M3), (128, 128), true, shape);
    for scales in [Scales::PerTensor, Scales::PerRow] {
        let with = total(&scaled(scales), (128, 128), true, shape);
        assert!(with < 1.02 * without, "{scales:?}: {with}, not {without}");
    }
}

/// H200s at their power limit, beside cuBLASLt, µs.
#[test]
fn products_take_what_was_measured() {
    let one = |tile, shape: [u32; 3], measured: f64| (tile, false, shape, measured);
    let large = [8192, 8192, 8192];
    let promoted = Variant::new(1).dtype(E4M3).promote(true);
    let kinds = [
        (
            promoted,
            vec![
                one((128, 256), large, 860.2),
                one((128, 256), [4096, 4096, 7168], 191.2),
            ],
        ),
        (
            scaled(Scales::Blocks1d2d),
            vec![
                one((128, 256), large, 907.2),
                one((256, 128), large, 906.2),
                one((128, 192), large, 890.4),
                one((128, 160), large, 995.4),
                one((128, 144), large, 1079.9),
                one((128, 128), large, 963.3),
                ((128, 128), true, large, 1393.4),
                one((128, 256), [4096, 4096, 7168], 201.9),
                one((128, 256), [4096, 7168, 16384], 798.8),
                one((128, 256), [4096, 7168, 2048], 103.2),
                one((128, 256), [2048, 8192, 2048], 61.5),
                one((256, 128), [4096, 32768, 512], 134.8),
            ],
        ),
        (
            scaled(Scales::Blocks1d1d),
            vec![
                one((256, 128), large, 1290.8),
                one((128, 128), large, 1354.8),
                ((128, 128), true, large, 1799.9),
                one((256, 128), [4096, 4096, 7168], 283.3),
            ],
        ),
    ];
    for (variant, all) in kinds {
        for (tile, ping_pong, shape, measured) in all {
            let ratio = total(&variant, tile, ping_pong, shape) * 1e6 / measured;
            println!("{variant} {tile:?} {shape:?}: {ratio:.3} of what was measured");
            assert!(
                (ratio - 1.0).abs() < 0.08,
                "{variant} {tile:?} {shape:?}: {ratio:.3}"
            );
        }
    }
}

/// Each thread reads a scale for every four columns: tall tiles have it for more rows. Where they leave more SMs without a tile, a
/// sweep found 128×160 to be faster.
#[test]
fn scales_of_columns_want_tall_tiles() {
    for shape in LARGE {
        let of = |tile| total(&scaled(Scales::Blocks1d1d), tile, false, shape);
        for other in [(128, 128), (128, 144), (128, 160)] {
            let swept = (shape, other) == ([2048, 14336, 8192], (128, 160));
            assert_eq!(of(other) < of((256, 128)), swept, "{shape:?} {other:?}");
        }
    }
}

/// A tile of 192 columns is multiplied in one piece, and one of 256 in two. Which is faster depends on how many tiles each SM has.
#[test]
fn tiles_across_blocks_fill_waves() {
    let of = |tile, shape| total(&scaled(Scales::Blocks1d2d), tile, false, shape);
    for (shape, measured) in [
        ([8192, 8192, 8192], 0.980),
        ([2048, 9216, 16384], 0.890),
        ([512, 12288, 12288], 0.748),
        ([4096, 4096, 7168], 1.120),
    ] {
        let ratio = of((128, 192), shape) / of((128, 256), shape);
        assert_eq!(ratio < 1.0, measured < 1.0, "{shape:?}: {ratio:.3}");
        assert!(
            (ratio / measured - 1.0).abs() < 0.05,
            "{shape:?}: {ratio:.3}"
        );
    }
}
