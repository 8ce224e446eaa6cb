//! The timeline model next to what was measured: cuBLAS alone, and the time the model itself takes.
//!
//! Every shape takes the best of the tile shapes a tuner would try. Run with `--release`.

#[path = "../../codegen/tests/fixtures/features.rs"]
mod schedules;

use counterflow_codegen::kernel::Kernel;
use counterflow_codegen::lower::lower;
use counterflow_codegen::machine::Machine;
use counterflow_codegen::plan::Plan;
use counterflow_codegen::program::Program;
use counterflow_codegen::shape::Shape;
use counterflow_codegen::variant::Variant;
use counterflow_timeline::model::predict;
use std::time::Instant;

/// M, N, K and microseconds of cuBLAS alone in short runs.
const SHORT: [(u32, u32, u32, f64); 21] = [
    (8192, 8192, 8192, 1371.3),
    (6144, 6144, 6144, 568.4),
    (4096, 4096, 4096, 171.9),
    (2048, 2048, 2048, 26.2),
    (1, 8192, 8192, 36.4),
    (16, 8192, 8192, 36.7),
    (64, 8192, 8192, 39.4),
    (128, 8192, 8192, 39.8),
    (256, 8192, 8192, 49.4),
    (2048, 14336, 8192, 590.1),
    (8192, 14336, 8192, 2644.1),
    (2048, 2560, 8192, 106.4),
    (8192, 2560, 8192, 418.7),
    (2048, 8192, 7168, 295.9),
    (8192, 8192, 7168, 1208.3),
    (2048, 8192, 2048, 91.6),
    (8192, 8192, 2048, 356.0),
    (2048, 12288, 12288, 750.8),
    (8192, 12288, 12288, 3211.8),
    (2048, 16384, 13312, 1089.8),
    (8192, 16384, 13312, 5118.0),
];

/// The same beside three other GPUs at work, all near their power limit.
const BESIDE_OTHERS: [(u32, u32, u32, f64); 36] = [
    (512, 7168, 8192, 84.1),
    (512, 8192, 7168, 82.1),
    (1024, 7168, 8192, 176.5),
    (1024, 8192, 7168, 159.2),
    (2048, 7168, 8192, 302.3),
    (2048, 8192, 7168, 311.0),
    (4096, 7168, 8192, 614.9),
    (4096, 8192, 7168, 623.1),
    (8192, 7168, 8192, 1351.3),
    (8192, 8192, 7168, 1283.8),
    (16384, 7168, 8192, 2703.5),
    (16384, 8192, 7168, 2667.0),
    (512, 13312, 16384, 348.2),
    (512, 16384, 13312, 292.1),
    (1024, 13312, 16384, 583.2),
    (1024, 16384, 13312, 569.3),
    (2048, 13312, 16384, 1275.8),
    (2048, 16384, 13312, 1295.7),
    (4096, 13312, 16384, 2496.2),
    (4096, 16384, 13312, 2405.3),
    (8192, 13312, 16384, 5160.3),
    (8192, 16384, 13312, 5267.6),
    (16384, 13312, 16384, 10542.5),
    (16384, 16384, 13312, 10500.9),
    (512, 12288, 12288, 273.7),
    (512, 12288, 12288, 237.2),
    (1024, 12288, 12288, 392.9),
    (1024, 12288, 12288, 396.2),
    (2048, 12288, 12288, 836.3),
    (2048, 12288, 12288, 807.6),
    (4096, 12288, 12288, 1768.3),
    (4096, 12288, 12288, 1651.3),
    (8192, 12288, 12288, 3610.8),
    (8192, 12288, 12288, 3413.9),
    (16384, 12288, 12288, 7285.1),
    (16384, 12288, 12288, 7013.5),
];

const TILES: [(u32, u32); 10] = [
    (128, 256),
    (256, 128),
    (128, 192),
    (192, 128),
    (128, 160),
    (128, 128),
    (128, 112),
    (128, 64),
    (64, 256),
    (64, 128),
];

