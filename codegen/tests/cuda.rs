//! Emitted text against `kernels_generated`: equal, or `UPDATE_KERNELS=1` writes it.

mod library;

use counterflow_codegen::cuda::{self, expected};
use counterflow_codegen::dtype::Dtype;
use counterflow_codegen::lower::lower;
use counterflow_codegen::pipeline::{self, Pipeline};
use counterflow_codegen::program::Program;
use counterflow_codegen::variant::Variant;
use counterflow_codegen::verify::{self, Checked};
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

fn program(name: &str) -> Program {
    let found = library::all()
        .into_iter()
        .find(|program| program.name == name);
    found.unwrap_or_else(|| panic!("no schedule {name}"))
}

fn pipeline(name: &str, variant: &Variant) -> Checked<Pipeline> {
    let kernel = lower(&program(name), variant)
        .and_then(verify::kernel)
        .unwrap_or_else(|e| panic!("{name}: {e}"));
    let pipeline = pipeline::build(&kernel).unwrap_or_else(|e| panic!("{name}: {e}"));
    pipeline::verify(pipeline).unwrap_or_else(|e| panic!("{name}: {e}"))
}

fn variant(dtype: Dtype, tile: (u32, u32)) -> Variant {
    Variant::new(4).dtype(dtype).set("tiles", tile)
}

/// The kernels people read: the first of each kind.
const KERNELS: [(&str, Dtype, (u32, u32)); 6] = [
    ("gemm", Dtype::Bf16, (128, 256)),
    ("gemm", Dtype::F16, (128, 128)),
    ("gemm", Dtype::Bf16, (128, 128)),
    ("ag_gemm", Dtype::Bf16, (128, 256)),
    ("gemm_rs", Dtype::Bf16, (128, 256)),
    ("gemm_ar", Dtype::Bf16, (128, 256)),
];

#[test]
fn kernels_generated() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../kernels_generated");
    let update = std::env::var("UPDATE_KERNELS").is_ok();
    let (mut claimed, mut facts, mut wrong) = (BTreeSet::new(), Vec::new(), Vec::new());
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
    for (schedule, dtype, (rows, columns)) in KERNELS {
        let pipeline = pipeline(schedule, &variant(dtype, (rows, columns)));
        let name = format!("sm90/{schedule}.{dtype}-{rows}x{columns}.cu");
        check(name.clone(), &cuda::emit(&pipeline).text);
        let counts = expected::instructions(&pipeline);
        let counts = counts
            .iter()
            .map(|(what, step, least)| format!("\"{what}\": [{step}, {least}]"));
        facts.push(format!(
            "  \"{name}\": {{{}}}",
            counts.collect::<Vec<_>>().join(", ")
        ));
    }
    check(
        "expected.json".into(),
        &format!("{{\n{}\n}}\n", facts.join(",\n")),
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
        "differ from what is emitted; UPDATE_KERNELS=1 writes them: {wrong:?}"
    );
}

#[test]
fn what_hopper_cannot_do_is_refused_with_the_numbers() {
    let refused = |variant: Variant| {
        let kernel = lower(&program("gemm"), &variant)
            .and_then(verify::kernel)
            .expect("a kernel");
        let found = pipeline::build(&kernel).expect_err("refused");
        found.first().text(&|_| String::new())
    };
    insta::assert_snapshot!(refused(variant(Dtype::Bf16, (256, 128))), @"
    error[resources]: tiles of 256x128
      help: 128 rows by 128, 192 or 256 columns
    ");
    insta::assert_snapshot!(refused(variant(Dtype::F32, (128, 256))), @"
    error[resources]: a product of f32
      help: bf16 or f16
    ");
}

#[test]
fn every_pipeline_of_the_library_runs() {
    for program in library::all() {
        for tile in [(128, 256), (128, 128)] {
            let t = std::time::Instant::now();
            let kernel = lower(&program, &variant(Dtype::Bf16, tile))
                .and_then(verify::kernel)
                .unwrap_or_else(|e| panic!("{}: {e}", program.name));
            let pipeline = match pipeline::build(&kernel) {
                Ok(p) => p,
                Err(e) => {
                    println!("{} {tile:?}: {e}", program.name);
                    continue;
                }
            };
            let built = t.elapsed();
            let t = std::time::Instant::now();
            let pipeline = pipeline::verify(pipeline);
            let ran = t.elapsed();
            match pipeline {
                Ok(p) => {
                    let t = std::time::Instant::now();
                    let _ = cuda::emit(&p);
                    println!(
                        "{} {tile:?}: built {built:?}, ran {ran:?}, emitted {:?}",
                        program.name,
                        t.elapsed()
                    );
                }
                Err(e) => println!(
                    "{} {tile:?}: built {built:?}, ran {ran:?}\n{e}",
                    program.name
                ),
            }
        }
    }
}
