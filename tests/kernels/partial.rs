//! Kernels whose partial sums travel in FP8: no spill in any sort of tile.

use crate::sass::all_pass;
use counterflow::codegen::lower::lower;
use counterflow::codegen::{sm90, verify};
use counterflow::rule::{Fp8, ScaleRule};
use counterflow::{Dtype, Program, Scales, Variant, schedules};

const RULE: ScaleRule = ScaleRule::transformer_engine(Fp8::E4M3).powers_of_two();

fn sent(tile: (u32, u32)) -> Variant {
    Variant::new(4).quantised_reduction(RULE).set("tiles", tile)
}

#[test]
fn partial_sums_of_fp8_pass_the_sass_checks() {
    all_pass(&[
        (schedules::gemm_rs(), sent((128, 256))),
        (schedules::gemm_rs(), sent((128, 128))),
    ]);
}

#[test]
#[ignore = "minutes of compiling: `.ci/run` runs it"]
fn partial_sums_of_fp8_pass_the_sass_checks_in_every_tile() {
    let mut cases: Vec<(Program, Variant)> = Vec::new();
    for tile in [(128, 256), (128, 128)] {
        cases.push((schedules::gemm_ar(), sent(tile)));
        let blocks = sent(tile).dtype(Dtype::E4M3).scales(Scales::Blocks1d2d);
        cases.push((schedules::gemm_rs(), blocks));
    }
    let wide = Variant::new(4).quantised_reduction(ScaleRule::transformer_engine(Fp8::E5M2));
    cases.push((schedules::gemm_rs(), wide));
    cases.push((schedules::mlp(), sent((128, 256))));
    cases.push((schedules::mlp(), sent((256, 128))));
    let lines = sent((128, 128)).dtype(Dtype::E4M3);
    cases.push((schedules::gemm_rs(), lines.scales(Scales::Blocks2d1d)));
    all_pass(&cases);
}

/// Every schedule of the library that adds up tiles which it sends once; others are refused with the reason.
#[test]
fn schedules_of_the_library_send_partial_sums_in_fp8() {
    let (mut sent, mut refused) = (Vec::new(), Vec::new());
    for schedule in schedules::ALL {
        let program = schedule();
        let kernel =
            lower(&program, &Variant::new(4).quantised_reduction(RULE)).and_then(verify::kernel);
        let pipeline = kernel.and_then(|kernel| sm90::build(&kernel));
        match pipeline.and_then(verify::pipeline) {
            Ok(_) => sent.push(program.name),
            Err(found) => refused.push((program.name, found.first().message.clone())),
        }
    }
    assert_eq!(sent, ["gemm_rs", "gemm_ar", "mlp"]);
    for (name, message) in refused {
        let wanted = match name.as_str() {
            "bulk_rs" => "`partial` is copied, and its partial sums are to be FP8".into(),
            "reduce_scatter" | "all_reduce" => {
                "partial sums with scales of 1×128 that are not added to one product, in tiles of 128x128".into()
            }
            "gemm_ar_one_shot" => "`partial` has all rows on each rank, and its partial sums are to be FP8".into(),
            "gemm_rs_across" => {
                "partial sums with scales of 1×128 that are not added to one product, in tiles of 128x256".into()
            }
            name => format!("partial sums of e4m3 for {name}, which adds up no tiles of scratch"),
        };
        assert_eq!(message, wanted);
    }
}
