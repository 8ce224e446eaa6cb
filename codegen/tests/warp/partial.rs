//! Partial sums that travel in FP8, with scales of 1×128 that the tile makes.

use crate::fixtures::library;
use counterflow_codegen::dtype::Dtype::Bf16;
use counterflow_codegen::interp::{self, Options};
use counterflow_codegen::lower::lower;
use counterflow_codegen::model::Machine;
use counterflow_codegen::program::{Program, TensorId};
use counterflow_codegen::rule::{Convention, Fp8, Rule};
use counterflow_codegen::shape::{Extent, Shape};
use counterflow_codegen::variant::Variant;
use counterflow_codegen::verify::{self, Series};

fn program(name: &str) -> Program {
    let mut all = library::all().into_iter();
    all.find(|program| program.name == name)
        .expect("a schedule")
}

const THEIRS: Rule = Rule::transformer_engine(Fp8::E4M3).powers_of_two();

fn variant(world: u32, rule: Rule) -> Variant {
    Variant::new(world)
        .partial_sums(rule)
        .set("tiles", (128, 128))
}

fn series(program: &Program, variant: &Variant, shape: &Shape) -> Series {
    let kernel = lower(program, variant).and_then(verify::kernel);
    let kernel = kernel.unwrap_or_else(|error| panic!("{} {variant}: {error}", program.name));
    let series = verify::series(&kernel, shape, &Machine::h200());
    series.unwrap_or_else(|error| panic!("{} {variant}: {error}", program.name))
}

fn rules() -> [Rule; 5] {
    let on_gpu = Rule {
        convention: Convention::DeepGemmOnGpu,
        ..Rule::deep_gemm()
    };
    let wide = Rule::transformer_engine(Fp8::E5M2).with_eps(8.0);
    [
        THEIRS,
        Rule::transformer_engine(Fp8::E4M3),
        Rule::deep_gemm(),
        on_gpu,
        wide,
    ]
}

/// The numbers of a rank's tensor, which the product of integers has exactly.
fn integers(seed: u64, rank: u32, tensor: usize, name: &str, sides: (u32, u32)) -> Vec<f32> {
    let mut values = vec![0.0; (sides.0 * sides.1) as usize];
    let input = interp::Input {
        launch: 0,
        rank,
        tensor: TensorId(tensor as u16),
        name,
        rows: Extent {
            start: 0,
            end: sides.0,
        },
        columns: sides.1,
    };
    interp::integers(seed)(input, &mut values);
    values
}

/// What rank `owner` has of the sum over ranks: codes times scales of all others, in their order, and its own product.
fn twin(rule: &Rule, world: u32, [m, n, k]: [u32; 3], owner: u32, seed: u64) -> Vec<f32> {
    let chunk = m.div_ceil(world);
    let rows = (chunk * owner).min(m)..(chunk * (owner + 1)).min(m);
    let product = |rank: u32| {
        let x = integers(seed, rank, 0, "x", (m, k));
        let w = integers(seed, rank, 1, "w", (n, k));
        let mut product = Vec::new();
        for row in rows.clone() {
            for column in 0..n {
                let along = |of: &[f32], at: u32| of[(at * k) as usize..][..k as usize].to_vec();
                let (x, w) = (along(&x, row), along(&w, column));
                product.push(x.iter().zip(&w).map(|(x, w)| x * w).sum::<f32>());
            }
        }
        product
    };
    let own = product(owner);
    let mut others = vec![0.0; own.len()];
    for rank in (0..world).filter(|rank| *rank != owner) {
        let mut partial = product(rank);
        let lines = rule.scale_lines(&mut partial, n as usize);
        for (at, value) in partial.iter().enumerate() {
            let (row, column) = (at / n as usize, at % n as usize);
            let scale = lines[column / 128 * rows.len() + row];
            others[at] += rule.to.value(rule.to.code(*value)) * scale;
        }
    }
    let sum = own.iter().zip(&others).map(|(own, others)| own + others);
    sum.map(|sum| Bf16.round(sum)).collect()
}

/// Worlds of 1 to 8, with chunks that are short or empty and columns that are no whole blocks: the bits of each rank's sum are those of
/// codes and scales that a quantiser makes, added in the order of ranks.
#[test]
fn sums_are_of_codes_times_scales_in_the_order_of_ranks() {
    let gemm_rs = program("gemm_rs");
    for (world, sizes) in (1..=8).zip([[13, 144, 80], [34, 400, 48]].into_iter().cycle()) {
        let [m, n, k] = sizes;
        for rule in rules() {
            let shape = Shape::new(m, n, k);
            let series = series(&gemm_rs, &variant(world, rule), &shape);
            let plan = series.plan(&shape);
            let plan = plan.unwrap_or_else(|error| panic!("{error}"));
            let run = |seed| {
                let ran = interp::run(&series, &[&plan], &Options::seed(seed), interp::integers(7));
                ran.unwrap_or_else(|error| panic!("world {world} {rule}: {error}"))
            };
            let (ran, again) = (run(1), run(2));
            for rank in 0..world {
                let of = |ran: &interp::Outcome| {
                    let mut outputs = ran.outputs.iter();
                    let y = outputs.find(|output| (output.rank, output.tensor) == (rank, TensorId(2)));
                    y.expect("an output").values.clone()
                };
                assert_eq!(of(&ran), of(&again), "world {world} {rule}");
                let wanted = twin(&rule, world, sizes, rank, 7);
                assert!(of(&ran) == wanted, "rank {rank} of {world} {rule}");
            }
        }
    }
}
