//! The kernels people read: equal to what is emitted. `UPDATE_KERNELS=1` writes them.

use counterflow::codegen::cuda::{self, CudaSource, expected};
use counterflow::codegen::lower::lower;
use counterflow::codegen::pipeline::{self, Pipeline};
use counterflow::codegen::verify;
use counterflow::{Checked, Dtype, Layout, Program, Variant, schedules};
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

fn pipeline(
    program: &Program,
    dtype: Dtype,
    tile: (u32, u32),
    layout: Layout,
) -> Checked<Pipeline> {
    let variant = Variant::new(4)
        .dtype(dtype)
        .layout(layout)
        .set("tiles", tile);
    let kernel = lower(program, &variant).and_then(verify::kernel);
    let pipeline = kernel
        .and_then(|kernel| pipeline::build(&kernel))
        .and_then(pipeline::verify);
    pipeline.unwrap_or_else(|found| panic!("{}: {found}", program.name))
}

type Kind = (fn() -> Program, Dtype, (u32, u32), Layout);

/// The first of each kind.
const KERNELS: [Kind; 11] = [
    (schedules::gemm, Dtype::Bf16, (128, 256), Layout::Nt),
    (schedules::gemm, Dtype::Bf16, (128, 256), Layout::Nn),
    (schedules::gemm, Dtype::Bf16, (128, 256), Layout::Tn),
    (schedules::gemm, Dtype::F16, (128, 128), Layout::Nt),
    (schedules::linear_gelu, Dtype::Bf16, (128, 256), Layout::Nt),
    (
        schedules::linear_residual,
        Dtype::Bf16,
        (128, 256),
        Layout::Nt,
    ),
    (schedules::wgrad, Dtype::Bf16, (128, 256), Layout::Tn),
    (schedules::ag_gemm, Dtype::Bf16, (128, 256), Layout::Nt),
    (schedules::ag_gemm_pull, Dtype::Bf16, (128, 256), Layout::Nt),
    (schedules::gemm_rs, Dtype::Bf16, (128, 256), Layout::Nt),
    (schedules::gemm_ar, Dtype::Bf16, (128, 256), Layout::Nt),
];

#[test]
fn kernels_are_as_emitted() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("kernels_generated");
    let update = std::env::var("UPDATE_KERNELS").is_ok();
    let (mut claimed, mut counts, mut wrong) = (BTreeSet::new(), Vec::new(), Vec::new());
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
    for (schedule, dtype, (rows, columns), layout) in KERNELS {
        let program = schedule();
        let pipeline = pipeline(&program, dtype, (rows, columns), layout);
        let layout = match layout {
            Layout::Nt => "",
            Layout::Nn => "-nn",
            Layout::Tn => "-tn",
        };
        let name = format!("sm90/{}.{dtype}-{rows}x{columns}{layout}.cu", program.name);
        check(name.clone(), &cuda::emit(&pipeline).text);
        let expected = expected::instructions(&pipeline).into_iter();
        let expected = expected.map(|(what, step, least)| format!("\"{what}\": [{step}, {least}]"));
        counts.push(format!(
            "  \"{name}\": {{{}}}",
            expected.collect::<Vec<_>>().join(", ")
        ));
    }
    check(
        "expected.json".into(),
        &format!("{{\n{}\n}}\n", counts.join(",\n")),
    );
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
            for tile in [(128, 256), (128, 192), (128, 128)] {
                let program = schedule();
                let pipeline = pipeline(&program, dtype, tile, Layout::Nt);
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
