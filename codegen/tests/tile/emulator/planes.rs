//! Operands of FP8 with a scale for each row, which travels with its row.

use super::meaning::agrees;
use super::schedules;
use crate::fixtures::wide::wide;
use counterflow_codegen::dtype::Dtype::E4M3;
use counterflow_codegen::interp::Says;
use counterflow_codegen::variant::{Scales, Variant};

fn variant(world: u32) -> Variant {
    Variant::new(world).dtype(E4M3).scales(Scales::Rows)
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
        }
    }
    assert_eq!(ran.len(), gathers.len(), "{ran:?}");
}
