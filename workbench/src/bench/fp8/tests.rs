//! Parts of FP8 measurements of several ranks, without a GPU: each rank's memory, NCCL's transfers, the allowed differences.

use super::super::contenders::rounded;
use super::super::peer::{self, How, padded, parts};
use super::super::variants::{self, Built, Plane, Planned};
use super::super::written::Holds;
use crate::library::{self, Sizes, real};
use crate::suite::{self, Case};
use counterflow_codegen::dtype::Dtype;
use counterflow_codegen::machine::Machine;
use counterflow_codegen::program::{Program, TensorId};
use counterflow_codegen::rule::{Fp8, ScaleRule};
use counterflow_codegen::variant::{Scales, Variant};
use counterflow_timeline::model::Volume;

/// Rows that no shard divides, and columns and K that no block of 128 does.
const SIZE: [u32; 3] = [1000, 528, 1104];

type Schedule = fn(&Sizes) -> Program;

/// Schedules that gather, each with the side of the operand.
const GATHERS: [(Schedule, usize); 4] = [
    (library::ag_gemm, 0),
    (library::ag_gemm_pull, 0),
    (library::ag_gemm_ring, 0),
    (library::fsdp_gemm, 1),
];

const SUMS: [(Schedule, How); 4] = [
    (library::gemm_rs, How::Scatter),
    (library::gemm_rs_add, How::Scatter),
    (library::rs_ring, How::Scatter),
    (library::gemm_ar, How::Reduce),
];

/// Tiles that leave registers for promoted sums.
fn sizes() -> Sizes {
    Sizes {
        tiles: counterflow_codegen::builder::tune([(128, 128)]),
        ..real()
    }
}

fn built(schedule: Schedule, world: u32, scales: Scales) -> Built {
    let variant = Variant::new(world).dtype(Dtype::E4M3).scales(scales);
    variants::build(&schedule(&sizes()), &variant).unwrap_or_else(|error| panic!("{error}"))
}

pub(in super::super) fn planned<'a>(built: &'a Built, case: &Case) -> Planned<'a> {
    let planned = built.plan(case, &Machine::h200());
    planned.unwrap_or_else(|error| panic!("{}: {error}", built.kernel.name))
}

/// With `WIDE=1` all, else two.
fn worlds() -> &'static [u32] {
    let wide = crate::wide::wide();
    if wide { &[1, 2, 3, 4] } else { &[1, 3] }
}

