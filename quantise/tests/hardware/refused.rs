//! What a quantiser refuses before anything is enqueued. No GPU is needed.

use crate::{emulated, fine};
use counterflow_codegen::dtype::Dtype;
use counterflow_quantise::{
    BlocksLast, Delayed, Fp8, Granularity, Quantise, Quantiser, Recipe, ScaleBlock, ScaleRule,
    Scaling, SquareByRow, SquarePadded,
};
use counterflow_runtime::{Communicator, Error, Pending};
use float8::{F8E4M3, F8E5M2};
use half::{bf16, f16};

const SHAPE: [usize; 2] = [64, 256];

fn blocks() -> Recipe {
    let pieces = Scaling::Current(Granularity::BLOCK_1X128);
    Recipe::new(ScaleRule::deep_gemm(), pieces, Dtype::Bf16)
}

fn told(launch: Result<Pending, Error>) -> String {
    launch.map(drop).expect_err("refused").to_string()
}

#[test]
fn memory_is_refused_by_its_name() {
    let rank = &emulated();
    let quantiser = fine(Quantiser::build(rank, blocks(), SHAPE));
    let x = fine(rank.zeros::<bf16>(SHAPE));
    let other = fine(rank.zeros::<f16>(SHAPE));
    let mut codes = fine(rank.zeros::<F8E4M3>(SHAPE));
    let mut scales = fine(rank.zeros::<f32>([2, 64]));
    let mut few = fine(rank.zeros::<f32>([1, 64]));
    let on = || quantiser.on(rank, SHAPE);
    let all = [
        told(on().x(&x).codes(&mut codes).launch()),
        told(on().codes(&mut codes).scales(&mut scales).launch()),
        told(
            on().x(&other)
                .codes(&mut codes)
                .scales(&mut scales)
                .launch(),
        ),
        told(on().x(&x).codes(&mut codes).scales(&mut few).launch()),
        told(
            on().x(&x)
                .codes(&mut codes)
                .scales(&mut scales)
                .transposed_scales(&mut few)
                .launch(),
        ),
    ];
    let wanted = [
        "a quantiser without scales",
        "a quantiser without x",
        "x has elements of f16",
        "scales has 64 elements",
        "a quantiser with transposed_scales",
    ];
    assert_eq!(all, wanted);
}

#[test]
fn memory_of_another_rank_and_memory_that_overlaps_are_refused() {
    let ranks = fine(Communicator::emulated(2));
    let rank = &ranks[0];
    let quantiser = fine(Quantiser::build(rank, blocks(), SHAPE));
    let mut codes = fine(rank.zeros::<F8E4M3>(SHAPE));
    let mut scales = fine(rank.zeros::<f32>([2, 64]));
    let far = fine(ranks[1].zeros::<bf16>(SHAPE));
    let launch = quantiser.on(rank, SHAPE).x(&far).codes(&mut codes);
    assert_eq!(
        told(launch.scales(&mut scales).launch()),
        "x is of another rank"
    );

    // The scales of the copy on those of the matrix.
    let recipe = blocks().with_transposed();
    let quantiser = fine(Quantiser::build(rank, recipe, SHAPE));
    let x = fine(rank.zeros::<bf16>(SHAPE));
    let mut turned = fine(rank.zeros::<F8E4M3>([256, 64]));
    let mut of_turned = scales.clone();
    let launch = quantiser.on(rank, SHAPE).x(&x).codes(&mut codes);
    let launch = launch.scales(&mut scales).transposed(&mut turned);
    assert_eq!(
        told(launch.transposed_scales(&mut of_turned).launch()),
        "transposed_scales has 128 elements"
    );
    let mut scales = fine(rank.zeros::<f32>([1, 256]));
    let mut of_turned = scales.clone();
    let launch = quantiser.on(rank, SHAPE).x(&x).codes(&mut codes);
    let launch = launch.scales(&mut scales).transposed(&mut turned);
    assert_eq!(
        told(launch.transposed_scales(&mut of_turned).launch()),
        "scales and transposed_scales overlap, and one is written"
    );
}

