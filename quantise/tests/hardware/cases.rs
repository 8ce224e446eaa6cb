//! What is quantised, and how.

use counterflow_codegen::dtype::Dtype;
use counterflow_emulator::Numbers;
use counterflow_quantise::{Fp8, Granularity, Recipe, ScaleRule, Scaling};

/// Every convention, both types, with and without powers of two.
pub fn rules() -> Vec<ScaleRule> {
    let theirs = [Fp8::E4M3, Fp8::E5M2].map(ScaleRule::transformer_engine);
    let deep = ScaleRule::deep_gemm();
    let all = [theirs[0], theirs[1], deep];
    let powers = all.map(ScaleRule::powers_of_two);
    let eps = theirs[0].with_eps(1e-3);
    all.into_iter().chain(powers).chain([eps]).collect()
}

const PIECES: [Granularity; 4] = [
    Granularity::PerTensor,
    Granularity::PerRow,
    Granularity::BLOCK_1X128,
    Granularity::BLOCK_128X128,
];

/// All recipes with current scaling. Of f16 and f32 only two rules.
pub fn current() -> Vec<Recipe> {
    let mut recipes = Vec::new();
    for from in [Dtype::Bf16, Dtype::F16, Dtype::F32] {
        let rules = rules().into_iter().enumerate();
        let some = rules.filter(|(at, _)| from == Dtype::Bf16 || [0, 5].contains(at));
        for (_, rule) in some {
            for pieces in PIECES {
                let recipe = Recipe::new(rule, Scaling::Current(pieces), from);
                recipes.extend([recipe, recipe.with_transposed()]);
                if pieces == Granularity::PerTensor {
                    let rows = recipe.with_scale_in_each_row();
                    recipes.extend([rows, rows.with_transposed()]);
                }
            }
        }
    }
    recipes
}

/// All recipes with delayed scaling.
pub fn delayed() -> Vec<Recipe> {
    let mut recipes = Vec::new();
    for from in [Dtype::Bf16, Dtype::F16, Dtype::F32] {
        for to in [Fp8::E4M3, Fp8::E5M2] {
            let rule = ScaleRule::transformer_engine(to);
            let recipe = Recipe::new(rule, Scaling::Delayed, from);
            let rows = recipe.with_scale_in_each_row();
            recipes.extend([recipe, recipe.with_transposed(), rows]);
        }
    }
    recipes
}

/// Rows and columns: one row, ragged in both ways, whole tiles, rows longer than registers hold, none of either.
pub const SHAPES: [[usize; 2]; 10] = [
    [1, 16],
    [5, 48],
    [128, 128],
    [129, 272],
    [300, 1040],
    [3, 9232],
    [3, 4096],
    [513, 2048],
    [0, 32],
    [40, 0],
];

/// What a matrix is filled with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Filling {
    /// Numbers around 1.
    Plain,
    /// The same, with some rows of zeros, and blocks of numbers near the ends of what the type has.
    Wild,
    /// With NaN and infinities among them, and rows of blocks and whole columns that have NaN alone.
    Broken,
    /// Zeros, some of them negative.
    Zero,
}

pub const FILLINGS: [Filling; 4] = [
    Filling::Plain,
    Filling::Wild,
    Filling::Broken,
    Filling::Zero,
];

/// Numbers of that type.
pub fn filled(shape: [usize; 2], filling: Filling, from: Dtype, seed: u64) -> Vec<f32> {
    let mut numbers = Numbers::new(seed);
    let mut values = Vec::with_capacity(shape[0] * shape[1]);
    for at in 0..shape[0] * shape[1] {
        let (row, column) = (at / shape[1], at % shape[1]);
        let sum: u64 = (0..4).map(|_| numbers.below(1 << 20)).sum();
        let plain = sum as f32 / (1 << 20) as f32 - 2.0;
        let zero = if numbers.below(2) == 0 { 0.0 } else { -0.0 };
        let value = match filling {
            Filling::Plain => plain,
            Filling::Zero => zero,
            Filling::Wild | Filling::Broken => match (row / 3 + column / 64) % 5 {
                0 => plain * 3e38,
                1 => plain * f32::from_bits(1 << 12),
                2 if row % 2 == 0 => zero,
                3 => plain * 6e4,
                _ => plain,
            },
        };
        let odd = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, -f32::NAN];
        let broken = filling == Filling::Broken && numbers.below(97) == 0;
        let alone = row % 7 == 2 && column < 128 || column % 50 == 3;
        let value = match filling {
            Filling::Broken if alone => odd[row % 2 * 3],
            _ if broken => odd[at % 4],
            _ => value,
        };
        // Beyond the type: its infinity, which only some are meant to have.
        let rounded = from.round(value);
        values.push(if rounded.is_infinite() && !broken {
            1.0
        } else {
            rounded
        });
    }
    values
}
