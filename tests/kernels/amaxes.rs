//! Kernels that measure FP8 outputs: no spill in any sort of tile.

use crate::epilogues;
use crate::sass::all_pass;
use counterflow::{Dtype, Program, Scales, Variant, schedules};

fn measured(tile: (u32, u32), ping_pong: bool) -> Variant {
    let variant = Variant::new(4).output(Dtype::E4M3).amax(true);
    variant.set("tiles", tile).set("gemm.ping_pong", ping_pong)
}

#[test]
fn an_amax_passes_the_sass_checks() {
    all_pass(&[(schedules::gemm(), measured((128, 256), false))]);
}

#[test]
#[ignore = "minutes of compiling: `.ci/run` runs it"]
fn amaxes_pass_the_sass_checks() {
    let kinds = [
        ((128, 256), false),
        ((256, 128), false),
        ((128, 160), true),
        ((176, 256), false),
        ((80, 128), false),
        ((160, 256), false),
        ((256, 160), false),
        ((64, 256), true),
        ((16, 256), false),
    ];
    let mut cases: Vec<(Program, Variant)> = Vec::new();
    for (tile, ping_pong) in kinds {
        let plain = measured(tile, ping_pong);
        let of_fp8 = plain.clone().dtype(Dtype::E4M3);
        let scaled = of_fp8.clone().scales(Scales::PerRow);
        let all = [plain, of_fp8, scaled];
        cases.extend(all.map(|variant| (schedules::gemm(), variant)));
    }
    let gradients = Variant::new(4).output(Dtype::E5M2).amax(true);
    cases.push((schedules::ag_gemm(), gradients.clone()));
    let rows = gradients.clone().dtype(Dtype::E4M3).scales(Scales::PerRow);
    cases.push((schedules::ag_gemm(), rows));
    cases.push((schedules::linear_gelu(), measured((128, 128), false)));
    cases.push((
        schedules::swiglu(),
        gradients.clone().set("tiles", (128, 128)),
    ));
    // A stored tile beside the product.
    cases.push((epilogues::gelu_tanh_mul(), gradients.clone()));
    cases.push((schedules::gemm(), gradients.set("gemm.split", 2)));
    all_pass(&cases);
}
