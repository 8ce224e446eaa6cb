//! What the layers' own schedules become for Hopper: no spill, no slow code, and as many instructions of each sort as the tiles
//! ask for. Choices are the first options. And the side kernels, which keep what they have in registers.

// The common file is that of the runtime's tests, whose names the facade has, too.
extern crate counterflow as counterflow_runtime;

#[path = "../../runtime/tests/common/mod.rs"]
mod nvidia;
#[path = "../../tests/common/parallel.rs"]
mod parallel;
#[path = "../../codegen/tests/fixtures/wide.rs"]
mod wide;

use counterflow::codegen::cuda::{self, expected};
use counterflow::codegen::lower::lower;
use counterflow::codegen::{sm90, verify};
use counterflow::jit::{Source, Target, sass_checks};
use counterflow::quantise::{Granularity, Recipe, Scaling};
use counterflow::rule::{Fp8, ScaleRule};
use counterflow::{Dtype, Layout, Program, Variant, launch};
use counterflow_layers::{Norm, Normalization, schedules as ours, side};
use std::process::{Command, Output};

/// Each schedule, with the layout in which a layer has it.
const ALL: [(fn() -> Program, Layout); 11] = [
    (ours::sum_gradients, Layout::Nt),
    (ours::gather_rows, Layout::Nt),
    (ours::reduce_scatter_bias, Layout::Nt),
    (ours::gemm_bias, Layout::Nt),
    (ours::ag_gemm_bias, Layout::Nt),
    (ours::ag_gemm_pull_bias, Layout::Nt),
    (ours::ag_gemm_ring_bias, Layout::Nt),
    (ours::ag_gemm_double_ring_bias, Layout::Nt),
    (ours::gemm_rs_bias, Layout::Nt),
    (ours::wgrad_rs, Layout::Tn),
    (ours::gemm_rs_beside_gather, Layout::Nn),
];

#[test]
fn the_schedules_of_layers_compile_well() {
    let Some(compiler) = nvidia::caching_compiler() else {
        return;
    };
    let wide = wide::wide();
    let worlds = if wide { &[2, 4][..] } else { &[4] };
    let of_world = |one| worlds.iter().map(move |world| (one, *world));
    let cases: Vec<_> = ALL.into_iter().flat_map(of_world).collect();
    let made = parallel::in_parallel(cases.len(), |at| {
        let ((program, layout), world) = cases[at];
        let (program, variant) = (program(), Variant::new(world).layout(layout));
        let program = program.tabulated(world);
        let kernel = lower(&program, &variant).and_then(verify::kernel);
        let pipeline = kernel.and_then(|kernel| sm90::build(&kernel));
        let pipeline = pipeline.and_then(verify::pipeline);
        let name = format!("{} {variant}", program.name);
        let pipeline = pipeline.unwrap_or_else(|error| panic!("{name}: {error}"));
        let compiled = launch::compile(&compiler, &cuda::emit(&pipeline));
        let compiled = compiled.unwrap_or_else(|error| panic!("{name}: {error}"));
        (name, compiled, expected::instructions(&pipeline))
    });
    let cubins: Vec<&[u8]> = made.iter().map(|(_, made, _)| made.cubin()).collect();
    let Some(instructions) = nvidia::kept_sass_of_all(&cubins) else {
        return;
    };
    for ((name, compiled, expected), sass) in made.iter().zip(instructions) {
        let mut found = sass_checks::findings(compiled, Some(&sass));
        found.extend(sass_checks::in_counts(&sass, expected));
        assert!(found.is_empty(), "{name}: {found:#?}");
    }
}

