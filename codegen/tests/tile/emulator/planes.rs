//! Operands of FP8 with a scale for each row, or for each block, which travels with its rows.

use super::meaning::agrees;
use super::{Case, schedules};
use crate::fixtures::library::{self, Sizes};
use crate::fixtures::wide::{sampled, wide};
use counterflow_codegen::dtype::Dtype::E4M3;
use counterflow_codegen::program::{Program, ScaleBlock};
use counterflow_codegen::variant::{Scales, Variant};
use counterflow_emulator::Says;
use counterflow_timeline::model::volume::Volume;

fn variant(world: u32) -> Variant {
    Variant::new(world).dtype(E4M3).scales(Scales::PerRow)
}

/// As many bytes cross links as must, and four of them for each row are its scale.
fn crosses_links_once(program: &Program, world: u32) {
    let case = Case::new(program, &variant(world), &[29], 24, 16);
    let (kernel, plan) = (&case.kernel, &case.plans[0]);
    let volume = Volume::of(kernel, plan);
    assert_eq!(volume.total(), volume.least_total(), "{}", program.name);
    let gathered = |scale: bool| {
        let mut buffers = kernel.buffers.iter();
        let found = buffers
            .position(|buffer| buffer.usage.is_gathered() && buffer.usage.is_scale() == scale);
        volume.by_buffer[found.expect("is gathered")]
    };
    // A row of 16 elements has 16 bytes.
    assert_eq!(gathered(true) * 16, gathered(false) * 4, "{}", program.name);
}

/// Every rank has at the end all rows of what is gathered and all of their scales, and the products of both.
#[test]
fn scales_travel_with_their_rows() {
    let worlds = match wide() {
        true => vec![1, 2, 3, 4, 5, 6, 7, 8],
        false => vec![1, 2, 3, 8],
    };
    let gathers = [
        ("ag_gemm", "x.scale"),
        ("pull", "x.scale"),
        ("ring", "x.scale"),
        ("fsdp_gemm", "w.scale"),
    ];
    let mut ran = Vec::new();
    for (name, schedule) in schedules::ALL {
        let Some((_, scale)) = gathers.iter().find(|(gathers, _)| *gathers == name) else {
            continue;
        };
        ran.push(name);
        for world in &worlds {
            let said = agrees(&schedule(), &variant(*world), &[29, 7, 1], 24, 16);
            let told = (scale.to_string(), Says::Type);
            assert!(said.contains(&told), "{name}: {said:?}");
            assert!(
                said.contains(&("y".into(), Says::Schedule)),
                "{name}: {said:?}"
            );
            crosses_links_once(&schedule(), *world);
        }
    }
    assert_eq!(ran.len(), gathers.len(), "{ran:?}");
}

/// The same of scales of blocks: ranks divide rows with scales of 1×128 by four, and those with scales of 128×128 by 128, so that
/// some ranks have none, or few.
#[test]
fn scales_of_blocks_travel_with_their_rows() {
    type Made = fn(&Sizes) -> Program;
    let gathers: [(Made, &str); 4] = [
        (library::ag_gemm, "x.scale"),
        (library::ag_gemm_pull, "x.scale"),
        (library::ag_gemm_ring, "x.scale"),
        (library::fsdp_gemm, "w.scale"),
    ];
    let kinds = [Scales::Blocks1d2d, Scales::Blocks2d1d, Scales::Blocks1d1d];
    let all =
        gathers.map(|gather| kinds.map(|scales| (1..=8).map(move |world| (gather, scales, world))));
    for ((made, scale), scales, world) in sampled(all.into_iter().flatten().flatten(), 19) {
        let [x, w] = scales.blocks().expect("of blocks");
        let of_squares =
            [("x.scale", x), ("w.scale", w)].contains(&(scale, ScaleBlock::F32_128X128));
        let (rows, n) = match (of_squares, scale) {
            (true, "x.scale") => (vec![389, 128, 1], 24),
            (true, _) => (vec![9], 392),
            (false, _) => (vec![29, 7, 1], 24),
        };
        let program = made(&Sizes {
            tiles: (4, 8).into(),
            chunks: if of_squares { 128 } else { 3 }.into(),
            copied: if of_squares { 128 } else { 3 }.into(),
            ctas: 2.into(),
            k: Some(16.into()),
            group: 2,
        });
        let variant = Variant::new(world).dtype(E4M3).scales(scales);
        let said = agrees(&program, &variant, &rows, n, 272);
        let told = (scale.to_string(), Says::Type);
        assert!(said.contains(&told), "{} {variant}: {said:?}", program.name);
        let case = Case::new(&program, &variant, &rows[..1], n, 272);
        let volume = Volume::of(&case.kernel, &case.plans[0]);
        assert_eq!(volume.total(), volume.least_total(), "{}", program.name);
    }
}
