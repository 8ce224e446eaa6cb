//! Products of which two sides have one size: M and N, or N and K.

use super::strangers::strangers;
use super::{FP8, Fill, JITTERED, KINDS, Matrix, PLAIN, TN, run};
use crate::case::{Device, Kind, variant_of};
use crate::square_of::{by_itself, through_scratch};
use crate::strangers::Stranger;
use counterflow::jit::Probes;
use counterflow::{Program, Variant};

pub const THROUGH_SCRATCH: Stranger = (through_scratch, &[1, 2]);

fn product() -> Program {
    by_itself(false)
}

/// Columns of M are whole 16 bytes, and most are divided by no tile.
const fn of_kinds(kinds: &'static [Kind]) -> Matrix {
    Matrix {
        kinds,
        sizes: &[(264, 1104), (264, 80)],
        rows: &[1000, 8, 2048, 136],
        fills: &[Fill::Uniform, Fill::Integers],
        ..PLAIN
    }
}

const ALL: [&[Kind]; 3] = [&KINDS, &TN, &FP8];

/// The kernels of `dot(x[t], x[t])`, for what compiles them ahead.
pub fn kernels() -> impl Iterator<Item = (Probes, Program, Variant)> {
    let kinds = ALL.into_iter().flatten();
    kinds.map(|kind| {
        let program = product();
        let variant = variant_of(&program, 1, *kind);
        (Probes::default(), program, variant)
    })
}

#[test]
fn a_product_with_itself() {
    for kinds in ALL {
        of_kinds(kinds).on_worlds(&[1], product, "square", (Probes::default(), 0));
    }
}

#[test]
fn a_layer_as_wide_as_deep() {
    strangers(THROUGH_SCRATCH);
}

/// The same on an emulated rank.
#[test]
fn emulated() {
    for kinds in [&JITTERED[..], &TN[..1], &FP8[..1]] {
        let matrix = Matrix {
            sizes: &[(264, 80)],
            rows: &[304, 16, 128],
            ..of_kinds(kinds)
        };
        let ran = run(matrix.cases(product, 1, 1), &Device::Cpu);
        matrix.compare(&ran, "emulated, square");
    }
}