#[test]
fn the_side_kernels_compile_and_keep_what_they_have_in_registers() {
    let Some(compiler) = nvidia::caching_compiler() else {
        return;
    };
    let layer = Norm::new(Normalization::LayerNorm);
    let rule = ScaleRule::transformer_engine(Fp8::E4M3);
    let recipe = |scaling| Recipe::new(rule, scaling, Dtype::Bf16);
    let blocks = Scaling::Current(Granularity::BLOCK_1X128);
    let texts = [
        ("layer norm", side::norm_text(&layer), 4),
        (
            "RMS norm",
            side::norm_text(&Norm {
                zero_centered_gamma: true,
                ..Norm::new(Normalization::RmsNorm)
            }),
            4,
        ),
        (
            "a norm to codes, delayed scaling",
            side::coded_norm_text(&layer, &recipe(Scaling::Delayed)),
            2,
        ),
        (
            "a norm to codes, blocks",
            side::coded_norm_text(&layer, &recipe(blocks)),
            2,
        ),
        ("elements", side::elements_text(), 7),
        (
            "activations to codes",
            side::coded_elements_text(&recipe(Scaling::Delayed)),
            4,
        ),
        ("codes", side::codes_text(), 2),
        ("rope", side::rope_text(), 1),
        ("attention", side::attention_text(), 3),
        ("embedding", side::embedding_text(), 2),
        ("loss", side::loss_text(), 3),
    ];
    for (name, text, kernels) in texts {
        let source = Source::new("side", &text).with(&side::HEADERS);
        let compiled = compiler.compile(&source, Target::Sm90a);
        let compiled = compiled.unwrap_or_else(|error| {
            panic!("{name}: {error}\n{}", error.help().unwrap_or_default())
        });
        assert_eq!(compiled.facts.len(), kernels, "{name}");
        for kernel in &compiled.facts {
            println!("{}: {} registers", kernel.name, kernel.registers);
            assert_eq!(kernel.frame, 0, "{}: {}", kernel.name, compiled.log);
            // Two CTAs of 256 threads on an SM, or one of 512.
            assert!(kernel.registers <= 128, "{}", kernel.name);
        }
    }
}

/// A run on emulated ranks compiles what the same run will load on GPUs, which then needs no compiler.
#[test]
fn emulated_ranks_fill_the_cache_for_gpus() {
    if nvidia::compiler().is_none() {
        return;
    }
    let cache = nvidia::folder("fill");
    let mut example = std::env::current_exe().expect("this program");
    example.pop();
    example.pop();
    example.push("examples/layer");
    // Each kernel is compiled anew here. Those of a whole layer are more than twice as many as its MLP's, of which fused products
    // need half as many again as others.
    let whole = wide::wide();
    let run = |fill: &str, without_compiler: bool| -> Output {
        let mut command = Command::new(&example);
        let small = "--ranks 2 --iters 1 --seq-length 8 --hidden 32 --num-heads 4 --head-dim 16";
        command.args(small.split(' '));
        if !whole {
            command.args(["--layer-type", "LayerNormMLP", "--no-comm-overlap"]);
        }
        command
            .env("CUDA_VISIBLE_DEVICES", "")
            .env("COUNTERFLOW_CACHE", &cache);
        command.env("COUNTERFLOW_FILL", fill);
        if without_compiler {
            command.env("COUNTERFLOW_NVRTC", "off");
        }
        command.output().expect("`cargo test` builds the example")
    };
    let kernels = || {
        let found = std::fs::read_dir(&cache).map(|all| all.map(|one| one.expect("a file").path()));
        let all = found.into_iter().flatten();
        all.filter(|path| path.extension().is_some_and(|ext| ext == "cubin"))
            .collect::<Vec<_>>()
    };
    let said = |of: &Output| String::from_utf8_lossy(&of.stderr).into_owned();
    let done = run("1", false);
    assert!(done.status.success(), "{}", said(&done));
    assert_eq!(kernels().len(), 0, "two ranks are more than one");
    let done = run("2", false);
    assert!(done.status.success(), "{}", said(&done));
    let filled = kernels();
    // Products, what moves rows, and side kernels.
    let least = if whole { 16 } else { 6 };
    assert!(filled.len() >= least, "{filled:?}");
    let done = run("2", true);
    assert!(done.status.success(), "sealed: {}", said(&done));
    assert_eq!(kernels().len(), filled.len());
    std::fs::remove_file(&filled[0]).expect("removed");
    let done = run("2", true);
    assert!(
        !done.status.success() && said(&done).contains(" has no "),
        "{}",
        said(&done)
    );
    let done = run("two", false);
    assert!(
        said(&done).contains("COUNTERFLOW_FILL=two"),
        "{}",
        said(&done)
    );
    let _ = std::fs::remove_dir_all(cache);
}
