//! The knobs of the GEMM itself: every sort of tile on ragged shapes, against the f64 reference.

use crate::case::{Device, Fill, in_parallel, on};
use crate::gpus;
use counterflow::codegen::program::Setting::{self, One, Pair};
use counterflow::jit::Probes;
use counterflow::{Dtype, Shape, Variant, schedules};

type Knobs = &'static [(&'static str, Setting)];

/// Tiles with what else is chosen.
const TILES: [((u32, u32), Knobs); 16] = [
    ((128, 224), &[]),
    ((128, 144), &[]),
    ((128, 16), &[]),
    ((256, 128), &[]),
    ((256, 176), &[]),
    ((128, 160), PING_PONG),
    ((128, 112), PING_PONG),
    ((64, 64), &[]),
    ((64, 32), &[]),
    ((64, 256), &[]),
    ((8, 64), &[]),
    ((16, 32), &[]),
    ((32, 128), &[]),
    ((128, 256), &[("gemm.cluster", Pair(2, 1))]),
    ((128, 192), &[("gemm.cluster", Pair(1, 2))]),
    (
        (128, 144),
        &[("gemm.cluster", Pair(2, 1)), ("gemm.ping_pong", One(1))],
    ),
];
const PING_PONG: Knobs = &[("gemm.ping_pong", One(1))];
const SIZES: [(u32, u32); 5] = [(8, 8), (264, 72), (1032, 1000), (2056, 520), (256, 2048)];
const ROWS: [u32; 6] = [1, 7, 127, 129, 1000, 2049];

fn variant(dtype: Dtype, tile: (u32, u32), knobs: Knobs) -> Variant {
    let variant = Variant::new(1).dtype(dtype).set("tiles", tile);
    let set = |variant: Variant, (name, value): &(&str, Setting)| variant.set(name, *value);
    knobs.iter().fold(variant, set)
}

/// A kernel, for sizes N by K, and what it is given.
type Run = (Variant, &'static [(u32, u32)], Fill);

fn kernels() -> Vec<Run> {
    let bf16 = TILES.map(|(tile, knobs)| {
        let variant = variant(Dtype::Bf16, tile, knobs);
        (variant, &SIZES[..], Fill::Uniform(7))
    });
    let f16 = [((128, 160), PING_PONG), ((128, 224), &[])].map(|(tile, knobs)| {
        let variant = variant(Dtype::F16, tile, knobs);
        (variant, &SIZES[2..3], Fill::Integers(7))
    });
    bf16.into_iter().chain(f16).collect()
}

/// The variants, for what compiles them ahead.
pub fn variants() -> impl Iterator<Item = Variant> {
    kernels().into_iter().map(|(variant, ..)| variant)
}

#[test]
fn every_sort_of_tile_agrees_with_the_reference_on_ragged_shapes() {
    for (variant, sizes, fill) in kernels() {
        let Some(world) = gpus::world(1) else { return };
        let device = Device::gpus(&world, Probes::default(), 0);
        let ran: Vec<_> = (sizes.iter())
            .map(|(n, k)| {
                let shapes = ROWS.map(|m| Shape::new(m, *n, *k));
                let case = on(&device, &schedules::gemm(), &variant, &shapes);
                let outcome = case.run(&device, fill);
                (case, outcome)
            })
            .collect();
        let told = world.told();
        drop(world);
        let launches = ran.len() * ROWS.len();
        let worst = in_parallel(launches, |index| {
            let (case, outcome) = &ran[index / ROWS.len()];
            case.compare(outcome, index % ROWS.len(), fill)
        });
        println!(
            "  {:13} {:32} {launches:5} launches right, {variant}: at most {:.0} % of what rounding allows",
            "gemm",
            told,
            worst.into_iter().fold(0.0, f64::max) * 100.0
        );
    }
}
