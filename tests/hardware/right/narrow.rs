//! Results of FP8, with amaxes and without.

use super::{FP8, FP8_MATRIX, KINDS, Matrix, Schedule};
use crate::case::{Kind, variant_of};
use counterflow::jit::Probes;
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

/// Operands, their scales, and results.
const FP8_OUTPUTS: [(&[Kind], Option<Scales>, Dtype); 3] = [
    (&[KINDS[0], KINDS[1]], None, Dtype::E4M3),
    (&FP8, Some(Scales::Rows), Dtype::E4M3),
    (&FP8, Some(Scales::Whole), Dtype::E5M2),
];

mod fp8_outputs {
    crate::each_schedule!(super::fp8_outputs: gemm, ag_gemm);
}

mod fp8_amaxes {
    crate::each_schedule!(super::fp8_amaxes: gemm, ag_gemm);
}

/// The same for what compiles them ahead.
pub(super) fn of_fp8_outputs() -> impl Iterator<Item = (Probes, Program, Variant)> {
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
            let variant = Variant { scales, ..variant };
            [variant.clone(), variant.amax(true)]
                .map(|variant| (Probes::default(), program.clone(), variant))
        })
    })
}