#[test]
fn sizes_layouts_and_steps_that_the_recipe_has_not_are_refused() {
    let rank = &emulated();
    let quantiser = fine(Quantiser::build(rank, blocks(), SHAPE));
    let x = fine(rank.zeros::<bf16>(SHAPE));
    let mut codes = fine(rank.zeros::<F8E4M3>(SHAPE));
    let mut scales = fine(rank.zeros::<f32>([2, 64]));
    let mut on = |shape| told(quantiser.on(rank, shape).x(&x).codes(&mut codes).launch());
    assert_eq!(on([65, 256]), "65 rows of 256 elements");
    assert_eq!(on([64, 200]), "a quantiser for 64 rows of 200 elements");
    let huge = [1 << 31, 16];
    assert_eq!(on(huge), "a quantiser for 2147483648 rows of 16 elements");
    let launch = quantiser.on(rank, SHAPE).x(&x).codes(&mut codes);
    assert_eq!(
        told(launch.scales(&mut scales).layout::<SquareByRow>().launch()),
        "a layout of other blocks than those of one_by_128 bf16 -> e4m3, DeepGemm"
    );
    assert_eq!(
        told(quantiser.on(rank, SHAPE).x(&x).measure()),
        "one_by_128 bf16 -> e4m3, DeepGemm in two steps"
    );
    let rows = Recipe {
        scaling: Scaling::Current(Granularity::PerRow),
        ..blocks()
    };
    let quantiser = fine(Quantiser::build(rank, rows, SHAPE));
    let launch = quantiser.on(rank, SHAPE).layout::<SquarePadded>();
    let what = "a layout of other blocks than those of rows bf16 -> e4m3, DeepGemm";
    assert_eq!(told(launch.x(&x).launch()), what);
}

