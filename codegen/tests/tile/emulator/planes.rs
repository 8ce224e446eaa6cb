//! Operands of FP8 with a scale for each row, which travels with its row.

use super::meaning::agrees;
use super::{Case, schedules};
use crate::fixtures::wide::wide;
use counterflow_codegen::dtype::Dtype::E4M3;
use counterflow_codegen::interp::Says;
use counterflow_codegen::model::volume::Volume;
use counterflow_codegen::program::Program;
use counterflow_codegen::variant::{Scales, Variant};

fn variant(world: u32) -> Variant {
    Variant::new(world).dtype(E4M3).scales(Scales::Rows)
}

/// As many bytes cross links as must, and four of them for each row are its scale.
fn crosses_links_once(program: &Program, world: u32) {
    let case = Case::new(program, &variant(world), &[29], 24, 16);
    let (kernel, plan) = (&case.kernel, &case.plans[0]);
    let volume = Volume::of(kernel, plan);
    assert_eq!(volume.total(), volume.least_total(), "{}", program.name);
    let gathered = |scale: bool| {
        let mut buffers = kernel.buffers.iter();
        let found =
            buffers.position(|buffer| buffer.kind.is_gathered() && buffer.kind.is_scale() == scale);
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
