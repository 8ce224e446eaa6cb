//! Every kernel of these tests, compiled ahead into a cache that a machine without a compiler can use.

use crate::cases::{current, delayed};
use crate::{all_reduce_norm, computed_scales, fine, shards, speed, sums, trained};
use counterflow_quantise::{AllReduceNormBuilder, HEADERS};
use counterflow_runtime::jit::{Compiler, Source, Target};
use counterflow_runtime::launch;

/// Fills the cache that `COUNTERFLOW_CACHE` names and seals it.
#[test]
#[ignore = "no test: `.ci/pack` runs it to compile the kernels that it packs"]
fn kernels_of_the_suite() {
    let compiler = fine(Compiler::find());
    let recipes = current()
        .into_iter()
        .chain(delayed())
        .chain(speed::recipes());
    let mut texts: Vec<String> = recipes
        .flat_map(|recipe| [recipe.tiles(), recipe.lines()])
        .collect();
    texts.sort();
    texts.dedup();
    let source = |text| (Source::new("quantise", text).with(&HEADERS), Target::Sm90a);
    let sources: Vec<_> = texts.iter().map(|text| source(text)).collect();
    let of_sums = sums::PAIRS.map(sums::text);
    let of_sums = of_sums
        .iter()
        .map(|text| (Source::new("sums", text), Target::Sm90a));
    let mut norms = all_reduce_norm::texts();
    norms.extend(speed::norms());
    norms.sort();
    norms.dedup();
    let headers = AllReduceNormBuilder::headers();
    let of_norms = norms.iter().map(|text| {
        let source = Source::new("all_reduce_norm", text).with(&headers);
        (source, Target::Sm90a)
    });
    let sources = sources.into_iter().chain(of_sums).chain(of_norms);
    let sources: Vec<_> = sources.collect();
    compiler
        .compile_all(&sources)
        .into_iter()
        .for_each(|made| _ = fine(made));
    let kernels = shards::kernels().into_iter().chain(trained::kernels());
    for kernel in kernels.chain(computed_scales::kernels()) {
        fine(launch::compile(&compiler, &kernel));
    }
    fine(compiler.seal());
    println!("  {} texts of quantisers", texts.len());
}
