//! Current scaling: codes, planes and transposed copies.

use crate::cases::{FILLINGS, Filling, SHAPES, current, filled};
use crate::{emulated, fine, on_gpu};
use counterflow_codegen::dtype::Dtype;
use counterflow_quantise::{
    BlocksLast, Fp8, Granularity, Layout, Matrix, Quantised, Quantiser, Recipe, RowsLast,
    ScaleRule, Scaling, SquareByColumn, SquareByRow, SquarePadded, twin,
};
use counterflow_runtime::driver::Element;
use counterflow_runtime::{Communicator, Tensor};
use float8::{F8E4M3, F8E5M2};
use half::{bf16, f16};

/// A matrix on a rank, whatever its type.
pub enum Source {
    Bf16(Tensor<bf16>),
    F16(Tensor<f16>),
    F32(Tensor<f32>),
}

impl Source {
    pub fn of(rank: &Communicator, shape: [usize; 2], from: Dtype, values: &[f32]) -> Source {
        fn put<T: Element>(
            rank: &Communicator,
            shape: [usize; 2],
            values: impl Iterator<Item = T>,
        ) -> Tensor<T> {
            let tensor = fine(rank.zeros(shape));
            fine(tensor.write(&values.collect::<Vec<_>>()));
            tensor
        }
        let each = values.iter().copied();
        match from {
            Dtype::Bf16 => Source::Bf16(put(rank, shape, each.map(bf16::from_f32))),
            Dtype::F16 => Source::F16(put(rank, shape, each.map(f16::from_f32))),
            Dtype::F32 => Source::F32(put(rank, shape, each)),
            Dtype::E4M3 | Dtype::E5M2 => panic!("{from} is no source"),
        }
    }
}

/// Codes on a rank, of either type.
pub enum Codes {
    E4M3(Tensor<F8E4M3>),
    E5M2(Tensor<F8E5M2>),
}

impl Codes {
    /// Of what no quantiser writes.
    pub fn new(rank: &Communicator, shape: [usize; 2], to: Fp8) -> Codes {
        match to {
            Fp8::E4M3 => {
                let codes = fine(rank.zeros(shape));
                fine(codes.fill(0xaa));
                Codes::E4M3(codes)
            }
            Fp8::E5M2 => {
                let codes = fine(rank.zeros(shape));
                fine(codes.fill(0xaa));
                Codes::E5M2(codes)
            }
        }
    }

    pub fn read(&self) -> Vec<u8> {
        match self {
            Codes::E4M3(codes) => fine(codes.read())
                .iter()
                .map(|code| code.to_bits())
                .collect(),
            Codes::E5M2(codes) => fine(codes.read())
                .iter()
                .map(|code| code.to_bits())
                .collect(),
        }
    }
}

/// Gives a launch its source and its codes.
macro_rules! given {
    ($launch:expr, $x:expr, $codes:expr, $turned:expr) => {{
        use crate::right::{Codes, Source};
        let launch = match $x {
            Source::Bf16(x) => $launch.x(x),
            Source::F16(x) => $launch.x(x),
            Source::F32(x) => $launch.x(x),
        };
        let launch = match $codes {
            Codes::E4M3(codes) => launch.codes(codes),
            Codes::E5M2(codes) => launch.codes(codes),
        };
        match $turned {
            Some(Codes::E4M3(codes)) => launch.transposed(codes),
            Some(Codes::E5M2(codes)) => launch.transposed(codes),
            None => launch,
        }
    }};
}
pub(crate) use given;

/// The words of scales as memory must have them.
fn plane<L: Layout>(q: &Quantised) -> Vec<f32> {
    q.plane::<L>().values().to_vec()
}

/// One order of scales: its words, and the builder's call.
type InOrder = (
    &'static str,
    fn(&Quantised) -> Vec<f32>,
    for<'a> fn(counterflow_quantise::Quantise<'a>) -> counterflow_quantise::Quantise<'a>,
);

