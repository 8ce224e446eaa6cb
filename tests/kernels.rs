//! What is emitted, compiled for Hopper, one kernel of each kind: no spill, no slow code, and as many instructions of
//! each sort as the tile asks for. The whole matrix is compiled by the ignored test.

#[path = "common/gates.rs"]
mod gates;

use counterflow::{Dtype, Variant, schedules};
use gates::all_pass;

#[test]
fn one_of_each_kind_passes_the_gates() {
    let variant = Variant::new(4).set("tiles", (128, 256));
    all_pass(&[
        (schedules::gemm(), variant.clone()),
        (schedules::ag_gemm(), variant.clone()),
        (schedules::gemm_rs(), variant.clone()),
        (schedules::gemm_ar(), variant),
    ]);
}

#[test]
#[ignore = "a minute of compiling; f16 gemm_rs and gemm_ar at 128x256 still spill and fail it"]
fn every_tile_and_type_passes_the_gates() {
    let mut cases = Vec::new();
    let programs = [
        schedules::gemm(),
        schedules::ag_gemm(),
        schedules::ag_gemm_pull(),
        schedules::gemm_rs(),
        schedules::gemm_ar(),
    ];
    for program in programs {
        for dtype in [Dtype::Bf16, Dtype::F16] {
            for tile in [(128, 128), (128, 256)] {
                // The world is a parameter of the text.
                cases.push((
                    program.clone(),
                    Variant::new(4).dtype(dtype).set("tiles", tile),
                ));
            }
        }
    }
    all_pass(&cases);
}
