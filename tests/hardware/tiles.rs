//! The knobs of the GEMM itself: every sort of tile on ragged shapes, against the f64 reference.

use crate::case::{Device, Fill, on};
use crate::gpus::{self, World};
use counterflow::jit::Probes;
use counterflow::{Dtype, Program, Shape, Variant, schedules};

type Knobs = &'static [(&'static str, u32)];

/// Tiles with what else is chosen.
const TILES: [((u32, u32), Knobs); 12] = [
    ((128, 224), &[]),
    ((128, 144), &[]),
    ((128, 16), &[]),
    ((256, 128), &[]),
    ((256, 176), &[]),
    ((128, 256), &[("gemm.stages", 4)]),
    ((128, 256), &[("gemm.panels", 1)]),
    ((128, 160), PING_PONG),
    ((128, 112), PING_PONG),
    ((64, 64), &[]),
    ((64, 32), &[]),
    ((64, 256), &[]),
];
const PING_PONG: Knobs = &[("gemm.ping_pong", 1)];
const SIZES: [(u32, u32); 5] = [(8, 8), (264, 72), (1032, 1000), (2056, 520), (256, 2048)];
const ROWS: [u32; 6] = [1, 7, 127, 129, 1000, 2049];

fn variant(dtype: Dtype, tile: (u32, u32), knobs: Knobs) -> Variant {
    let variant = Variant::new(1).dtype(dtype).set("tiles", tile);
    let set = |variant: Variant, (name, value): &(&str, u32)| variant.set(name, *value);
    knobs.iter().fold(variant, set)
}

fn agrees(world: &World, program: &Program, variant: &Variant, sizes: &[(u32, u32)], fill: Fill) {
    let device = Device::gpus(world, Probes::default(), 0);
    let mut worst = 0.0f64;
    for (n, k) in sizes {
        let shapes = ROWS.map(|m| Shape::new(m, *n, *k));
        let case = on(&device, program, variant, &shapes);
        let outcome = case.run(&device, fill);
        for launch in 0..shapes.len() {
            worst = worst.max(case.compare(&outcome, launch, fill));
        }
    }
    println!(
        "  {} {variant}: at most {:.0} % of what rounding allows",
        program.name,
        worst * 100.0
    );
}

#[test]
fn every_sort_of_tile_agrees_with_the_reference_on_ragged_shapes() {
    let Some(world) = gpus::world(1) else { return };
    for (tile, knobs) in TILES {
        let bf16 = variant(Dtype::Bf16, tile, knobs);
        agrees(&world, &schedules::gemm(), &bf16, &SIZES, Fill::Uniform(7));
    }
    for (tile, knobs) in [((128, 160), PING_PONG), ((128, 224), &[])] {
        let f16 = variant(Dtype::F16, tile, knobs);
        agrees(
            &world,
            &schedules::gemm(),
            &f16,
            &SIZES[2..3],
            Fill::Integers(7),
        );
    }
}
