//! Products of FP8, compiled: promoted sums, scales of every kind, and results of FP8 pass the SASS checks.

use crate::epilogues;
use crate::sass::all_pass;
use crate::tiles::{Kind, variant};
use counterflow::codegen::program::Setting;
use counterflow::{Dtype, Scales, Variant, schedules};

/// Sums in registers beside those of the tensor cores, a step in one piece, by blocks of the M side, and by halves of the N side.
#[test]
#[ignore = "a minute of compiling: `.ci/run` runs it"]
fn promoted_sums_pass_the_sass_checks() {
    let promoted = |kind: Kind| variant(kind).dtype(Dtype::E4M3).promote(true);
    let kinds = [
        ((128, 128), false),
        ((128, 192), false),
        ((128, 256), false),
        ((256, 128), false),
        ((256, 96), false),
        ((128, 112), true),
        ((64, 256), true),
        ((80, 128), false),
        ((16, 64), true),
        ((104, 256), false),
    ];
    let mut cases: Vec<_> = Vec::from(kinds.map(|kind| (schedules::gemm(), promoted(kind))));
    let knobs = [
        ("gemm.cluster", Setting::from((2, 1))),
        ("gemm.split", Setting::from(2)),
    ];
    cases.extend(knobs.map(|(knob, setting)| {
        let variant = promoted(((128, 256), false)).set(knob, setting);
        (schedules::gemm(), variant)
    }));
    let fused = [
        schedules::ag_gemm(),
        schedules::gemm_rs(),
        schedules::gemm_ar(),
        schedules::swiglu(),
    ];
    let fused = fused.into_iter().flat_map(|program| {
        let variant = Variant::new(4).dtype(Dtype::E4M3).promote(true);
        let small = variant.clone().set("tiles", (128, 128));
        [(program.clone(), variant), (program, small)]
    });
    cases.extend(fused.filter(|(program, variant)| {
        program.name != "swiglu" || variant.choices.contains_key("tiles")
    }));
    all_pass(&cases);
}

/// Scales of blocks on either side of the instruction, of a step in one piece and in several.
#[test]
#[ignore = "a minute of compiling: `.ci/run` runs it"]
fn scales_of_blocks_pass_the_sass_checks() {
    let scaled = |kind: Kind, scales| variant(kind).dtype(Dtype::E4M3).scales(scales);
    let kinds = [
        (((128, 128), false), Scales::Blocks1d2d),
        (((256, 128), false), Scales::Blocks1d2d),
        (((128, 256), false), Scales::Blocks1d2d),
        (((64, 256), true), Scales::Blocks1d2d),
        (((80, 128), false), Scales::Blocks1d2d),
        (((16, 64), true), Scales::Blocks1d2d),
        (((16, 256), false), Scales::Blocks1d2d),
        (((128, 128), false), Scales::Blocks2d1d),
        (((256, 128), false), Scales::Blocks2d1d),
        (((128, 128), false), Scales::Blocks1d1d),
        (((128, 160), false), Scales::Blocks1d1d),
        (((128, 176), false), Scales::Blocks1d1d),
        (((256, 112), false), Scales::Blocks1d1d),
        (((256, 128), false), Scales::Blocks1d1d),
        (((176, 128), false), Scales::Blocks1d2d),
        // Blocks cross the edges of these.
        (((128, 192), false), Scales::Blocks1d2d),
        (((128, 144), false), Scales::Blocks1d2d),
        (((256, 112), false), Scales::Blocks1d2d),
        (((144, 128), false), Scales::Blocks2d1d),
        (((16, 64), true), Scales::Blocks1d1d),
    ];
    let mut cases: Vec<_> =
        Vec::from(kinds.map(|(kind, scales)| (schedules::gemm(), scaled(kind, scales))));
    let split = scaled(((128, 256), false), Scales::Blocks1d2d).set("gemm.split", 2);
    cases.push((schedules::gemm(), split));
    let clusters = [
        ((256, 128), Scales::Blocks1d2d, (1, 2)),
        ((128, 256), Scales::Blocks1d2d, (2, 1)),
        ((256, 128), Scales::Blocks2d1d, (2, 1)),
        ((256, 128), Scales::Blocks1d1d, (1, 2)),
        ((128, 128), Scales::Blocks1d1d, (2, 1)),
        ((256, 128), Scales::Blocks2d1d, (1, 2)),
        ((16, 64), Scales::Blocks1d2d, (2, 1)),
    ];
    cases.extend(clusters.map(|(tile, scales, cluster)| {
        let variant = scaled((tile, false), scales).set("gemm.cluster", cluster);
        (schedules::gemm(), variant)
    }));
    let fused = [
        schedules::gemm_rs(),
        schedules::gemm_ar(),
        schedules::swiglu(),
    ];
    cases.extend(fused.map(|program| {
        let variant = Variant::new(4)
            .dtype(Dtype::E4M3)
            .scales(Scales::Blocks1d2d);
        (program, variant.set("tiles", (128, 128)))
    }));
    all_pass(&cases);
}

