//! Every kernel of these tests, compiled ahead into a cache that a machine without a compiler can use.

use crate::case::{checked, variant_of};
use crate::right::{JITTER, JITTERED, KINDS, NN, TN};
use crate::{
    SCHEDULES, accumulate, chain, fine, fused, host, no_depth, own_shard, pulls, right, scratch,
    tiles, trials,
};
use counterflow::codegen::cuda::{self, CudaSource};
use counterflow::codegen::lower::lower;
use counterflow::codegen::{sm90, verify};
use counterflow::jit::{Compiler, Probes, Source, Target};
use counterflow::quantise::AllReduceNormBuilder;
use counterflow::tuned::{self, Tuned};
use counterflow::{Layout, Machine, Program, Shape, Variant, launch, schedules};
use std::collections::BTreeSet;
use std::sync::OnceLock;
use std::time::Instant;

type Wanted = Vec<(Probes, Program, Variant)>;

/// Each kernel of the suite, and of what is packed beside it: made once.
fn wanted() -> &'static Wanted {
    static WANTED: OnceLock<Wanted> = OnceLock::new();
    WANTED.get_or_init(of_all)
}

fn of_all() -> Wanted {
    let mut wanted = Vec::new();
    let none = Probes::default();
    let kinds = [
        (none, &KINDS[..]),
        (none, &NN),
        (none, &TN),
        (JITTER, &JITTERED),
        (fused::TRACE, &KINDS[..1]),
    ];
    for (probes, kinds) in kinds {
        for schedule in SCHEDULES {
            for kind in kinds {
                // A world of one needs no credits; otherwise the world is a parameter of the text.
                for world in 1..=4 {
                    let program = schedule();
                    // Rows of several shards lie apart, and a K that is not contiguous would cross from one to the next.
                    let by_rows =
                        ["mlp", "gemm_rs_across", "gemm_ar_one_shot"].contains(&&*program.name);
                    let by_rows = by_rows || program.name.starts_with("ag_");
                    if kind.2 == Layout::Tn && by_rows {
                        continue;
                    }
                    // CTAs move rows of memory, and there a shard of the weight has none.
                    if kind.2 != Layout::Nt && program.name == "fsdp_gemm" {
                        continue;
                    }
                    let variant = variant_of(&program, world, *kind);
                    wanted.push((probes, program, variant));
                }
            }
        }
    }
    let of = |probes| move |(program, variant)| (probes, program, variant);
    wanted.extend(
        tiles::variants()
            .chain(accumulate::variants())
            .map(of(none)),
    );
    wanted.extend(
        tiles::jittered()
            .chain(accumulate::jittered())
            .map(of(JITTER)),
    );
    for (program, variant) in chain::variants() {
        wanted.extend([none, JITTER].map(|probes| (probes, program.clone(), variant.clone())));
    }
    let more = pulls::kernels().chain(right::of_strangers());
    let more = more.chain(right::of_fp8()).chain(scratch::kernels());
    wanted.extend(more.chain(no_depth::kernels()));
    wanted.extend(trials::kernels().map(of(none)));
    wanted.extend(own_shard::kernels().map(of(none)));
    wanted.extend(crate::random::kernels().map(of(JITTER)));
    wanted.extend(crate::epilogue::kinds().into_iter().map(of(none)));
    wanted.extend(of_embed());
    wanted
}

/// A multicast object can put a machine out of service that others share, so no kernel of the suite needs one.
#[test]
fn no_kernel_of_the_suite_needs_multicast() {
    let wanted = wanted();
    assert!(wanted.len() > 500, "only {}", wanted.len());
    for (_, program, variant) in wanted {
        let kernel = lower(program, variant);
        let kernel = kernel.unwrap_or_else(|error| panic!("{}: {error}", program.name));
        assert!(!kernel.needs_multicast(), "{} {variant}", program.name);
    }
}

/// Each schedule of the suite has a kernel for GPUs in each layout that it is packed in: the first type and tile of each.
#[test]
fn each_schedule_has_a_kernel_in_each_layout_that_is_packed() {
    let mut seen = BTreeSet::new();
    for (_, program, variant) in wanted() {
        if seen.insert((program.name.clone(), variant.layout)) {
            let kernel = lower(program, variant).and_then(verify::kernel);
            let built = kernel.and_then(|kernel| sm90::build(&kernel));
            assert!(
                built.is_ok(),
                "{} {variant}: {:?}",
                program.name,
                built.err()
            );
        }
    }
    assert!(seen.len() > 60, "only {}", seen.len());
}

/// Fills the cache that `COUNTERFLOW_CACHE` names and seals it.
#[test]
#[ignore = "no test: `.ci/pack` runs it to compile the kernels that it packs"]
fn kernels_of_the_suite() {
    let compiler = fine(Compiler::find());
    let start = Instant::now();
    let mut wanted: Vec<(Probes, CudaSource)> = Vec::new();
    for (probes, program, variant) in self::wanted() {
        let (kernel, pipeline) = checked(program, variant);
        assert!(!kernel.needs_multicast(), "{} {variant}", program.name);
        let source = match probes.trace {
            true => cuda::emit_traced(&pipeline).source,
            false => cuda::emit(&pipeline),
        };
        let kernel = (*probes, source);
        if !wanted.contains(&kernel) {
            wanted.push(kernel);
        }
    }
    let compiled = crate::parallel::in_parallel(wanted.len(), |index| {
        let (probes, source) = &wanted[index];
        launch::compile(&compiler.clone().with_probes(*probes), source)
            .map(|made| made.cubin().len())
    });
    let bytes: usize = compiled.into_iter().map(fine).sum();
    for source in [
        &host::raw::EMPTY,
        &crate::beside::LATE,
        &crate::soak::TURN,
        &crate::litmus::LITMUS,
        &crate::trials::KEEPS,
    ] {
        fine(compiler.compile(source, Target::Sm90a));
    }
    fine(launch::compile_agree(&compiler));
    fine(crate::low_latency::compile(&compiler));
    let headers = AllReduceNormBuilder::headers();
    for text in crate::norms::texts() {
        let source = Source::new("all_reduce_norm", &text).with(&headers);
        fine(compiler.compile(&source, Target::Sm90a));
    }
    let text = include_str!("../../examples/embed.rs");
    let text = text
        .split("r#\"")
        .nth(1)
        .and_then(|text| text.split("\"#").next());
    let relu = Source::new("relu", text.expect("its kernel"));
    fine(compiler.compile(&relu, Target::Sm90a));
    fine(compiler.seal());
    println!(
        "  {} kernels, {} KiB of machine code, {:.0} s",
        wanted.len(),
        bytes >> 10,
        start.elapsed().as_secs_f64()
    );
}

/// What the example `embed` chooses on GPUs that so many of its ranks share.
fn of_embed() -> Vec<(Probes, Program, Variant)> {
    let tables = [fine(Tuned::embedded())];
    let shape = Shape::new(512, 128, 128);
    let mut kernels = Vec::new();
    for gpu in ["NVIDIA H200", "NVIDIA H100 80GB HBM3"] {
        for (schedule, sharing) in [schedules::ag_gemm, schedules::gemm_rs]
            .into_iter()
            .flat_map(|schedule| [1, 2, 4].map(|sharing| (schedule, sharing)))
        {
            let (program, base) = (schedule(), Variant::new(4));
            let machine = Machine {
                sms: Machine::h200().sms / sharing,
                ..Machine::h200()
            };
            let chosen = tuned::select(&tables, gpu, &program, &base, &shape, &machine);
            let variant = fine(chosen).variant;
            kernels.push((Probes::default(), program, variant));
        }
    }
    kernels
}