/// Each schedule in each of these worlds with each kind of scales.
fn every(schedule: Schedule, mut with: impl FnMut(&Planned<'_>, u32, Scales)) -> usize {
    let mut seen = 0;
    for world in worlds() {
        for scales in Scales::ALL {
            let built = built(schedule, *world, scales);
            with(&planned(&built, &suite::single(SIZE)), *world, scales);
            seen += 1;
        }
    }
    seen
}

/// Elements and scales of both operands, a result, scratch: nothing is left that a kernel would find no memory for.
fn has_memory_for_all(planned: &Planned<'_>) {
    let built = planned.built;
    let mut seen = Vec::new();
    for index in 0..built.kernel.buffers.len() {
        let tensor = TensorId(index as u16);
        match built.operand(tensor) {
            Some(operand) => seen.push(operand),
            None if built.kernel.buffers[index].is_scratch() => {}
            None => assert_eq!(tensor, built.roles.y),
        }
    }
    seen.sort_by_key(|(side, plane)| (*side, *plane == Plane::Scales));
    let all = [0, 1].map(|side| [(side, Plane::Elements), (side, Plane::Scales)]);
    assert_eq!(seen, all.as_flattened());
    for side in 0..2 {
        let scales = built.scales(side).expect("a scale");
        assert_eq!(built.operand(scales), Some((side, Plane::Scales)));
    }
}

#[test]
fn what_is_gathered_moves_with_its_scales() {
    for (schedule, side) in GATHERS {
        let mut of_elements = 0;
        let seen = every(schedule, |planned, world, scales| {
            let (built, [m, n, k]) = (planned.built, SIZE.map(u64::from));
            has_memory_for_all(planned);
            assert!(How::of(planned) == How::Gather && Holds::of(planned) == Holds::Own);
            // Columns of the product are divided by whole 16 bytes of a row.
            let unit = [1, 8][side];
            let rows = [m, n][side]
                .div_ceil(u64::from(world))
                .next_multiple_of(unit);
            let blocks = k.div_ceil(128);
            // Bytes of a part: the elements of a shard, which whole blocks divide, and their scales.
            let square = || {
                let rows = rows.next_multiple_of(128);
                (rows, rows / 128 * blocks.next_multiple_of(4) * 4)
            };
            let line = || {
                (
                    rows.next_multiple_of(4),
                    rows.next_multiple_of(4) * blocks * 4,
                )
            };
            let (rows, of_scales) = match (scales, side) {
                (Scales::PerTensor, _) => (rows, 0),
                (Scales::PerRow, _) => (rows, rows * 4),
                (Scales::Blocks1d2d, 0) | (Scales::Blocks2d1d, 1) | (Scales::Blocks1d1d, _) => {
                    line()
                }
                (Scales::Blocks1d2d | Scales::Blocks2d1d, _) => square(),
            };
            let operand = built.operands()[side];
            let mut wanted = vec![(operand, rows * k)];
            if of_scales > 0 {
                wanted.push((built.scales(side).expect("a scale"), of_scales));
            }
            assert_eq!(
                parts(planned),
                wanted,
                "{} {scales:?} {world}",
                built.kernel.name
            );
            // The bound counts them, but for rows that pad.
            let least = Volume::of(&built.kernel, &planned.plan).least_of_a_link();
            assert!(least <= (rows * k + of_scales) * u64::from(world - 1));
            match scales {
                Scales::PerTensor => of_elements = least,
                Scales::PerRow => assert_eq!(least * k, of_elements * (k + 4)),
                Scales::Blocks1d2d | Scales::Blocks2d1d | Scales::Blocks1d1d => {}
            }
        });
        assert_eq!(seen, worlds().len() * Scales::ALL.len());
    }
}

#[test]
fn sums_over_ranks_move_no_operand() {
    for (schedule, how) in SUMS {
        let seen = every(schedule, |planned, world, scales| {
            has_memory_for_all(planned);
            assert!(How::of(planned) == how && Holds::of(planned) == Holds::Sum);
            assert_eq!(parts(planned), []);
            let [m, n, _] = SIZE.map(u64::from);
            // No two ranks share a block of what they divide.
            let unit = match scales {
                Scales::PerTensor | Scales::PerRow => 1,
                Scales::Blocks1d2d | Scales::Blocks1d1d => 4,
                Scales::Blocks2d1d => 128,
            };
            let shard = m.div_ceil(u64::from(world)).next_multiple_of(unit);
            assert_eq!(padded(planned), [shard * n, shard * n * u64::from(world)]);
            let kernel = &planned.built.kernel;
            let on_its_way = ["gemm_rs_add", "rs_ring"].contains(&&kernel.name[..]) && world > 1;
            let wanted = if on_its_way { world } else { 1 };
            assert_eq!(rounded(kernel, world), wanted, "{} {world}", kernel.name);
        });
        assert_eq!(seen, worlds().len() * Scales::ALL.len());
    }
}

/// NCCL adds what cuBLASLt writes.
#[test]
fn rows_of_nccl_say_what_it_adds_instead_of_codes() {
    let told = |schedule: Schedule, dtype, rule: Option<ScaleRule>| {
        let variant = Variant::new(2).dtype(dtype);
        let variant = rule.map_or(variant.clone(), |rule| variant.quantised_reduction(rule));
        let built = variants::build(&schedule(&sizes()), &variant);
        let built = built.unwrap_or_else(|error| panic!("{error}"));
        peer::name(&planned(&built, &suite::single([1024; 3])), "cuBLASLt")
    };
    let rule = |to| Some(ScaleRule::transformer_engine(to));
    for (schedule, _) in SUMS {
        assert_eq!(told(schedule, Dtype::Bf16, None), "cuBLASLt, then NCCL");
    }
    for (dtype, to, adds) in [
        (Dtype::Bf16, Fp8::E4M3, ", adding bf16 instead of e4m3"),
        (Dtype::F16, Fp8::E5M2, ", adding f16 instead of e5m2"),
        (Dtype::E4M3, Fp8::E4M3, ", adding bf16 instead of e4m3"),
    ] {
        let wanted = format!("cuBLASLt, then NCCL{adds}");
        assert_eq!(told(library::gemm_rs, dtype, rule(to)), wanted);
    }
    let gathers = told(library::ag_gemm, Dtype::Bf16, None);
    assert_eq!(gathers, "NCCL, then cuBLASLt");
}

#[test]
fn the_product_alone_has_all_operands() {
    let seen = every(library::gemm, |planned, _, _| {
        has_memory_for_all(planned);
        assert_eq!(parts(planned), []);
    });
    assert_eq!(seen, worlds().len() * Scales::ALL.len());
}
