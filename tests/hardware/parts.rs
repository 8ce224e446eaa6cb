//! Parts of K on CTAs of their own, on ragged shapes: the sums of all parts, launch after launch with another M.

use crate::case::{Device, Fill, References, on};
use crate::right::JITTER;
use crate::tiles::{NONE, ROWS, right};
use counterflow::{Dtype, Program, Shape, Variant, schedules};

const TILES: [(u32, u32); 3] = [(128, 256), (128, 192), (128, 128)];

/// As many tiles as parts and more than SMs; steps that parts do not divide, the last step short.
const DEEP: [(u32, u32); 3] = [(8, 1352), (264, 1096), (2056, 712)];

fn variant(ranks: u32, dtype: Dtype, tile: (u32, u32), parts: u32) -> Variant {
    let variant = Variant::new(ranks).dtype(dtype);
    variant.set("tiles", tile).set("parts", parts)
}

fn kinds(ranks: u32) -> impl Iterator<Item = Variant> {
    let bf16 = TILES
        .into_iter()
        .flat_map(move |tile| [2, 3, 4].map(|parts| variant(ranks, Dtype::Bf16, tile, parts)));
    bf16.chain([variant(ranks, Dtype::F16, (128, 128), 3)])
}

/// With pauses wherever only luck could order anything.
fn paused() -> impl Iterator<Item = Variant> {
    [((128, 256), 3), ((128, 128), 4)]
        .into_iter()
        .map(|(tile, parts)| variant(1, Dtype::Bf16, tile, parts))
}

/// All of them, for what compiles them ahead.
pub fn variants() -> impl Iterator<Item = (Program, Variant)> {
    let alone = kinds(1).chain(kinds(2));
    alone.map(|variant| (schedules::gemm_split(), variant))
}

/// Those that run with pauses.
pub fn jittered() -> impl Iterator<Item = (Program, Variant)> {
    paused().map(|variant| (schedules::gemm_split(), variant))
}

#[test]
fn parts_add_up_on_ragged_shapes() {
    for ranks in [1, 2] {
        for variant in kinds(ranks) {
            for fill in [Fill::Uniform(7), Fill::Integers(7)] {
                let program = schedules::gemm_split();
                if !right(
                    ranks,
                    &program,
                    &variant,
                    (&DEEP, &ROWS),
                    fill,
                    NONE,
                    &References::default(),
                ) {
                    return;
                }
            }
        }
    }
}

#[test]
fn parts_add_up_with_pauses() {
    for (program, variant) in jittered() {
        let fill = Fill::Integers(7);
        if !right(
            1,
            &program,
            &variant,
            (&DEEP[1..], &ROWS),
            fill,
            JITTER,
            &References::default(),
        ) {
            return;
        }
    }
}

#[test]
fn parts_add_up_without_a_gpu() {
    for variant in kinds(1) {
        for (n, k) in &DEEP[..2] {
            let shapes: Vec<_> = ROWS[..4]
                .iter()
                .map(|m| Shape::new(*m, *n, *k).up_to(ROWS[3]))
                .collect();
            let case = on(&Device::Cpu, &schedules::gemm_split(), &variant, &shapes);
            for fill in [Fill::Uniform(7), Fill::Integers(7)] {
                let outcome = case.run(&Device::Cpu, fill);
                for launch in 0..shapes.len() {
                    case.compare(&outcome, launch, fill);
                }
            }
        }
    }
}
