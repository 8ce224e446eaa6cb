//! The knobs of the GEMM itself, compiled: tiles of every width, shared and in turn, pass the gates.

#[path = "common/gates.rs"]
mod gates;

use counterflow::{Dtype, Program, Variant, schedules};
use gates::all_pass;

/// A tile and whether it is taken in turn.
type Kind = ((u32, u32), bool);

fn variant((tile, ping_pong): Kind) -> Variant {
    Variant::new(1)
        .set("tiles", tile)
        .set("gemm.ping_pong", ping_pong)
}

fn gemm(kinds: &[Kind]) -> Vec<(Program, Variant)> {
    let case = |kind: &Kind| (schedules::gemm(), variant(*kind));
    kinds.iter().map(case).collect()
}

#[test]
fn one_tile_of_each_sort_passes_the_gates() {
    all_pass(&gemm(&[
        ((128, 224), false),
        ((128, 144), false),
        ((256, 128), false),
        ((128, 160), true),
        ((64, 64), true),
    ]));
}

#[test]
#[ignore = "minutes of compiling"]
fn every_tile_passes_the_gates() {
    let mut kinds = Vec::new();
    for columns in (16..=256).step_by(16) {
        kinds.push(((64, columns), true));
        kinds.push(((128, columns), false));
        if columns <= 160 {
            kinds.push(((128, columns), true));
        }
        if columns <= 176 {
            kinds.push(((256, columns), false));
        }
    }
    let mut cases = gemm(&kinds);
    cases.extend(
        gemm(&kinds)
            .into_iter()
            .map(|(program, variant)| (program, variant.dtype(Dtype::F16))),
    );
    all_pass(&cases);
}
