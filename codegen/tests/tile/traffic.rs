//! The bytes that the model's times are made of, by hand.

use counterflow_codegen::builder::{GemmOptions, ScheduleBuilder};
use counterflow_codegen::dtype::Dtype::Bf16;
use counterflow_codegen::lower::lower;
use counterflow_codegen::machine::Machine;
use counterflow_codegen::plan::Plan;
use counterflow_codegen::shape::Shape;
use counterflow_codegen::variant::Variant;
use counterflow_timeline::model::{Traffic, traffic};

/// A product's choices: its tile, the rows of tiles in a group, and the CTAs that share a tile's K.
#[derive(Clone, Copy, Debug)]
struct Choices {
    tile: (u32, u32),
    grouped: u32,
    split: u32,
}

fn of([m, n, k]: [u32; 3], choices: Choices) -> Traffic {
    let mut s = ScheduleBuilder::new("gemm");
    let (x, w, y) = (s.local("x", Bf16), s.local("w", Bf16), s.out("y", Bf16));
    let tiles = s.tiles("tiles", y, choices.tile);
    let options = GemmOptions {
        split: Some(choices.split.into()),
        ..GemmOptions::default()
    };
    s.gemm(options, |s| {
        s.for_items("t", tiles.grouped(choices.grouped), |s, t| {
            let product = s.dot(x.at(t), w.at(t));
            s.store(y.at(t), product);
        });
    });
    let kernel = lower(&s.finish(), &Variant::new(1)).unwrap_or_else(|found| panic!("{found}"));
    let machine = Machine::h200();
    let plan = Plan::new(&kernel, &Shape::new(m, n, k), &machine);
    traffic(
        &kernel,
        &plan.unwrap_or_else(|found| panic!("{found}")),
        &machine,
    )
}

fn within(value: f64, expected: f64, part: f64, told: &str) {
    let ratio = value / expected;
    assert!(
        (ratio - 1.0).abs() <= part,
        "{told}: {value} is {ratio:.3} times {expected}"
    );
}

#[test]
fn sms_read_the_rows_and_columns_of_each_tile() {
    for (size, tile, split) in [
        ([8192, 8192, 8192], (128, 256), 1),
        ([4096, 4096, 4096], (128, 128), 1),
        ([512, 1280, 8192], (128, 80), 2),
    ] {
        let [m, n, k] = size;
        let choices = Choices {
            tile,
            grouped: 8,
            split,
        };
        let tiles = f64::from(m / tile.0 * (n / tile.1));
        let lines = f64::from(tile.0 + tile.1);
        let read = of(size, choices).through_l2;
        within(read, tiles * lines * 2.0 * f64::from(k), 1e-9, "through L2");
    }
}

#[test]
fn what_tiles_have_in_common_comes_from_memory_once() {
    // All tiles at a time: each operand once, also where two CTAs share a tile's K.
    for split in [1, 2] {
        let choices = Choices {
            tile: (128, 80),
            grouped: 8,
            split,
        };
        let read = of([512, 1280, 8192], choices).from_memory;
        within(read, 2.0 * 8192.0 * (512.0 + 1280.0), 1e-9, "one wave");
    }
    // Eight rows of tiles by sixteen columns and a part of one, in turn.
    let square = |grouped| {
        let choices = Choices {
            tile: (128, 256),
            grouped,
            split: 1,
        };
        of([8192, 8192, 8192], choices).from_memory
    };
    let waves = 64.0 * 32.0 / 128.0;
    within(
        square(8),
        waves * 2.0 * 8192.0 * (8.0 * 128.0 + 16.0 * 256.0),
        0.1,
        "groups of 8",
    );
    assert!(
        square(1) > 1.3 * square(8),
        "one row of tiles shares little"
    );
}