/// The layouts that a recipe's scales may have.
fn orders(recipe: &Recipe) -> Vec<InOrder> {
    match recipe.scaling {
        Scaling::Current(Granularity::Block(block)) if block.is_1d() => vec![
            ("RowsLast", plane::<RowsLast>, |on| on),
            ("BlocksLast", plane::<BlocksLast>, |on| {
                on.layout::<BlocksLast>()
            }),
        ],
        Scaling::Current(Granularity::Block(_)) => vec![
            ("SquarePadded", plane::<SquarePadded>, |on| on),
            ("SquareByRow", plane::<SquareByRow>, |on| {
                on.layout::<SquareByRow>()
            }),
            ("SquareByColumn", plane::<SquareByColumn>, |on| {
                on.layout::<SquareByColumn>()
            }),
        ],
        Scaling::Current(Granularity::PerTensor | Granularity::PerRow) | Scaling::Delayed => {
            vec![("", |q| q.scales.clone(), |on| on)]
        }
    }
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// The first element that differs.
pub fn same<T: PartialEq + std::fmt::LowerHex>(got: &[T], wanted: &[T], what: &str) {
    assert_eq!(got.len(), wanted.len(), "{what}");
    if let Some(at) = (0..got.len()).find(|at| got[*at] != wanted[*at]) {
        panic!(
            "{what}: element {at} is {:#x}, not {:#x}",
            got[at], wanted[at]
        );
    }
}

/// One recipe on one matrix, in every layout. How many launches were compared.
fn compare(
    rank: &Communicator,
    quantiser: &Quantiser<'_>,
    shape: [usize; 2],
    filling: Filling,
) -> usize {
    let recipe = quantiser.recipe();
    let (rule, what) = (recipe.rule, format!("{recipe}, {shape:?}, {filling:?}"));
    let Scaling::Current(pieces) = recipe.scaling else {
        panic!("{what}: not of its own amax");
    };
    let values = filled(shape, filling, recipe.from, 7);
    let x = Matrix::new(&values, shape, recipe.from);
    let wanted = twin::quantise(&x, &rule, pieces);
    let turned_values = x.transposed();
    let on_side = [shape[1], shape[0]];
    let turned = Matrix::new(&turned_values, on_side, recipe.from);
    let wanted_turned = twin::quantise(&turned, &rule, pieces);
    let pitch = shape[0].next_multiple_of(16);
    let x = Source::of(rank, shape, recipe.from, &values);
    let orders = orders(recipe);
    for (order, plane, ordered) in &orders {
        let what = format!("{what} {order}");
        let mut codes = Codes::new(rank, shape, rule.to);
        let mut copy = (recipe.transposed).then(|| Codes::new(rank, [shape[1], pitch], rule.to));
        let scales = |words: usize| {
            let scales = fine(rank.zeros::<f32>([words, 1]));
            fine(scales.fill(0xaa));
            scales
        };
        let words = match recipe.each_row {
            true => vec![wanted.scales[0]; shape[0]],
            false => plane(&wanted),
        };
        let words_of_copy = plane(&wanted_turned);
        let (mut own, mut of_copy) = (scales(words.len()), scales(words_of_copy.len()));
        let launch = ordered(quantiser.on(rank, shape));
        let launch = given!(launch, &x, &mut codes, &mut copy).scales(&mut own);
        let launch = match recipe.transposed && pieces != Granularity::PerTensor {
            true => launch.transposed_scales(&mut of_copy),
            false => launch,
        };
        fine(launch.launch());
        same(
            &bits(&fine(own.read())),
            &bits(&words),
            &format!("{what}: scales"),
        );
        same(&codes.read(), &wanted.codes, &format!("{what}: codes"));
        if let Some(copy) = copy {
            same(
                &copy.read(),
                &wanted_turned.with_pitch(pitch),
                &format!("{what}: transposed"),
            );
            if pieces != Granularity::PerTensor {
                let of_copy = bits(&fine(of_copy.read()));
                same(
                    &of_copy,
                    &bits(&words_of_copy),
                    &format!("{what}: transposed scales"),
                );
            }
        }
    }
    orders.len()
}

fn all(rank: &Communicator, recipes: &[Recipe], shapes: &[[usize; 2]]) {
    let most = [0, 1].map(|side| shapes.iter().map(|shape| shape[side]).max().unwrap_or(0));
    let mut launches = 0;
    for recipe in recipes {
        let quantiser = fine(Quantiser::build(rank, *recipe, most));
        for shape in shapes {
            for filling in FILLINGS {
                launches += compare(rank, &quantiser, *shape, filling);
            }
        }
    }
    println!(
        "  {launches} launches right: quantisers, {}",
        rank.gpu().name()
    );
}

#[test]
fn every_recipe_on_a_gpu_equals_the_twin() {
    let Some(rank) = on_gpu() else { return };
    all(&rank, &current(), &SHAPES);
}

#[test]
fn every_recipe_on_an_emulated_rank_equals_the_twin() {
    let recipes: Vec<Recipe> = current().into_iter().step_by(3).collect();
    all(
        &emulated(),
        &recipes,
        &[[1, 16], [37, 144], [0, 32], [40, 0]],
    );
}

/// Planes whose lines have room for more rows than the matrix has, as those of a shard do: what is behind the scales is zero.
fn planes_with_longer_lines(rank: &Communicator) {
    let recipe = |from| {
        Recipe::new(
            ScaleRule::transformer_engine(Fp8::E4M3),
            Scaling::Current(Granularity::BLOCK_1X128),
            from,
        )
    };
    let mut launches = 0;
    for recipe in [recipe(Dtype::Bf16), recipe(Dtype::F32).with_transposed()] {
        let quantiser = fine(Quantiser::build(rank, recipe, [300, 400]));
        for shape in [
            [93, 272],
            [128, 128],
            [256, 384],
            [1, 16],
            [0, 272],
            [40, 0],
            [300, 400],
        ] {
            for more in [0, 8, 130, 600] {
                let what = format!("{recipe}, {shape:?}, {more} more");
                let values = filled(shape, Filling::Wild, recipe.from, 7);
                let x = Matrix::new(&values, shape, recipe.from);
                let turned = x.transposed();
                let turned = Matrix::new(&turned, [shape[1], shape[0]], recipe.from);
                // The memory of a plane, and what it must have.
                let plane = |x: &Matrix<'_>| {
                    let q = twin::quantise(x, &recipe.rule, Granularity::BLOCK_1X128);
                    let [lines, line] =
                        [x.shape()[1].div_ceil(128), x.shape()[0].next_multiple_of(4)];
                    let mut wanted = vec![0.0; lines * (line + more)];
                    for (at, value) in q.plane::<RowsLast>().values().iter().enumerate() {
                        wanted[at / line * (line + more) + at % line] = *value;
                    }
                    let memory = fine(rank.zeros::<f32>([lines, line + more]));
                    fine(memory.fill(0xaa));
                    (memory, wanted)
                };
                let ((mut own, wanted), (mut of_copy, of_copy_wanted)) =
                    (plane(&x), plane(&turned));
                let source = Source::of(rank, shape, recipe.from, &values);
                let mut codes = Codes::new(rank, shape, Fp8::E4M3);
                let pitch = shape[0].next_multiple_of(16);
                let mut copy =
                    (recipe.transposed).then(|| Codes::new(rank, [shape[1], pitch], Fp8::E4M3));
                let launch = quantiser.on(rank, shape).scales(&mut own);
                let launch = given!(launch, &source, &mut codes, &mut copy);
                let launch = match recipe.transposed {
                    true => launch.transposed_scales(&mut of_copy),
                    false => launch,
                };
                fine(launch.launch());
                same(&bits(&fine(own.read())), &bits(&wanted), &what);
                let q = twin::quantise(&x, &recipe.rule, Granularity::BLOCK_1X128);
                same(&codes.read(), &q.codes, &what);
                if recipe.transposed {
                    let of_copy = bits(&fine(of_copy.read()));
                    same(
                        &of_copy,
                        &bits(&of_copy_wanted),
                        &format!("{what}, transposed"),
                    );
                }
                launches += 1;
            }
        }
    }
    assert_eq!(launches, 56);
    println!(
        "  {launches} launches right: planes with longer lines, {}",
        rank.gpu().name()
    );
}

#[test]
fn planes_with_longer_lines_on_a_gpu() {
    let Some(rank) = on_gpu() else { return };
    planes_with_longer_lines(&rank);
}

#[test]
fn planes_with_longer_lines_on_an_emulated_rank() {
    planes_with_longer_lines(&emulated());
}
