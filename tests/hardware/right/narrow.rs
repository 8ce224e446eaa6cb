//! Results of FP8: by a scale that is given, with amaxes and without, and by scales that launches make.

use super::{FP8, FP8_MATRIX, KINDS, Matrix, Schedule, run, some_fills};
use crate::case::{Device, Kind, variant_of};
use crate::wide::wide;
use counterflow::jit::Probes;
use counterflow::rule::{Fp8, ScaleRule};
use counterflow::{Dtype, Program, Scales, Variant, schedules};

/// Results of FP8, by a scale of each rank's own: of 16-bit operands, and of FP8 with scales.
fn fp8_outputs(schedule: Schedule) {
    narrow(schedule, false);
}

/// The same, measured.
fn fp8_amaxes(schedule: Schedule) {
    narrow(schedule, true);
}

fn narrow(schedule: Schedule, amax: bool) {
    for (kinds, scales, output) in FP8_OUTPUTS {
        let matrix = Matrix {
            amax,
            kinds,
            scales,
            output: Some(output),
            sizes: &[(272, 1104), (576, 144), (2112, 272)],
            ..FP8_MATRIX
        };
        let measured = if amax { ", measured" } else { "" };
        let what = format!("{} -> {output}{measured}", kinds[0].0);
        matrix.on_gpus(schedule, &what, (Probes::default(), 0));
    }
}

/// With a scale for each 1×128 that the launch makes.
fn fp8_computed_scales(schedule: Schedule) {
    for of in computed_scales() {
        let (matrix, what) = making(of);
        matrix.on_gpus(schedule, &what, (Probes::default(), 0));
    }
}

fn making((kinds, scales, rule): Making) -> (Matrix, String) {
    let matrix = Matrix {
        kinds,
        scales,
        output: Some(rule.to.dtype()),
        made: Some(rule),
        sizes: &[(272, 1104), (576, 144), (2112, 272)],
        ..FP8_MATRIX
    };
    let what = format!("{} -> {} by {rule}", kinds[0].0, rule.to.dtype());
    (matrix, what)
}

/// The same on emulated ranks.
#[test]
fn emulated_ranks_make_scales() {
    for (at, (schedule, ranks)) in MAKERS.into_iter().zip([1, 3, 4]).enumerate() {
        for (number, of) in computed_scales().into_iter().enumerate() {
            // The sample has each schedule, and each way to make scales, once.
            if !wide() && number != at {
                continue;
            }
            let (matrix, what) = making(of);
            // Without `WIDE` one tile and one kind of numbers of each.
            let kinds = match wide() {
                true => matrix.kinds,
                false => &matrix.kinds[at % 2..][..1],
            };
            let matrix = Matrix {
                kinds,
                sizes: &[(272, 144)],
                rows: &[300, 1],
                fills: some_fills(at),
                ..matrix
            };
            let ran = run(matrix.cases(schedule, ranks, 1), &Device::Cpu);
            matrix.compare(&ran, &format!("world {ranks} emulated, {what}"));
        }
    }
}

const MAKERS: [Schedule; 3] = [schedules::gemm, schedules::ag_gemm, schedules::fsdp_gemm];

/// Operands, their scales, and the rule of those that the tile makes.
pub(super) type Making = (&'static [Kind], Option<Scales>, ScaleRule);

fn computed_scales() -> [Making; 3] {
    let theirs = ScaleRule::transformer_engine(Fp8::E4M3);
    [
        (&KINDS[..2], None, theirs),
        (&FP8, Some(Scales::PerRow), ScaleRule::deep_gemm()),
        (&FP8, Some(Scales::Blocks1d2d), theirs.powers_of_two()),
    ]
}

/// Operands, their scales, and results.
const FP8_OUTPUTS: [(&[Kind], Option<Scales>, Dtype); 3] = [
    (&[KINDS[0], KINDS[1]], None, Dtype::E4M3),
    (&FP8, Some(Scales::PerRow), Dtype::E4M3),
    (&FP8, Some(Scales::PerTensor), Dtype::E5M2),
];

mod fp8_outputs {
    crate::each_schedule!(super::fp8_outputs: gemm, ag_gemm);
}

mod fp8_amaxes {
    crate::each_schedule!(super::fp8_amaxes: gemm, ag_gemm);
}

mod fp8_computed_scales {
    crate::each_schedule!(super::fp8_computed_scales: gemm, ag_gemm, fsdp_gemm);
}

/// Each schedule with each of these, in every world, whose variant has that rule.
pub(super) fn of_each_world<const N: usize>(
    schedules: [Schedule; N],
    makings: [Making; 3],
    with: fn(Variant, ScaleRule) -> Variant,
) -> impl Iterator<Item = (Probes, Program, Variant)> {
    let kinds = schedules
        .into_iter()
        .flat_map(move |schedule| makings.map(|of| (schedule, of)));
    kinds.flat_map(move |(schedule, (kinds, scales, rule))| {
        let worlds = kinds
            .iter()
            .flat_map(|kind| (1..=4).map(move |world| (kind, world)));
        worlds.map(move |(kind, world)| {
            let program = schedule();
            let variant = with(variant_of(&program, world, *kind), rule);
            let variant = scales.into_iter().fold(variant, Variant::scales);
            (Probes::default(), program, variant)
        })
    })
}

fn of_computed_scales() -> impl Iterator<Item = (Probes, Program, Variant)> {
    of_each_world(MAKERS, computed_scales(), Variant::output_scales)
}

/// The same for what compiles them ahead.
pub(super) fn of_fp8_outputs() -> impl Iterator<Item = (Probes, Program, Variant)> {
    of_given_scales().chain(of_computed_scales())
}

fn of_given_scales() -> impl Iterator<Item = (Probes, Program, Variant)> {
    let all = [schedules::gemm, schedules::ag_gemm].into_iter();
    let kinds = all.flat_map(|schedule: Schedule| {
        FP8_OUTPUTS.map(|(kinds, scales, output)| (schedule, kinds, scales, output))
    });
    kinds.flat_map(|(schedule, kinds, scales, output)| {
        let worlds = kinds
            .iter()
            .flat_map(|kind| (1..=4).map(move |world| (kind, world)));
        worlds.flat_map(move |(kind, world)| {
            let program = schedule();
            let variant = variant_of(&program, world, *kind).output(output);
            let variant = scales.into_iter().fold(variant, Variant::scales);
            [variant.clone(), variant.amax(true)]
                .map(|variant| (Probes::default(), program.clone(), variant))
        })
    })
}
