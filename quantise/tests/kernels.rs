//! Every quantiser through NVIDIA's compiler: no GPU is needed.

#[path = "../../runtime/tests/common/mod.rs"]
mod nvidia;
#[path = "../../codegen/tests/fixtures/wide.rs"]
mod wide;

use counterflow_codegen::dtype::Dtype;
use counterflow_quantise::{
    AllReduceNorm, AllReduceNormBuilder, Fp8, Granularity, HEADERS, Recipe, ScaleRule, Scaling,
};
use counterflow_runtime::Communicator;
use counterflow_runtime::jit::{Compiled, Source, Target};

const SCALINGS: [Scaling; 5] = [
    Scaling::Current(Granularity::PerTensor),
    Scaling::Delayed,
    Scaling::Current(Granularity::PerRow),
    Scaling::Current(Granularity::BLOCK_1X128),
    Scaling::Current(Granularity::BLOCK_128X128),
];

/// Each type, scaling and copy with each convention in turn.
fn recipes() -> Vec<Recipe> {
    let deep = ScaleRule::deep_gemm();
    let rules = [
        ScaleRule::transformer_engine(Fp8::E4M3),
        deep.powers_of_two(),
        ScaleRule::transformer_engine(Fp8::E5M2).powers_of_two(),
        deep,
    ];
    let mut recipes = Vec::new();
    for from in [Dtype::Bf16, Dtype::F16, Dtype::F32] {
        for scaling in SCALINGS {
            for transposed in [false, true] {
                let rule = rules[recipes.len() % rules.len()];
                recipes.push(Recipe {
                    transposed,
                    ..Recipe::new(rule, scaling, from)
                });
            }
        }
        for scaling in &SCALINGS[..2] {
            let rule = rules[recipes.len() % rules.len()];
            recipes.push(Recipe::new(rule, *scaling, from).with_scale_in_each_row());
        }
    }
    recipes
}

fn compiled(texts: &[String], headers: &[(&str, &str)]) -> Option<Vec<Compiled>> {
    let compiler = nvidia::caching_compiler()?;
    let source = |text| (Source::new("quantise", text).with(headers), Target::Sm90a);
    let sources: Vec<_> = texts.iter().map(|text| source(text)).collect();
    let fine = |made: Result<Compiled, counterflow_runtime::Error>| {
        made.unwrap_or_else(|error| panic!("{error}\n{}", error.help().unwrap_or_default()))
    };
    Some(
        compiler
            .compile_all(&sources)
            .into_iter()
            .map(fine)
            .collect(),
    )
}

#[test]
fn every_quantiser_compiles_and_keeps_its_elements_in_registers() {
    let recipes = recipes();
    let texts: Vec<String> = (recipes.iter())
        .flat_map(|recipe| [recipe.tiles(), recipe.lines()])
        .collect();
    let Some(made) = compiled(&texts, &HEADERS) else {
        return;
    };
    for (index, compiled) in made.iter().enumerate() {
        let recipe = recipes[index / 2];
        assert!(!compiled.facts.is_empty(), "{recipe} has no kernel");
        for kernel in &compiled.facts {
            println!(
                "{recipe}: {} has {} registers",
                kernel.name, kernel.registers
            );
            assert_eq!(kernel.frame, 0, "{recipe}: {}", compiled.log);
            // Two CTAs of 256 threads on an SM.
            let most = 128;
            assert!(kernel.registers <= most, "{recipe}: {}", kernel.name);
        }
    }
}

/// Every result, in worlds and rows of every kind: the largest rows that a CTA holds, and those whose threads hold one piece.
#[test]
fn every_all_reduce_with_a_norm_compiles_and_keeps_its_rows_in_registers() {
    let recipe = |rule, scaling| Some(Recipe::new(rule, scaling, Dtype::Bf16));
    let (theirs, deep) = (
        ScaleRule::transformer_engine(Fp8::E5M2),
        ScaleRule::deep_gemm(),
    );
    let results = [
        None,
        recipe(theirs, Scaling::Delayed),
        recipe(deep, Scaling::Current(Granularity::PerRow)),
        recipe(deep, Scaling::Current(Granularity::BLOCK_1X128)),
        recipe(theirs, Scaling::Current(Granularity::BLOCK_1X128)),
    ];
    let mut texts = Vec::new();
    for world in [1, 2, 3, 8] {
        let ranks = Communicator::emulated(world).expect("ranks");
        for result in results {
            let norm = AllReduceNorm::of(&ranks[0]);
            let norm = result
                .into_iter()
                .fold(norm, |norm, recipe| norm.quantised(recipe));
            texts.extend([16, 6144, 8192, 24576].map(|columns| norm.text(columns)));
        }
    }
    let headers = AllReduceNormBuilder::headers();
    let Some(made) = compiled(&texts, &headers) else {
        return;
    };
    for (text, compiled) in texts.iter().zip(&made) {
        let [kernel] = &compiled.facts[..] else {
            panic!("{} kernels of\n{text}", compiled.facts.len());
        };
        let said = |name: &str| text.lines().find(|line| line.contains(name)).unwrap_or("");
        let about = ["WORLD", "THREADS", "HELD", "OUT"].map(said).join(" ");
        println!("{about}: {} registers", kernel.registers);
        assert_eq!(kernel.frame, 0, "{about}: {}", compiled.log);
        let threads: u32 = said("THREADS")
            .split(' ')
            .next_back()
            .expect("a number")
            .parse()
            .expect("threads");
        assert!(
            kernel.registers * threads <= 1 << 16,
            "{about} does not fit on an SM: {}",
            compiled.log
        );
    }
}