fn kernel(program: &Program, variant: &Variant) -> Kernel {
    lower(program, variant).unwrap_or_else(|found| panic!("{found}"))
}

fn table(name: &str, machine: &Machine, shapes: &[(u32, u32, u32, f64)]) {
    println!(
        "{name}\n{:>6} {:>6} {:>6} {:>10} {:>10} {:>6}  tile",
        "M", "N", "K", "measured", "model", "ratio"
    );
    let mut logs = Vec::new();
    for (m, n, k, measured) in shapes {
        let best = TILES
            .iter()
            .map(|tile| {
                let kernel = kernel(&schedules::gemm_tiles(*tile), &Variant::new(1));
                let plan = Plan::new(&kernel, &Shape::new(*m, *n, *k), machine)
                    .unwrap_or_else(|found| panic!("{found}"));
                let timeline = predict(&kernel, &plan, machine).unwrap_or_else(|e| panic!("{e}"));
                (timeline.total * 1e6, tile)
            })
            .min_by(|a, b| a.0.total_cmp(&b.0));
        let Some((model, tile)) = best else { continue };
        let ratio = model / measured;
        logs.push(ratio.ln());
        println!(
            "{m:>6} {n:>6} {k:>6} {measured:>10.1} {model:>10.1} {ratio:>6.3}  {}x{}",
            tile.0, tile.1
        );
    }
    let mean = logs.iter().sum::<f64>() / logs.len() as f64;
    let spread = logs.iter().map(|log| (log - mean).powi(2)).sum::<f64>() / logs.len() as f64;
    println!(
        "geometric mean {:.3}, spread {:.3}\n",
        mean.exp(),
        spread.sqrt()
    );
}

fn timed(program: &Program, world: u32, shape: &Shape) {
    let machine = Machine::h200();
    let start = Instant::now();
    let kernel = kernel(program, &Variant::new(world));
    let plan = Plan::new(&kernel, shape, &machine).unwrap_or_else(|found| panic!("{found}"));
    let planned = start.elapsed().as_secs_f64();
    let timeline = predict(&kernel, &plan, &machine).unwrap_or_else(|e| panic!("{e}"));
    let predicted = start.elapsed().as_secs_f64() - planned;
    let steps: usize = plan.agents.iter().map(|agent| agent.steps.len()).sum();
    println!("{}\n  {}", timeline.title, timeline.summary());
    println!(
        "  {steps} steps, {} events; planned in {planned:.2} s, predicted in {predicted:.2} s",
        timeline.events.len()
    );
    let start = Instant::now();
    let trace = timeline.trace();
    let traced = start.elapsed().as_secs_f64();
    println!(
        "  trace of {:.1} MB in {traced:.2} s",
        trace.len() as f64 / 1e6
    );
}

fn main() {
    let (cool, hot) = (Machine::h200(), Machine::h200().at_power_limit());
    table("cuBLAS alone, short runs", &cool, &SHORT);
    table(
        "cuBLAS alone, on all four GPUs at once",
        &cool,
        &BESIDE_OTHERS,
    );
    table("the same, at the power limit", &hot, &BESIDE_OTHERS);
    let shape = Shape::new(8192, 7168, 8192);
    for program in [
        schedules::push_all_gather(),
        schedules::pull(),
        schedules::ring_all_gather(),
    ] {
        timed(&program, 4, &shape);
    }
    for program in [
        schedules::slots_sum(),
        schedules::reduce_add(),
        schedules::two_shot(),
    ] {
        timed(&program, 4, &Shape::new(8192, 8192, 7168));
    }
    let shape = Shape::new(16384, 8192, 8192);
    for program in [
        schedules::push_all_gather(),
        schedules::slots_sum(),
        schedules::two_shot(),
    ] {
        timed(&program, 72, &shape);
    }
}