#[test]
#[ignore = "a minute of compiling: `.ci/run` runs it"]
fn fp8_operands_pass_the_sass_checks() {
    let fp8 = |kind: Kind| variant(kind).dtype(Dtype::E4M3);
    let kinds = [
        ((128, 256), false),
        ((256, 192), false),
        ((200, 256), false),
        ((80, 128), false),
        ((128, 160), true),
        ((16, 64), true),
    ];
    let mut cases: Vec<_> = kinds
        .map(|kind| (schedules::gemm(), fp8(kind)))
        .into_iter()
        .collect();
    let knobs = [
        ("gemm.cluster", Setting::from((2, 1))),
        ("gemm.split", Setting::from(2)),
    ];
    cases.extend(knobs.map(|(knob, setting)| {
        let variant = fp8(((128, 256), false)).set(knob, setting);
        (schedules::gemm(), variant)
    }));
    let fused = [
        schedules::ag_gemm(),
        schedules::gemm_rs(),
        schedules::gemm_ar(),
    ];
    let fused = fused.map(|program| (program, Variant::new(4).dtype(Dtype::E4M3)));
    cases.extend(fused.clone());
    let mixed = [(Dtype::E4M3, Dtype::E5M2), (Dtype::E5M2, Dtype::E4M3)];
    cases.extend(mixed.into_iter().flat_map(|(first, second)| {
        let mixed = |kind| variant(kind).dtype(first).rhs_dtype(second);
        let gemms =
            [((128, 256), false), ((16, 64), true)].map(|kind| (schedules::gemm(), mixed(kind)));
        let fused = (
            schedules::ag_gemm(),
            Variant::new(4).dtype(first).rhs_dtype(second),
        );
        gemms.into_iter().chain([fused])
    }));
    // What is scaled has registers of its own: tiles are smaller.
    let scaled = kinds.map(|kind| match kind {
        ((256, 192), mode) => ((256, 176), mode),
        ((200, 256), mode) => ((176, 256), mode),
        kind => kind,
    });
    let scaled = scaled.map(|kind| (schedules::gemm(), fp8(kind)));
    let scaled = scaled.into_iter().chain(fused);
    cases.extend(scaled.flat_map(|(program, variant)| {
        let kinds = [Scales::PerTensor, Scales::PerRow];
        kinds.map(|scales| (program.clone(), variant.clone().scales(scales)))
    }));
    all_pass(&cases);
}

#[test]
#[ignore = "a minute of compiling: `.ci/run` runs it"]
fn fp8_outputs_pass_the_sass_checks() {
    let kinds = [
        ((128, 256), false),
        ((256, 128), false),
        ((128, 160), true),
        ((176, 256), false),
        ((80, 128), false),
    ];
    let narrow = |kind: Kind| variant(kind).output(Dtype::E4M3);
    let mut cases: Vec<_> = kinds
        .into_iter()
        .flat_map(|kind| {
            let of_fp8 = narrow(kind).dtype(Dtype::E4M3);
            let scaled = of_fp8.clone().scales(Scales::PerTensor);
            [narrow(kind), of_fp8, scaled]
        })
        .map(|variant| (schedules::gemm(), variant))
        .collect();
    let gradients = Variant::new(4).output(Dtype::E5M2);
    cases.push((schedules::ag_gemm(), gradients.clone()));
    let rows = gradients.dtype(Dtype::E4M3).scales(Scales::PerRow);
    cases.push((schedules::ag_gemm(), rows));
    cases.push((schedules::linear_gelu(), narrow(((128, 128), false))));
    // Two outputs, and two stored tiles beside the product.
    for tile in [(128, 256), (128, 192), (256, 96)] {
        let two = Variant::new(1).output(Dtype::E4M3).set("tiles", tile);
        let rows = two.clone().dtype(Dtype::E4M3).scales(Scales::PerRow);
        let tile = if tile == (256, 96) { (256, 64) } else { tile };
        let measured = rows.clone().set("tiles", tile).amax(true);
        cases.extend([two, rows, measured].map(|variant| (epilogues::gated(), variant)));
    }
    all_pass(&cases);
}

/// Sums over ranks beside scales: in the tallest and the widest tiles, and where a subtile has the fewest columns or rows.
#[test]
#[ignore = "minutes of compiling: `.ci/run` runs it"]
fn sums_beside_scales_pass_the_sass_checks() {
    let tiles = [
        (128, 256),
        (256, 128),
        (256, 112),
        (128, 224),
        (152, 256),
        (144, 256),
        (136, 256),
        (248, 128),
        (240, 128),
        (208, 128),
        (200, 128),
        (80, 128),
        (80, 256),
    ];
    let sums = [
        schedules::gemm_rs(),
        schedules::gemm_ar(),
        schedules::gemm_rs_add(),
        schedules::rs_ring(),
    ];
    let mut cases = Vec::new();
    for program in sums {
        for scales in [Scales::PerTensor, Scales::PerRow] {
            let variant = Variant::new(4).dtype(Dtype::E4M3).scales(scales);
            // Around a ring, descriptors of 152x256 are not uniform: slow, and no spill.
            let slow = |tile: &(u32, u32)| program.name == "rs_ring" && *tile == (152, 256);
            let tiled = |tile| (program.clone(), variant.clone().set("tiles", tile));
            cases.extend(tiles.into_iter().filter(|tile| !slow(tile)).map(tiled));
        }
    }
    all_pass(&cases);
}

#[test]
#[ignore = "minutes of compiling: `.ci/run` runs it"]
fn scales_that_travel_pass_the_sass_checks() {
    let gathers = [
        schedules::ag_gemm(),
        schedules::ag_gemm_pull(),
        schedules::ag_gemm_ring(),
        schedules::ag_gemm_double_ring(),
        schedules::fsdp_gemm(),
    ];
    let variant = Variant::new(4).dtype(Dtype::E4M3).scales(Scales::PerRow);
    all_pass(&gathers.map(|program| (program, variant.clone())));
}
