//! Kernels that make scales of what they store: no spill in any sort of tile.

use crate::halves;
use crate::sass::all_pass;
use counterflow::codegen::lower::lower;
use counterflow::codegen::program::{Tensor, Usage};
use counterflow::codegen::{sm90, verify};
use counterflow::rule::{Fp8, ScaleRule};
use counterflow::{Dtype, Program, Scales, Variant, schedules};

fn made(tile: (u32, u32), ping_pong: bool) -> Variant {
    let rule = ScaleRule::transformer_engine(Fp8::E4M3).powers_of_two();
    let variant = Variant::new(4).output_scales(rule);
    variant.set("tiles", tile).set("gemm.ping_pong", ping_pong)
}

#[test]
fn computed_scales_pass_the_sass_checks() {
    all_pass(&[(schedules::gemm(), made((128, 256), false))]);
}

#[test]
#[ignore = "minutes of compiling: `.ci/run` runs it"]
fn computed_scales_pass_the_sass_checks_in_every_tile() {
    let kinds = [
        ((128, 256), false),
        ((128, 128), false),
        ((256, 128), false),
        ((64, 256), true),
        ((128, 128), true),
    ];
    let mut cases: Vec<(Program, Variant)> = Vec::new();
    for (tile, ping_pong) in kinds {
        let plain = made(tile, ping_pong);
        let of_fp8 = plain.clone().dtype(Dtype::E4M3);
        let scaled = of_fp8.clone().scales(Scales::PerRow);
        let blocks = of_fp8.clone().scales(Scales::Blocks1d2d);
        let mut all = vec![plain, of_fp8];
        // Of two blocks of rows the values have no registers beside the accumulators.
        if ![((256, 128), false), ((128, 128), true)].contains(&(tile, ping_pong)) {
            all.push(scaled);
        }
        if !ping_pong {
            all.push(blocks);
        }
        cases.extend(all.into_iter().map(|variant| (schedules::gemm(), variant)));
    }
    let conventions = [
        ScaleRule::transformer_engine(Fp8::E5M2).with_eps(1e-6),
        ScaleRule::deep_gemm(),
        ScaleRule::deep_gemm().powers_of_two(),
    ];
    for rule in conventions {
        let variant = Variant::new(4).output_scales(rule).set("tiles", (128, 256));
        cases.push((schedules::ag_gemm(), variant));
    }
    // Signals take registers from the values of 128x256.
    for scales in [Scales::PerTensor, Scales::PerRow, Scales::Blocks1d2d] {
        let scaled = made((128, 256), false).dtype(Dtype::E4M3).scales(scales);
        for gather in [schedules::ag_gemm(), schedules::ag_gemm_ring()] {
            cases.push((gather, scaled.clone()));
        }
    }
    let square = made((128, 128), false);
    cases.push((schedules::linear_gelu(), square.clone()));
    cases.push((schedules::linear_gelu(), made((128, 256), false)));
    cases.push((schedules::swiglu(), square.clone()));
    cases.push((schedules::ag_swiglu(), square));
    cases.push((
        schedules::gemm(),
        made((128, 256), false).set("gemm.split", 2),
    ));
    all_pass(&cases);
}

/// Every schedule of the library with outputs of its first type, but for those whose items store or read 16-bit tiles, too.
#[test]
fn schedules_of_the_library_make_scales() {
    let rule = ScaleRule::transformer_engine(Fp8::E4M3);
    let mut refused = Vec::new();
    for schedule in schedules::ALL {
        let program = schedule();
        let first = program.tensors[0].dtype;
        let is_output = |tensor: &Tensor| (tensor.usage, tensor.dtype) == (Usage::OUT, first);
        if !program.tensors.iter().any(is_output) {
            continue;
        }
        let tile = halves::tile(&program, (128, 256));
        let kernel = lower(
            &program,
            &Variant::new(4).output_scales(rule).set("tiles", tile),
        )
        .and_then(verify::kernel);
        let pipeline = kernel.and_then(|kernel| sm90::build(&kernel));
        match pipeline.and_then(verify::pipeline) {
            Ok(_) => {}
            Err(found) => refused.push((program.name, found.first().message.clone())),
        }
    }
    let wider =
        |what: &str| format!("tiles of `{what}` of bf16, in a kernel that makes scales of 1×128");
    let wanted = [("linear_residual", "residual"), ("bulk_rs", "g")];
    assert_eq!(
        refused,
        wanted.map(|(name, what)| (name.to_owned(), wider(what)))
    );
}
