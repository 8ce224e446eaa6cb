//! How long planning, checking, predicting, emitting, compiling and emulating take. The limits are in `notes/checks`.

use counterflow::codegen::sm90;
use counterflow::codegen::verify;
use counterflow::codegen::warp::Pipeline;
use counterflow::codegen::{cuda, lower, model};
use counterflow::jit::{Cache, Compiler};
use counterflow::{
    Checked, Kernel, Machine, Plan, Program, Series, Shape, Variant, cpu, launch, schedules,
};
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

fn series(kernel: &Checked<Kernel>, most: &Shape) -> Series {
    verify::series(kernel, most, &Machine::h200()).expect("is safe")
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

/// The same for the all-reduce, which hands tiles over twice.
#[divan::bench]
fn program_to_checked_plan_gemm_ar() -> Checked<Plan> {
    let lowered = lower::lower(&schedules::gemm_ar(), &Variant::new(8)).expect("lowers");
    let kernel = verify::kernel(lowered).expect("is safe");
    plan(&kernel, black_box(&Shape::new(16384, 8192, 8192)))
}

/// The largest domain there is.
#[divan::bench(sample_count = 5)]
fn world_72_checked() -> Checked<Plan> {
    plan(&kernel(72), black_box(&Shape::new(16384, 8192, 8192)))
}

/// What the timeline of that costs.
#[divan::bench(sample_count = 3)]
fn world_72_predicted(bencher: Bencher) {
    let kernel = kernel(72);
    let plan = plan(&kernel, &Shape::new(16384, 8192, 8192));
    bencher.bench(|| model::predict(&kernel, black_box(&plan), &Machine::h200()).expect("ends"));
}

/// A launch with an M whose counts are known: only numbers are new.
#[divan::bench]
fn new_m_known_counts(bencher: Bencher) {
    let shape = |m| Shape::new(m, 8192, 8192);
    let series = series(&kernel(8), &shape(16384));
    let mut m = 16384;
    bencher.bench_local(|| {
        m = if m == 16384 { 16380 } else { m + 1 };
        series.plan(black_box(&shape(m))).expect("is safe")
    });
}

/// A launch with an M whose counts were never seen.
#[divan::bench(args = [512, 2048, 16384])]
fn new_m_unknown_counts(bencher: Bencher, m: u32) {
    let kernel = kernel(8);
    let most = Shape::new(32768, 8192, 8192);
    bencher
        .with_inputs(|| series(&kernel, &most))
        .bench_local_values(|series| series.plan(black_box(&Shape::new(m, 8192, 8192))));
}

/// Four emulated ranks at 1024³, with numbers and watching every access.
#[divan::bench(sample_count = 5)]
fn emulator_4_ranks_1024(bencher: Bencher) {
    let kernel = kernel(4);
    let series = series(&kernel, &Shape::new(1024, 1024, 1024));
    let plan = series.plan(series.most()).expect("is safe");
    bencher.bench(|| cpu::run(&series, vec![&plan], 1).expect("runs"));
}

/// The same without numbers.
#[divan::bench]
fn emulator_tags_only(bencher: Bencher) {
    let kernel = kernel(4);
    let series = series(&kernel, &Shape::new(1024, 1024, 1024));
    let plan = series.plan(series.most()).expect("is safe");
    bencher.bench(|| cpu::interleave(&series, &[&plan], 1).expect("runs"));
}

/// The library, by name.
const KERNELS: [&str; 4] = ["gemm", "ag_gemm", "gemm_rs", "gemm_ar"];

fn built(name: &str) -> Checked<Pipeline> {
    let named = |made: &&fn() -> Program| made().name == name;
    let program = schedules::ALL.iter().find(named).expect("a schedule")();
    let variant = Variant::new(4).set("tiles", (128, 256));
    let kernel = lower::lower(&program, &variant).and_then(verify::kernel);
    kernel
        .and_then(|kernel| sm90::build(&kernel))
        .and_then(verify::pipeline)
        .expect("is safe")
}

/// CUDA text of a checked warp level.
#[divan::bench(args = KERNELS)]
fn emit(bencher: Bencher, name: &str) {
    let pipeline = built(name);
    bencher.bench(|| cuda::emit(black_box(&pipeline)));
}

/// The warp level of a checked kernel, built and checked.
#[divan::bench(args = KERNELS, sample_count = 20)]
fn warp_level(bencher: Bencher, name: &str) {
    let kernel = built(name).kernel.clone();
    bencher.bench(|| sm90::build(black_box(&kernel)).and_then(verify::pipeline));
}

/// That text to machine code, nothing cached. Nothing where NVRTC is not there.
#[divan::bench(args = KERNELS, sample_count = 5, sample_size = 1)]
fn nvrtc_cold(bencher: Bencher, name: &str) {
    let source = cuda::emit(&built(name));
    let Ok(compiler) = Compiler::find() else {
        return;
    };
    let compiler = compiler.with_cache(Cache::off());
    bencher.bench(|| launch::compile(&compiler, black_box(&source)).expect("compiles"));
}

/// The same from the cache on disk.
#[divan::bench(args = KERNELS)]
fn nvrtc_cache_hit(bencher: Bencher, name: &str) {
    let source = cuda::emit(&built(name));
    let Ok(compiler) = Compiler::find() else {
        return;
    };
    let dir = std::env::temp_dir().join(format!("counterflow-bench-{}", std::process::id()));
    let compiler = compiler.with_cache(Cache::at(&dir));
    launch::compile(&compiler, &source).expect("compiles");
    bencher.bench(|| launch::compile(&compiler, black_box(&source)).expect("compiles"));
    let _ = std::fs::remove_dir_all(dir);
}
