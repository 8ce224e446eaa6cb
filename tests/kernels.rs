//! What is emitted, compiled for Hopper, one kernel of each kind: no spill, no slow code, and as many instructions of
//! each sort as the tile asks for. The whole matrix is compiled by the ignored test.

#[path = "common/gates.rs"]
mod gates;

use counterflow::codegen::cuda;
use counterflow::jit::{Compiled, Probes, Source, Target};
use counterflow::{Dtype, Error, Layout, Variant, launch, schedules};
use gates::{all_pass, checked, nvidia};

#[test]
fn one_of_each_kind_passes_the_gates() {
    let variant = Variant::new(4).set("tiles", (128, 256));
    all_pass(&[
        (schedules::gemm(), variant.clone()),
        (schedules::gemm(), variant.clone().layout(Layout::Nn)),
        (schedules::gemm(), variant.clone().layout(Layout::Tn)),
        (schedules::ag_gemm(), variant.clone()),
        (schedules::gemm_rs(), variant.clone()),
        (schedules::gemm_ar(), variant),
    ]);
}

/// What tests add to a kernel is not in others: the same instructions as from a prelude without a word of it.
#[test]
fn probes_leave_no_instruction_where_they_are_off() {
    let Some(compiler) = nvidia::compiler() else {
        return;
    };
    let source = cuda::emit(&checked(
        &schedules::gemm_rs(),
        &Variant::new(4).set("tiles", (128, 256)),
    ));
    let prelude = cuda::prelude();
    let probe = |line: &&str| {
        ["jitter();", "trace_store(", "trace_read<", "trace_late("]
            .iter()
            .any(|call| line.trim_start().starts_with(call))
    };
    let (probes, rest): (Vec<&str>, Vec<&str>) = prelude.lines().partition(probe);
    assert!(probes.len() > 10, "{probes:?}");
    let bare = rest.join("\n");
    let headers = [(cuda::PRELUDE, bare.as_str())];
    let bare = Source::new(&source.entry, &source.text).with(&headers);
    let bare = compiler.compile(&bare, Target::Sm90a);
    let sass = |compiled: Result<Compiled, Error>| {
        nvidia::sass(&compiled.unwrap_or_else(|error| panic!("{error}")).cubin)
    };
    let with = |probes| launch::compile(&compiler.clone().with_probes(probes), &source);
    let jitter = Probes {
        jitter: Some(1),
        trace: false,
    };
    let (Some(bare), Some(off), Some(on)) = (
        sass(bare),
        sass(with(Probes::default())),
        sass(with(jitter)),
    ) else {
        return;
    };
    assert!(bare == off, "probes cost instructions");
    let pauses = [&off, &on].map(|sass| sass.count("NANOSLEEP"));
    println!("{pauses:?} pauses");
    assert!(pauses[1] > pauses[0] + 30, "{pauses:?} pauses");
}

#[test]
#[ignore = "a minute of compiling; f16 gemm_rs and gemm_ar at 128x256 still spill and fail it"]
fn every_tile_and_type_passes_the_gates() {
    let mut cases = Vec::new();
    let programs = [
        schedules::gemm(),
        schedules::ag_gemm(),
        schedules::ag_gemm_pull(),
        schedules::gemm_rs(),
        schedules::gemm_ar(),
    ];
    for program in programs {
        for dtype in [Dtype::Bf16, Dtype::F16] {
            for tile in [(128, 128), (128, 256)] {
                // The world is a parameter of the text.
                let variant = Variant::new(4).dtype(dtype).set("tiles", tile);
                cases.push((program.clone(), variant.clone()));
                cases.push((program.clone(), variant.clone().layout(Layout::Nn)));
                if !program.name.starts_with("ag_") {
                    cases.push((program.clone(), variant.layout(Layout::Tn)));
                }
            }
        }
    }
    all_pass(&cases);
}
