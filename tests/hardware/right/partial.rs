//! Partial sums that travel in FP8, with scales that the tile makes.

use super::narrow::{Making, of_each_world};
use super::{FP8, FP8_MATRIX, KINDS, Matrix, Schedule, run, some_fills};
use crate::case::{Device, Fill};
use crate::gpus;
use crate::wide::wide;
use counterflow::jit::Probes;
use counterflow::rule::{Fp8, ScaleRule};
use counterflow::{Program, Scales, Variant, schedules};

const THEIRS: ScaleRule = ScaleRule::transformer_engine(Fp8::E4M3);
const SENDERS: [Schedule; 2] = [schedules::gemm_rs, schedules::gemm_ar];

pub(super) fn sendings() -> [Making; 3] {
    [
        (&KINDS[..2], None, THEIRS.powers_of_two()),
        (&KINDS[2..], None, ScaleRule::transformer_engine(Fp8::E5M2)),
        (&FP8, Some(Scales::Blocks1d2d), ScaleRule::deep_gemm()),
    ]
}

pub(super) fn sending((kinds, scales, rule): Making) -> (Matrix, String) {
    let matrix = Matrix {
        kinds,
        scales,
        partial: Some(rule),
        // Codes of a row are whole 16 bytes.
        sizes: &[(272, 1104), (576, 144), (2112, 272)],
        ..FP8_MATRIX
    };
    let to = rule.to.dtype();
    (
        matrix,
        format!("{}, partial sums {to} by {rule}", kinds[0].0),
    )
}

/// Within the bounds of their roundings.
fn fp8_partial_sums(schedule: Schedule) {
    for of in sendings() {
        let (matrix, what) = sending(of);
        matrix.on_gpus(schedule, &what, (Probes::default(), 0));
    }
}

mod fp8_partial_sums {
    crate::each_schedule!(super::fp8_partial_sums: gemm_rs, gemm_ar);
}

/// The same on emulated ranks.
#[test]
fn emulated_ranks_send_partial_sums() {
    for (at, (schedule, ranks)) in SENDERS.into_iter().zip([3, 4]).enumerate() {
        for (number, of) in sendings().into_iter().enumerate() {
            // The sample has each way once.
            if !wide() && number % 2 != at {
                continue;
            }
            let (matrix, what) = sending(of);
            // Without `WIDE` one tile and one kind of numbers of each.
            let kinds = match wide() {
                true => matrix.kinds,
                false => &matrix.kinds[number / 2 % matrix.kinds.len()..][..1],
            };
            let matrix = Matrix {
                kinds,
                sizes: &[(272, 144)],
                rows: &[300, 1],
                fills: some_fills(number),
                ..matrix
            };
            let ran = run(matrix.cases(schedule, ranks, 1), &Device::Cpu);
            matrix.compare(&ran, &format!("world {ranks} emulated, {what}"));
        }
    }
}

/// Sums of integers, and of codes times powers of two, are exact in any order: codes and scales are the emulator's, and so are sums.
#[test]
fn fp8_partial_sums_have_the_bits_of_the_emulator() {
    let mut launches = 0;
    for (schedule, ranks) in SENDERS
        .into_iter()
        .flat_map(|of| (1..=4).map(move |ranks| (of, ranks)))
    {
        let Some(gpus) = gpus::here() else { return };
        if !gpus::runs(ranks, gpus) {
            continue;
        }
        let (matrix, _) = sending(sendings()[0]);
        let matrix = Matrix {
            sizes: &[(272, 144)],
            rows: &[1000, 1, 127],
            fills: &[Fill::Integers],
            ..matrix
        };
        let cases = matrix.cases(schedule, ranks, ranks.div_ceil(gpus));
        let Some(world) = gpus::world(ranks) else {
            return;
        };
        let ran = run(cases, &Device::gpus(&world, Probes::default(), 0));
        drop(world);
        for (case, fill, outcome) in &ran {
            let emulated = case.run(&Device::Cpu, *fill);
            for output in &outcome.outputs {
                let same = emulated.output(output.launch, output.rank, output.tensor);
                assert_eq!(same, Some(output), "{}", case.kernel.name);
            }
            launches += matrix.rows.len();
        }
    }
    println!("  {launches} launches right: FP8 partial sums have the bits of the emulator");
}

/// The same for what compiles them ahead.
pub(super) fn of_partial_sums() -> impl Iterator<Item = (Probes, Program, Variant)> {
    of_each_world(SENDERS, sendings(), Variant::quantised_reduction)
}
