//! The math after the dot, and operands that are MN-major: right for shapes that nothing divides.

use crate::case::Case;
use crate::gpus::loopback;
use crate::{epilogues, fine};
use counterflow::jit::Compiler;
use counterflow::{Dtype, Layout, Program, Shape, Variant, schedules};

const LIBRARY: [fn() -> Program; 3] = [
    schedules::linear_gelu,
    schedules::linear_residual,
    schedules::wgrad,
];

/// Every schedule with its kinds, and how many ranks run it.
pub fn kinds() -> Vec<(Program, Variant)> {
    let mut kinds = Vec::new();
    for schedule in LIBRARY.iter().chain(&epilogues::ALL) {
        let program = schedule();
        let ranks = if program.name == "gemm_rs_gelu" { 3 } else { 1 };
        // Both operands of a weight's gradient have contiguous rows.
        let layout = if program.name == "wgrad" {
            Layout::Tn
        } else {
            Layout::Nt
        };
        for dtype in [Dtype::Bf16, Dtype::F16] {
            let variant = Variant::new(ranks).dtype(dtype).layout(layout);
            kinds.push((program.clone(), variant));
        }
        // With columns on the instruction's M side: one block of them a warpgroup, and two.
        for tile in [(208, 128), (80, 256)] {
            let variant = Variant::new(ranks).layout(layout).set("tiles", tile);
            kinds.push((program.clone(), variant));
        }
    }
    kinds
}

fn agrees(program: &Program, variant: &Variant) {
    let Some(world) = loopback(variant.world) else {
        return;
    };
    let compiler = fine(Compiler::find());
    // Contiguous rows are whole 16 bytes.
    let rows = match variant.layout {
        Layout::Tn => [1000, 8, 136, 2056],
        Layout::Nt | Layout::Nn => [1000, 1, 127, 2049],
    };
    for (n, k) in [(264, 1096), (520, 72)] {
        let shapes = rows.map(|m| Shape::new(m, n, k).up_to(rows[3]));
        let case = Case::new(program, variant, &shapes, world.sharing);
        let launched = fine(counterflow::gpus::run(
            &world.ranks,
            &compiler,
            &case.pipeline,
            &case.series,
            case.plans.iter().collect(),
            u64::from(n),
        ));
        let mut worst: f64 = 0.0;
        for launch in 0..case.plans.len() {
            let compared = fine(launched.run.compare(launch)).expect("a reference");
            worst = worst.max(compared.of_allowed);
        }
        println!(
            "  {:15} {variant} n {n} k {k}: at most {:.0} % of what rounding allows",
            program.name,
            worst * 100.0
        );
    }
}

#[test]
fn every_epilogue_agrees_with_the_reference() {
    for (program, variant) in kinds() {
        agrees(&program, &variant);
    }
}
