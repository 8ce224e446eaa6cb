//! The knobs of the GEMM itself: tiles of every width, shared and in turn, through the verifier, the emitter and the
//! gates; and on a GPU against the f64 reference.

#[path = "common/gates.rs"]
mod gates;

use counterflow::codegen::lower::lower;
use counterflow::codegen::pipeline;
use counterflow::codegen::verify;
use counterflow::cuda::Gpu;
use counterflow::gpus;
use counterflow::jit::Compiler;
use counterflow::{Communicator, Dtype, Error, Machine, Program, Shape, Variant, schedules};
use gates::{all_pass, nvidia};
use std::time::Duration;

/// A tile and whether it is taken in turn.
type Kind = ((u32, u32), bool);

fn variant((tile, ping_pong): Kind) -> Variant {
    Variant::new(1)
        .set("tiles", tile)
        .set("gemm.ping_pong", ping_pong)
}

fn gemm(kinds: &[Kind]) -> Vec<(Program, Variant)> {
    let case = |kind: &Kind| (schedules::gemm(), variant(*kind));
    kinds.iter().map(case).collect()
}

#[test]
fn one_tile_of_each_sort_passes_the_gates() {
    all_pass(&gemm(&[
        ((128, 224), false),
        ((128, 144), false),
        ((256, 128), false),
        ((128, 160), true),
        ((64, 64), true),
    ]));
}

#[test]
#[ignore = "minutes of compiling"]
fn every_tile_passes_the_gates() {
    let mut kinds = Vec::new();
    for columns in (16..=256).step_by(16) {
        kinds.push(((64, columns), true));
        kinds.push(((128, columns), false));
        if columns <= 160 {
            kinds.push(((128, columns), true));
        }
        if columns <= 176 {
            kinds.push(((256, columns), false));
        }
    }
    let mut cases = gemm(&kinds);
    cases.extend(
        gemm(&kinds)
            .into_iter()
            .map(|(program, variant)| (program, variant.dtype(Dtype::F16))),
    );
    all_pass(&cases);
}

fn fine<T>(result: Result<T, Error>) -> T {
    result.unwrap_or_else(|error| panic!("{error}\n{}", error.help().unwrap_or_default()))
}

/// Runs every shape on one GPU: its median times, compared with the reference first if asked.
fn run(program: &Program, variant: &Variant, shapes: &[Shape], compared: bool) -> Vec<Duration> {
    let kernel = lower(program, variant)
        .and_then(verify::kernel)
        .unwrap_or_else(|error| panic!("{error}"));
    let pipeline = pipeline::build(&kernel)
        .and_then(pipeline::verify)
        .unwrap_or_else(|error| panic!("{error}"));
    let plan = |shape| {
        verify::plan(&kernel, shape, &Machine::h200()).unwrap_or_else(|error| panic!("{error}"))
    };
    let plans: Vec<_> = shapes.iter().map(plan).collect();
    let ranks = fine(Communicator::local(1));
    let launched = fine(gpus::run(
        &ranks,
        &fine(Compiler::find()),
        &pipeline,
        plans.iter().collect(),
        &kernel,
        7,
    ));
    if compared {
        let mut worst = (0.0f64, 0.0f64);
        for (launch, plan) in plans.iter().enumerate() {
            let compared = fine(launched.run.compare(launch)).expect("a reference");
            assert!(
                compared.relative < 4e-3,
                "{variant} {}: {compared:?}",
                plan.shape
            );
            worst = (
                worst.0.max(compared.relative),
                worst.1.max(compared.of_allowed),
            );
        }
        println!(
            "  {variant}: relative {:.2e}, {:.0} % of what rounding allows",
            worst.0,
            worst.1 * 100.0
        );
    }
    launched.times
}

/// Whether there is a GPU; without one the test says that it was skipped.
fn on_gpu() -> bool {
    match Gpu::open(0).and_then(|gpu| gpu.must_be_hopper()) {
        Ok(()) => true,
        Err(error) => {
            nvidia::skipped(&error.to_string());
            false
        }
    }
}

#[test]
fn every_sort_of_tile_agrees_with_the_reference_on_ragged_shapes() {
    if !on_gpu() {
        return;
    }
    let kinds = [
        ((128, 224), false),
        ((128, 144), false),
        ((128, 16), false),
        ((256, 128), false),
        ((256, 176), false),
        ((128, 160), true),
        ((128, 112), true),
        ((64, 64), true),
        ((64, 32), true),
        ((64, 256), true),
    ];
    for kind in kinds {
        for (n, k) in [(8, 8), (264, 72), (1032, 1000), (2056, 520), (256, 2048)] {
            let shapes = [1, 7, 127, 129, 1000, 2049].map(|m| Shape::new(m, n, k));
            run(&schedules::gemm(), &variant(kind), &shapes, true);
        }
    }
    let f16 = variant(((128, 160), true)).dtype(Dtype::F16);
    run(
        &schedules::gemm(),
        &f16,
        &[Shape::new(1000, 1032, 1000)],
        true,
    );
}

/// Times of larger shapes, without comparing.
#[test]
#[ignore = "takes long; prints times"]
fn times() {
    if !on_gpu() {
        return;
    }
    let large: &[Kind] = &[
        ((128, 256), false),
        ((128, 224), false),
        ((128, 192), false),
        ((128, 160), false),
        ((256, 128), false),
        ((128, 160), true),
        ((128, 144), true),
        ((128, 128), true),
        ((128, 112), true),
    ];
    let small: &[Kind] = &[
        ((64, 64), true),
        ((64, 32), true),
        ((64, 128), true),
        ((128, 64), false),
        ((128, 128), false),
    ];
    for (kinds, shapes) in [
        (
            large,
            &[
                (4096, 4096, 4096),
                (8192, 8192, 8192),
                (2048, 7168, 8192),
                (8192, 8192, 2048),
                (2048, 2560, 8192),
                (512, 7168, 8192),
            ][..],
        ),
        (
            small,
            &[
                (1, 8192, 8192),
                (16, 8192, 8192),
                (64, 8192, 8192),
                (128, 8192, 8192),
                (256, 8192, 8192),
                (64, 4096, 8192),
                (64, 8192, 2048),
            ],
        ),
    ] {
        let shapes: Vec<_> = shapes
            .iter()
            .map(|(m, n, k)| Shape::new(*m, *n, *k))
            .collect();
        for kind in kinds {
            let times = run(&schedules::gemm(), &variant(*kind), &shapes, false);
            for (shape, time) in shapes.iter().zip(times) {
                println!("  {shape} {kind:?}: {:.1} us", time.as_secs_f64() * 1e6);
            }
        }
    }
}
