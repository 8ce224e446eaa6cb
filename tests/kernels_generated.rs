//! The kernels people read: equal to what is emitted. `UPDATE_KERNELS=1` writes them.

use counterflow::codegen::cuda::{self, CudaSource};
use counterflow::codegen::lower::lower;
use counterflow::codegen::pipeline::{self, Pipeline};
use counterflow::codegen::program::Setting;
use counterflow::codegen::verify;
use counterflow::{Checked, Dtype, Layout, Program, Variant, schedules};
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

fn pipeline(program: &Program, dtype: Dtype, tile: (u32, u32), knob: Knob) -> Checked<Pipeline> {
    let mut variant = Variant::new(4).dtype(dtype).set("tiles", tile);
    match knob {
        Knob::None => {}
        Knob::Layout(layout) => variant = variant.layout(layout),
        Knob::Choices(choices, _) => {
            for (name, setting) in choices {
                variant = variant.set(name, *setting);
            }
        }
    }
    let kernel = lower(program, &variant).and_then(verify::kernel);
    let pipeline = kernel
        .and_then(|kernel| pipeline::build(&kernel))
        .and_then(pipeline::verify);
    pipeline.unwrap_or_else(|found| panic!("{}: {found}", program.name))
}

/// What else a variant decides, and what the file's name says of it.
#[derive(Clone, Copy)]
enum Knob {
    None,
    Layout(Layout),
    Choices(&'static [(&'static str, Setting)], &'static str),
}

type Kind = (fn() -> Program, Dtype, (u32, u32), Knob);

const PING_PONG: Knob = Knob::Choices(&[("gemm.ping_pong", Setting::One(1))], "ping_pong");
const CLUSTER: Knob = Knob::Choices(&[("gemm.cluster", Setting::Pair(2, 1))], "cluster");
const SPLIT: Knob = Knob::Choices(&[("gemm.split", Setting::One(3))], "split");

/// Both.
const QUAD: Knob = Knob::Choices(
    &[
        ("gemm.cluster", Setting::Pair(2, 1)),
        ("gemm.split", Setting::One(2)),
    ],
    "cluster-split",
);

/// The first of each kind.
const KERNELS: [Kind; 20] = [
    (schedules::gemm, Dtype::Bf16, (128, 256), Knob::None),
    (
        schedules::gemm,
        Dtype::Bf16,
        (128, 256),
        Knob::Layout(Layout::Nn),
    ),
    (
        schedules::gemm,
        Dtype::Bf16,
        (128, 256),
        Knob::Layout(Layout::Tn),
    ),
    (schedules::gemm, Dtype::Bf16, (128, 256), CLUSTER),
    (schedules::gemm, Dtype::Bf16, (128, 224), Knob::None),
    (schedules::gemm, Dtype::Bf16, (128, 160), PING_PONG),
    (schedules::gemm, Dtype::Bf16, (208, 128), Knob::None),
    (schedules::gemm, Dtype::Bf16, (64, 64), Knob::None),
    (schedules::gemm, Dtype::Bf16, (64, 64), SPLIT),
    (schedules::gemm, Dtype::Bf16, (128, 128), SPLIT),
    (schedules::gemm, Dtype::Bf16, (128, 192), QUAD),
    (schedules::gemm, Dtype::F16, (128, 128), Knob::None),
    (schedules::linear_gelu, Dtype::Bf16, (128, 256), Knob::None),
    (
        schedules::linear_residual,
        Dtype::Bf16,
        (128, 256),
        Knob::None,
    ),
    (
        schedules::wgrad,
        Dtype::Bf16,
        (128, 256),
        Knob::Layout(Layout::Tn),
    ),
    (schedules::ag_gemm, Dtype::Bf16, (128, 256), Knob::None),
    (schedules::ag_gemm_pull, Dtype::Bf16, (128, 256), Knob::None),
    (schedules::gemm_rs, Dtype::Bf16, (128, 256), Knob::None),
    (schedules::gemm_ar, Dtype::Bf16, (128, 256), Knob::None),
    (schedules::gemm_split, Dtype::Bf16, (128, 256), Knob::None),
];

#[test]
fn kernels_are_as_emitted() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("kernels_generated");
    let update = std::env::var("UPDATE_KERNELS").is_ok();
    let (mut claimed, mut wrong) = (BTreeSet::new(), Vec::new());
    let mut check = |name: String, text: &str| {
        let path = root.join(&name);
        if update {
            fs::create_dir_all(path.parent().expect("a folder")).expect("writable");
            fs::write(&path, text).expect("writable");
        } else if fs::read_to_string(&path).unwrap_or_default() != text {
            wrong.push(name.clone());
        }
        claimed.insert(name);
    };
    for (schedule, dtype, (rows, columns), knob) in KERNELS {
        let program = schedule();
        let pipeline = pipeline(&program, dtype, (rows, columns), knob);
        let knob = match knob {
            Knob::None => String::new(),
            Knob::Layout(layout) => format!("-{}", layout.name()),
            Knob::Choices(_, name) => format!("-{name}"),
        };
        let name = format!("sm90/{}.{dtype}-{rows}x{columns}{knob}.cu", program.name);
        check(name, &cuda::emit(&pipeline).text);
    }
    for entry in fs::read_dir(root.join("sm90")).expect("a folder") {
        let name = format!(
            "sm90/{}",
            entry.expect("readable").file_name().to_string_lossy()
        );
        assert!(
            claimed.contains(&name),
            "kernels_generated/{name} is no test's"
        );
    }
    assert!(
        wrong.is_empty(),
        "not what is emitted; UPDATE_KERNELS=1 writes them: {wrong:?}"
    );
}

#[test]
fn every_schedule_of_the_library_has_a_pipeline_in_both_types_and_tiles() {
    for schedule in schedules::ALL {
        for dtype in [Dtype::Bf16, Dtype::F16] {
            for tile in [(128, 256), (128, 192), (128, 128), (128, 224), (256, 128)] {
                let program = schedule();
                let pipeline = pipeline(&program, dtype, tile, Knob::None);
                let CudaSource {
                    text,
                    entry,
                    shared_bytes,
                    threads,
                    ..
                } = cuda::emit(&pipeline);
                assert_eq!(entry, program.name);
                assert!(
                    shared_bytes <= 232_448 && threads == 384,
                    "{entry}: {shared_bytes}"
                );
                assert!(!text.contains("asm"), "{entry}: PTX is the prelude's");
                assert!(!text.contains("multimem"), "{entry}");
                assert_eq!(
                    text,
                    cuda::emit(&pipeline).text,
                    "{entry}: emission is deterministic"
                );
            }
        }
    }
    assert!(!cuda::prelude().contains("multimem") && !cuda::prelude().contains("#include"));
}
