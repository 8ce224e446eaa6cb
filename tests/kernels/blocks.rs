//! Kernels of gathers whose scales of blocks travel: no spill.

use crate::sass::all_pass;
use counterflow::{Dtype, Scales, Variant, schedules};

#[test]
#[ignore = "minutes of compiling: `.ci/run` runs it"]
fn scales_of_blocks_that_travel_pass_the_sass_checks() {
    let gathers = [
        schedules::ag_gemm(),
        schedules::ag_gemm_pull(),
        schedules::ag_gemm_ring(),
        schedules::fsdp_gemm(),
    ];
    let scaled = |scales| {
        let variant = Variant::new(4).dtype(Dtype::E4M3).scales(scales);
        variant.set("tiles", (128, 128))
    };
    let mut cases = Vec::from(gathers.map(|program| (program, scaled(Scales::Blocks1d2d))));
    for scales in [Scales::Blocks2d1d, Scales::Blocks1d1d] {
        cases.push((schedules::ag_gemm(), scaled(scales)));
        cases.push((schedules::fsdp_gemm(), scaled(scales)));
    }
    let wide = scaled(Scales::Blocks1d2d).set("tiles", (128, 256));
    cases.push((schedules::ag_gemm(), wide));
    cases.push((schedules::bulk(), scaled(Scales::Blocks1d2d)));
    // Blocks cross the edges of tiles that are multiplied in several places, or added.
    let across = scaled(Scales::Blocks1d2d).set("tiles", (128, 160));
    cases.push((schedules::gemm_rs_add(), across.clone()));
    cases.push((schedules::gemm_ar(), across));
    all_pass(&cases);
}
