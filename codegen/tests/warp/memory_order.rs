//! The scope that a barrier must have: each is made relaxed, and the verifier says where that is too little.

use crate::fixtures::library;
use counterflow_codegen::builder::{GemmOptions, ScheduleBuilder};
use counterflow_codegen::dtype::Dtype::Bf16;
use counterflow_codegen::lower::lower;
use counterflow_codegen::program::Program;
use counterflow_codegen::sm90;
use counterflow_codegen::variant::{Layout, Variant};
use counterflow_codegen::verify;
use counterflow_codegen::warp::{Pipeline, Ring, Scope};

fn build(program: &Program, variant: &Variant) -> Pipeline {
    let kernel = lower(program, variant).and_then(verify::kernel);
    let built = kernel.and_then(|kernel| sm90::build(&kernel));
    built.unwrap_or_else(|found| panic!("{}: {found}", program.name))
}

/// A schedule of the library, on four ranks.
fn of_library(name: &str, tiles: (u32, u32)) -> Pipeline {
    let program = library::all()
        .into_iter()
        .find(|program| program.name == name)
        .expect("a schedule");
    build(&program, &Variant::new(4).set("tiles", tiles))
}

/// A GEMM: whether it adds a stored tile, and how CTAs share work.
fn gemm(tile: (u32, u32), adds: bool, cluster: (u32, u32), split: u32) -> Pipeline {
    let mut s = ScheduleBuilder::new("gemm");
    let (x, w, y) = (s.local("x", Bf16), s.local("w", Bf16), s.out("y", Bf16));
    let z = adds.then(|| s.local("z", Bf16));
    let tiles = s.tiles("tiles", y, tile);
    let options = GemmOptions {
        cluster: Some(cluster.into()),
        split: Some(split.into()),
        ..GemmOptions::default()
    };
    s.gemm(options, |s| {
        s.for_items("t", tiles.grouped(8), |s, t| {
            let acc = s.dot(x.at(t), w.at(t));
            match z {
                Some(z) => {
                    let sum = acc + s.load(z.at(t));
                    s.store(y.at(t), sum);
                }
                None => s.store(y.at(t), acc),
            }
        });
    });
    build(&s.finish(), &Variant::new(1).layout(Layout::Nt))
}

/// Each barrier of a kernel, and what the verifier says when it is relaxed.
fn verdicts(new: impl Fn() -> Pipeline) -> String {
    verify::pipeline(new()).unwrap_or_else(|found| panic!("{found}"));
    let mut out = String::new();
    for ring in 0..new().rings.len() {
        let full: fn(&mut Ring) -> Option<&mut _> = |ring| Some(&mut ring.full);
        for side in [full, |ring| ring.empty.as_mut()] {
            let mut pipeline = new();
            let Some(barrier) = side(&mut pipeline.rings[ring]) else {
                continue;
            };
            let (name, scope) = (barrier.name, barrier.scope);
            if scope == Scope::Relaxed {
                continue;
            }
            barrier.scope = Scope::Relaxed;
            let said = match verify::pipeline(pipeline) {
                Ok(_) => "accepted".into(),
                Err(found) => {
                    let text = found.first().text(&|_| String::new());
                    let line = text.lines().next().unwrap_or_default();
                    let ends = [" rows", " for tile"].map(|end| line.find(end));
                    let end = ends.into_iter().flatten().min().unwrap_or(line.len());
                    line[..end].to_owned()
                }
            };
            out.push_str(&format!("{name}, {scope:?}: {said}\n"));
        }
    }
    out
}

/// Slots that TMA and the tensor cores alone have read may be filled again; nothing may be read without an acquire.
#[test]
fn tma_and_tensor_cores_alone() {
    insta::assert_snapshot!(verdicts(|| of_library("gemm", (128, 128))), @"
    stage_full, Cta: error[race]: multiply of block 0 on rank 0 multiplies x of stage 0 by w of stage 0
    stage_empty, Cta: accepted
    subtile_full, Cta: error[race]: store of block 0 on rank 0 stores subtile 0 to
    subtile_empty, Cta: accepted
    ");
    insta::assert_snapshot!(verdicts(|| of_library("gemm", (64, 48))), @"
    stage_full, Cta: error[race]: multiply of block 0 on rank 0 multiplies x of stage 0 by w of stage 0
    stage_empty, Cta: accepted
    subtile_full, Cta: error[race]: store of block 0 on rank 0 stores subtile 0 to
    subtile_empty, Cta: accepted
    ");
}

/// A slot of the stages also holds what threads read by ordinary loads.
#[test]
fn epilogues_that_read_the_stages() {
    insta::assert_snapshot!(verdicts(|| gemm((128, 128), true, (1, 1), 1)), @"
    stage_full, Cta: error[race]: multiply of block 0 on rank 0 multiplies x of stage 0 by w of stage 0
    stage_empty, Cta: error[race]: load of block 0 on rank 0 loads
    subtile_full, Cta: error[race]: store of block 0 on rank 0 stores subtile 0 to
    subtile_empty, Cta: accepted
    ");
}

#[test]
fn batches_that_are_staged() {
    insta::assert_snapshot!(verdicts(|| of_library("ag_gemm", (128, 128))), @"
    stage_full, Cta: error[race]: multiply of block 2 on rank 0 multiplies x of stage 0 by w of stage 0
    stage_empty, Cta: accepted
    subtile_full, Cta: error[race]: store of block 2 on rank 0 stores subtile 0 to
    subtile_empty, Cta: accepted
    staging_full, Cta: error[race]: store of block 0 on rank 0 stores staging buffer 0 to
    staging_empty, Cta: accepted
    ");
    insta::assert_snapshot!(verdicts(|| of_library("gemm_rs", (128, 128))), @"
    stage_full, Cta: error[race]: multiply of block 0 on rank 0 multiplies x of stage 0 by w of stage 0
    stage_empty, Cta: error[race]: load of block 0 on rank 0 loads
    subtile_full, Cta: error[race]: store of block 0 on rank 0 stores subtile 0 to
    subtile_empty, Cta: accepted
    ");
}

#[test]
fn partials_of_a_cluster() {
    insta::assert_snapshot!(verdicts(|| gemm((128, 128), true, (1, 1), 2)), @"
    stage_full, Cta: error[race]: multiply of block 0 on rank 0 multiplies x of stage 0 by w of stage 0
    stage_empty, Cta: error[race]: load of block 1 on rank 0 loads
    subtile_full, Cta: error[race]: store of block 1 on rank 0 stores subtile 0 to
    subtile_empty, Cta: accepted
    split_partial_full, Cluster: error[race]: multiply of block 1 on rank 0 adds split-K partial 0 to subtile 1
    split_partial_empty, Cluster: error[race]: multiply of block 1 on rank 0 sends subtile 0 of its part to split-K partial 0 of CTA 0 of its cluster
    ");
}

#[test]
fn tiles_that_are_loaded_together() {
    insta::assert_snapshot!(verdicts(|| gemm((128, 128), false, (2, 1), 1)), @"
    stage_full, Cta: error[race]: multiply of block 1 on rank 0 multiplies x of stage 0 by w of stage 0
    subtile_full, Cta: error[race]: store of block 0 on rank 0 stores subtile 0 to
    subtile_empty, Cta: accepted
    ");
}
