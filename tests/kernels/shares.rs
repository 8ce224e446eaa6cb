//! Kernels whose threads have the scales of half of the columns at a time, with all that a subtile may become: no spill.

use crate::sass::all_pass;
use counterflow::{Dtype, Scales, Variant, schedules};

#[test]
#[ignore = "a minute of compiling: `.ci/run` runs it"]
fn scales_in_shares_pass_the_sass_checks() {
    let tall = |world| {
        let variant = Variant::new(world).dtype(Dtype::E4M3);
        variant.scales(Scales::Blocks1d1d).set("tiles", (256, 128))
    };
    let mut cases = Vec::from([
        (schedules::gemm(), tall(1).output(Dtype::F32)),
        (schedules::gemm(), tall(1).output(Dtype::E4M3)),
        (schedules::gemm(), tall(1).output(Dtype::E4M3).amax(true)),
        (schedules::gemm(), tall(1).scales(Scales::Blocks2d1d)),
        (schedules::gemm(), tall(1).set("gemm.split", 2)),
        (schedules::wgrad(), tall(1)),
        // Several products, each with scales of its own.
        (schedules::swiglu(), tall(1).set("tiles", (128, 112))),
        // Signals take registers.
        (schedules::ag_gemm(), tall(2)),
    ]);
    for schedule in [schedules::linear_gelu, schedules::linear_residual] {
        cases.push((schedule(), tall(1)));
        cases.push((schedule(), tall(1).output(Dtype::F32)));
    }
    all_pass(&cases);
}
