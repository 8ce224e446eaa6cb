//! How long planning, checking, predicting and emulating take. The limits are in the README.

#[path = "../tests/common/schedules.rs"]
mod schedules;

use counterflow::codegen::{lower, verify};
use counterflow::{Checked, Kernel, Machine, Plan, Shape, Variant};
use divan::{Bencher, black_box};

fn main() {
    divan::main();
}

fn kernel(world: u32) -> Checked<Kernel> {
    let lowered = lower::lower(&schedules::ag_gemm(), &Variant::new(world)).expect("lowers");
    verify::kernel(lowered).expect("is safe")
}

fn plan(kernel: &Checked<Kernel>, shape: &Shape) -> Checked<Plan> {
    verify::plan(kernel, shape, &Machine::h200()).expect("is safe")
}

/// From what the user wrote to a checked plan.
#[divan::bench(args = [2, 4, 8])]
fn program_to_checked_plan(world: u32) -> Checked<Plan> {
    plan(&kernel(world), black_box(&Shape::new(16384, 8192, 8192)))
}

/// The same for the reduce-scatter, whose tiles are handed over one by one.
#[divan::bench]
fn program_to_checked_plan_gemm_rs() -> Checked<Plan> {
    let lowered = lower::lower(&schedules::gemm_rs(), &Variant::new(8)).expect("lowers");
    let kernel = verify::kernel(lowered).expect("is safe");
    plan(&kernel, black_box(&Shape::new(16384, 8192, 8192)))
}

/// The largest domain there is.
#[divan::bench(sample_count = 5)]
fn world_72_checked() -> Checked<Plan> {
    plan(&kernel(72), black_box(&Shape::new(16384, 8192, 8192)))
}

/// A shape never seen on a variant that is checked.
#[divan::bench]
fn new_m(bencher: Bencher) {
    let kernel = kernel(8);
    bencher.bench(|| plan(&kernel, black_box(&Shape::new(16000, 8192, 8192))));
}
