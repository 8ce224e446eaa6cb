//! Every kernel of these tests, compiled ahead into a cache that a machine without a compiler can use.

use crate::case::{checked, variant};
use crate::right::{JITTER, JITTERED, VARIANTS};
use crate::{SCHEDULES, fine, fused};
use counterflow::Dtype;
use counterflow::codegen::cuda::{self, CudaSource};
use counterflow::jit::{Compiler, Probes};
use counterflow::launch;
use std::time::Instant;

/// Fills the cache that `COUNTERFLOW_CACHE` names and seals it.
#[test]
#[ignore = "minutes of compiling; .ci/pack runs it"]
fn kernels_of_the_suite() {
    let compiler = fine(Compiler::find());
    let start = Instant::now();
    let mut wanted: Vec<(Probes, CudaSource)> = Vec::new();
    let plain = (Probes::default(), VARIANTS.as_slice());
    let traced = (fused::TRACE, &[(Dtype::Bf16, (128, 256))][..]);
    for (probes, variants) in [plain, (JITTER, &JITTERED), traced] {
        for schedule in SCHEDULES {
            for (dtype, tile) in variants {
                // A world of one needs no credits; otherwise the world is a parameter of the text.
                for world in 1..=4 {
                    let (_, pipeline) = checked(&schedule(), &variant(world, *dtype, *tile));
                    let kernel = (probes, cuda::emit(&pipeline));
                    if !wanted.contains(&kernel) {
                        wanted.push(kernel);
                    }
                }
            }
        }
    }
    let compiled = crate::case::in_parallel(wanted.len(), |index| {
        let (probes, source) = &wanted[index];
        launch::compile(&compiler.clone().with_probes(*probes), source).map(|made| made.cubin.len())
    });
    let bytes: usize = compiled.into_iter().map(fine).sum();
    fine(compiler.seal());
    println!(
        "  {} kernels, {} KiB of machine code, {:.0} s",
        wanted.len(),
        bytes >> 10,
        start.elapsed().as_secs_f64()
    );
}