/// Scales that would lie where a product does not look for them.
#[test]
fn lines_of_another_length_are_refused() {
    let rank = &emulated();
    let x = fine(rank.zeros::<bf16>(SHAPE));
    let told = |recipe: Recipe, order: fn(Quantise<'_>) -> Quantise<'_>, shape: &[usize]| {
        let quantiser = fine(Quantiser::build(rank, recipe, SHAPE));
        let mut codes = fine(rank.zeros::<F8E4M3>(SHAPE));
        let mut scales = fine(rank.zeros::<f32>(shape));
        let launch = quantiser.on(rank, SHAPE).x(&x).codes(&mut codes);
        match order(launch.scales(&mut scales)).launch() {
            Ok(_) => "fine".to_owned(),
            Err(error) => format!("{error}; {}", error.help().unwrap_or_default()),
        }
    };
    let rows_last = |shape: &[usize]| told(blocks(), |on| on, shape);
    for fine in [[2, 64], [2, 65], [3, 64], [1, 128], [1, 400], [128, 1]] {
        assert_eq!(rows_last(&fine), "fine", "{fine:?}");
    }
    // As another layout has them, and a line too few.
    let wanted = "give 2 x 64 as the layout has them, or longer lines, or a vector of 128";
    assert_eq!(rows_last(&[64, 2]), format!("scales is 64 x 2; {wanted}"));
    assert_eq!(rows_last(&[4, 63]), format!("scales is 4 x 63; {wanted}"));
    let blocks_last = |shape: &[usize]| told(blocks(), |on| on.layout::<BlocksLast>(), shape);
    let wanted = "give 64 x 2 as the layout has them, or a vector of 128";
    assert_eq!(blocks_last(&[64, 2]), "fine");
    assert_eq!(blocks_last(&[64, 3]), format!("scales is 64 x 3; {wanted}"));
    assert_eq!(blocks_last(&[2, 64]), format!("scales is 2 x 64; {wanted}"));
    let scaling = Scaling::Current(Granularity::BLOCK_128X128);
    let square = Recipe {
        scaling,
        ..blocks()
    };
    let squares = |shape: &[usize]| told(square, |on| on, shape);
    for fine in [[1, 4], [3, 4], [1, 9], [4, 1]] {
        assert_eq!(squares(&fine), "fine", "{fine:?}");
    }
    let wanted = "give 1 x 4 as the layout has them, or a vector of 4";
    assert_eq!(squares(&[2, 2]), format!("scales is 2 x 2; {wanted}"));
}

#[test]
fn recipes_that_no_kernel_has_are_refused() {
    let rank = &emulated();
    let refused = |recipe, most: [usize; 2]| {
        let built = Quantiser::build(rank, recipe, most);
        built.map(drop).expect_err("refused").to_string()
    };
    let (from, rule) = (Dtype::E5M2, ScaleRule::deep_gemm());
    assert_eq!(
        refused(Recipe { from, ..blocks() }, SHAPE),
        "one_by_128 e5m2 -> e4m3, DeepGemm with an eps of 0.0001"
    );
    for eps in [-1.0, f32::NAN, f32::INFINITY] {
        let rule = rule.with_eps(eps);
        let what = format!("one_by_128 bf16 -> e4m3, DeepGemm with an eps of {eps}");
        assert_eq!(refused(Recipe { rule, ..blocks() }, SHAPE), what);
    }
    assert_eq!(
        refused(blocks(), [64, 40]),
        "a quantiser for 64 rows of 40 elements"
    );
    assert_eq!(
        refused(blocks().with_scale_in_each_row(), SHAPE),
        "one_by_128 bf16 -> e4m3, DeepGemm, a scale in each row"
    );
}

#[test]
fn a_history_of_another_type_is_refused() {
    let rank = &emulated();
    let of = |to| {
        Recipe::new(
            ScaleRule::transformer_engine(to),
            Scaling::Delayed,
            Dtype::Bf16,
        )
    };
    let forward = fine(Quantiser::build(rank, of(Fp8::E4M3), SHAPE));
    let back = fine(Quantiser::build(rank, of(Fp8::E5M2), SHAPE));
    let recipe = Delayed::transformer_engine(Fp8::E4M3);
    let none = Delayed {
        length: 0,
        ..recipe
    };
    let told_of = |made: Result<_, Error>| made.map(drop).expect_err("refused").to_string();
    assert_eq!(
        told_of(forward.history(none)),
        "a history of 0 amaxes for E4M3"
    );
    assert_eq!(
        told_of(back.history(recipe)),
        "a history of 1024 amaxes for E4M3"
    );
    let mut history = fine(forward.history(recipe));
    let x = fine(rank.zeros::<bf16>(SHAPE));
    let mut codes = fine(rank.zeros::<F8E5M2>(SHAPE));
    let mut scale = fine(rank.zeros::<f32>([1]));
    let launch = back.on(rank, SHAPE).x(&x).codes(&mut codes);
    let launch = launch.scales(&mut scale).history(&mut history);
    assert_eq!(
        told(launch.launch()),
        "a history for E4M3 of a quantiser to E5M2"
    );
    let launch = back.on(rank, SHAPE).x(&x).codes(&mut codes);
    assert_eq!(
        told(launch.scales(&mut scale).launch()),
        "a quantiser without history"
    );
}

#[test]
fn blocks_that_no_kernel_scales_are_refused() {
    let narrow = ScaleBlock {
        columns: 32,
        ..ScaleBlock::F32_1X128
    };
    let recipe = Recipe {
        scaling: Scaling::Current(Granularity::Block(narrow)),
        ..blocks()
    };
    let refused = Quantiser::build(&emulated(), recipe, SHAPE).expect_err("refused");
    let Error::Usage { what, legal } = refused else {
        panic!("{refused}");
    };
    assert_eq!(what, "scales of 1×32");
    assert_eq!(legal, "a quantiser makes scales of 1×128 or 128×128");
}
