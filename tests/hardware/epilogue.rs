//! The math after the dot, and operands whose rows are contiguous: right for shapes that nothing divides, and what they
//! cost beside the product alone.

use crate::case::Case;
use crate::gpus::{self, loopback};
use crate::{epilogues, fine};
use counterflow::jit::Compiler;
use counterflow::{Dtype, Layout, Program, Shape, Variant, schedules};

const LIBRARY: [fn() -> Program; 3] = [
    schedules::linear_gelu,
    schedules::linear_residual,
    schedules::wgrad,
];

fn agrees(program: &Program, dtype: Dtype, ranks: u32) {
    let Some(world) = loopback(ranks) else { return };
    let compiler = fine(Compiler::find());
    // Both operands of a weight's gradient have contiguous rows: whole 16 bytes of them.
    let (layout, rows) = if program.name == "wgrad" {
        (Layout::Tn, [1000, 8, 136, 2056])
    } else {
        (Layout::Nt, [1000, 1, 127, 2049])
    };
    for (n, k) in [(264, 1096), (520, 72)] {
        let shapes = rows.map(|m| Shape::new(m, n, k).up_to(rows[3]));
        let variant = Variant::new(ranks).dtype(dtype).layout(layout);
        let case = Case::new(program, &variant, &shapes, world.sharing);
        let launched = fine(counterflow::gpus::run(
            &world.ranks,
            &compiler,
            &case.pipeline,
            case.plans.iter().collect(),
            &case.kernel,
            u64::from(n),
        ));
        let mut worst: f64 = 0.0;
        for launch in 0..case.plans.len() {
            let compared = fine(launched.run.compare(launch)).expect("a reference");
            worst = worst.max(compared.of_allowed);
        }
        println!(
            "  {:15} {dtype} n {n} k {k}, world {ranks}: at most {:.0} % of what rounding allows",
            program.name,
            worst * 100.0
        );
    }
}

#[test]
fn every_epilogue_agrees_with_the_reference() {
    for schedule in LIBRARY.iter().chain(&epilogues::ALL) {
        let program = schedule();
        let ranks = if program.name == "gemm_rs_gelu" { 3 } else { 1 };
        for dtype in [Dtype::Bf16, Dtype::F16] {
            agrees(&program, dtype, ranks);
        }
    }
}

#[test]
#[ignore = "prints times"]
fn costs() {
    let Some(world) = gpus::world(1) else { return };
    let compiler = fine(Compiler::find());
    let plain = Variant::new(1).set("tiles", (128, 256));
    let [nn, tn] = [Layout::Nn, Layout::Tn].map(|layout| plain.clone().layout(layout));
    let mut all = vec![
        ("gemm".to_string(), schedules::gemm(), plain.clone()),
        ("gemm nn".into(), schedules::gemm(), nn),
        ("gemm tn".into(), schedules::gemm(), tn),
    ];
    for schedule in LIBRARY.iter().chain(&epilogues::ALL) {
        let program = schedule();
        let layout = if program.name == "wgrad" {
            Layout::Tn
        } else {
            Layout::Nt
        };
        if program.name != "gemm_rs_gelu" {
            all.push((
                program.name.clone(),
                program,
                Variant::new(1).layout(layout),
            ));
        }
    }
    for (m, n, k) in [(8192, 8192, 2048), (4096, 4096, 4096)] {
        let mut rounds: Vec<Vec<f64>> = vec![Vec::new(); all.len()];
        for round in 0..3 {
            for at in 0..all.len() {
                let at = (at + round) % all.len();
                let (_, program, variant) = &all[at];
                let case = Case::new(program, variant, &[Shape::new(m, n, k)], 1);
                let launched = fine(counterflow::gpus::run(
                    &world.ranks,
                    &compiler,
                    &case.pipeline,
                    case.plans.iter().collect(),
                    &case.kernel,
                    3,
                ));
                rounds[at].push(launched.times[0].as_secs_f64() * 1e6);
            }
        }
        for ((name, ..), mut times) in all.iter().zip(rounds) {
            times.sort_by(f64::total_cmp);
            println!(
                "  {name:16} {m}x{n}x{k}: {:.1} us ({:.1} - {:.1})",
                times[1], times[0], times[2]
            );
        }
    }
}
