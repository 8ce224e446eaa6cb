//! FP8: outputs and gradients are those of the codes that the quantisers' twin makes on the host, in f64.

mod activated;
mod normed;
mod scope;

use super::cases::{Case, FEATURES, of};
use super::reference::{Matrix, Wanted};
use super::{each, userbuffers_of};
use crate::wide;
use counterflow::prelude::bf16;
use counterflow::quantise::{self, Delayed, Granularity, History, Pick, twin};
use counterflow::rule::{Fp8, Scale, ScaleRule};
use counterflow::{Communicator, Dtype, Error, Tensor};
use counterflow_layers::overlap::Parallel;
use counterflow_layers::{
    DelayedScaling, Float8BlockScaling, Float8CurrentScaling, Format, Gradients, Linear,
    LinearConfig, Parameters, QuantizationMode, Recipe, Saved, Userbuffers,
};
use std::ops::Range;
use std::sync::Arc;

/// What gradients are before the first call.
const BEFORE: f32 = 0.75;

/// Tensor cores, and emulated ones, add 32 products to a sum with 13 fraction bits of the largest of all 33, and keep as many of what comes
/// out: what a sum of so many products may be off by, as a share of the largest.
pub fn of_sum(products: usize) -> f64 {
    products.div_ceil(32) as f64 * 34.0 / (1u64 << 13) as f64
}

/// Rows of each call: most, few, fewer than ranks, and as before. With scales of blocks each rank has a multiple of 4 of them, but for the
/// last; of few ranks each has more than a block of tokens, and then one, so that one kernel gives codes along both sides.
fn rows(recipe: &Recipe, world: usize) -> [usize; 5] {
    let [most, block] = if world <= 2 { [132, 128] } else { [16; 2] };
    match recipe {
        Recipe::Float8BlockScaling(_) => [most * world, 8 * world - 1, 1, block * world, 4 * world],
        Recipe::DelayedScaling(_) | Recipe::Float8CurrentScaling(_) => [40, 7, 1, 40, 5],
    }
}

/// The scale of a tensor in each step, as a rank makes it.
enum Scales {
    Current(ScaleRule),
    Delayed(Fp8, History),
    Blocks(ScaleRule, Granularity),
}

impl Scales {
    fn new(recipe: &Recipe, role: Role) -> Scales {
        let is_gradient = role == Role::Gradient;
        let codes = |format| match (format, is_gradient) {
            (Format::Hybrid, true) => Fp8::E5M2,
            (Format::Hybrid, false) | (Format::E4M3, _) => Fp8::E4M3,
        };
        match recipe {
            Recipe::DelayedScaling(of) => {
                let to = codes(of.fp8_format);
                let delayed = Delayed {
                    length: of.amax_history_len,
                    margin: of.margin,
                    ..Delayed::transformer_engine(to)
                };
                Scales::Delayed(to, History::new(delayed))
            }
            Recipe::Float8CurrentScaling(of) => Scales::Current(ScaleRule {
                power_of_two: of.power_2_scale,
                ..ScaleRule::transformer_engine(codes(of.fp8_format))
            }),
            Recipe::Float8BlockScaling(of) => {
                let rule = ScaleRule {
                    power_of_two: of.power_2_scale,
                    ..ScaleRule::transformer_engine(Fp8::E4M3)
                };
                let blocks = match role {
                    Role::Input | Role::Gradient => Granularity::BLOCK_1X128,
                    Role::Weight => Granularity::BLOCK_128X128,
                };
                Scales::Blocks(rule, blocks)
            }
        }
    }

    /// What the codes stand for, where so many parts of the columns are quantised by themselves, each by a rank. A delayed scale is
    /// the same on all ranks.
    fn coded(&mut self, of: &Matrix, [down, across]: [usize; 2]) -> Matrix {
        let (rows, columns) = (of.rows(), of.columns);
        let mut values = vec![0.0; of.values.len()];
        for part in 0..down * across {
            let (of_rows, of_columns) = (
                part / across * rows / down..(part / across + 1) * rows / down,
                part % across * columns / across..(part % across + 1) * columns / across,
            );
            let own = of.part(of_rows.clone(), of_columns.clone());
            let own: Vec<f32> = own.into_iter().map(bf16::to_f32).collect();
            let own = quantise::Matrix::new(&own, [of_rows.len(), of_columns.len()], Dtype::Bf16);
            let (to, scale): (Fp8, Scale) = match self {
                Scales::Blocks(rule, blocks) => {
                    let mut found = dequantised(&own, rule, *blocks).into_iter();
                    for row in of_rows {
                        for column in of_columns.clone() {
                            values[row * columns + column] = found.next().expect("as many");
                        }
                    }
                    continue;
                }
                Scales::Current(rule) => (rule.to, rule.of_tensor(twin::amax(&own, rule))),
                Scales::Delayed(to, history) => {
                    let rule = ScaleRule::transformer_engine(*to);
                    let scale = history.scale();
                    history.saw(twin::amax(&own, &rule));
                    (*to, scale)
                }
            };
            let codes = twin::cast(&own, to, scale.multiplier);
            let value = |code: &u8| f64::from(to.value(*code)) * f64::from(scale.stored);
            let mut codes = codes.iter().map(value);
            for row in of_rows {
                for column in of_columns.clone() {
                    values[row * columns + column] = codes.next().expect("as many");
                }
            }
        }
        Matrix { columns, values }
    }

    /// The same as the product over tokens has it, where ranks quantise the rows of each by themselves: with one scale no other
    /// numbers.
    fn along_tokens(&self, of: &Matrix, coded: &Matrix, world: usize) -> Matrix {
        let Scales::Blocks(rule, _) = self else {
            return coded.clone();
        };
        let (rows, columns) = (of.rows(), of.columns);
        let each = rows.div_ceil(world);
        let mut values = vec![0.0; of.values.len()];
        for first in (0..rows).step_by(each) {
            let of_rows = first..(first + each).min(rows);
            let own = of.part(of_rows.clone(), 0..columns);
            let own: Vec<f32> = own.into_iter().map(bf16::to_f32).collect();
            let shape = [of_rows.len(), columns];
            let turned = quantise::Matrix::new(&own, shape, Dtype::Bf16).transposed();
            let turned = quantise::Matrix::new(&turned, [shape[1], shape[0]], Dtype::Bf16);
            let found = dequantised(&turned, rule, Granularity::BLOCK_1X128);
            for (at, found) in found.into_iter().enumerate() {
                let (column, row) = (at / shape[0], first + at % shape[0]);
                values[row * columns + column] = found;
            }
        }
        Matrix { columns, values }
    }

    fn next_step(&mut self) {
        if let Scales::Delayed(_, history) = self {
            history.update();
        }
    }
}

/// A tensor of a layer.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Role {
    Input,
    Weight,
    Gradient,
}

/// What codes with scales of blocks stand for.
fn dequantised(of: &quantise::Matrix<'_>, rule: &ScaleRule, blocks: Granularity) -> Vec<f64> {
    let coded = twin::quantise(of, rule, blocks);
    let ([_, columns], [_, across]) = (of.shape(), blocks.count(of.shape()));
    let down = match blocks {
        Granularity::BLOCK_128X128 => 128,
        _ => 1,
    };
    let value = |(at, code): (usize, &u8)| {
        let scale = coded.scales[at / columns / down * across + at % columns / 128];
        f64::from(rule.to.value(*code)) * f64::from(scale)
    };
    coded.codes.iter().enumerate().map(value).collect()
}

/// What a step's products give: those of the round whose forward pass it has, and of the one whose backward pass.
struct Step {
    y: Wanted,
    backward: Option<[Wanted; 3]>,
}

struct Whole {
    rows: [usize; 5],
    w: Matrix,
    bias: Matrix,
    x: Vec<Matrix>,
    dy: Vec<Matrix>,
    steps: Vec<Step>,
}

fn at(of: &Matrix, row: usize, column: usize) -> f64 {
    of.values[row * of.columns + column]
}

impl Whole {
    /// Each step has a round's forward pass, then the backward pass of the round before. The last one has no new round.
    fn new(recipe: &Recipe, parallel: Parallel, world: usize) -> Whole {
        let [input, output] = match parallel {
            Parallel::Column => FEATURES,
            Parallel::Row => [FEATURES[1], FEATURES[0]],
        };
        let w = Matrix::random(output, input, 0.5, 1);
        let bias = Matrix::random(1, output, 2.0, 2);
        // Amaxes grow and fall from round to round.
        let all = rows(recipe, world);
        let each = (10..).zip(all);
        let sized = |seed: u64| [1.0, 3.0, 0.2][seed as usize % 3];
        let x = |(seed, rows)| Matrix::random(rows, input, sized(seed), 2 * seed);
        let dy = |(seed, rows)| Matrix::random(rows, output, sized(seed + 1), 2 * seed + 1);
        let x: Vec<Matrix> = each.clone().map(x).collect();
        let dy: Vec<Matrix> = each.map(dy).collect();
        let (of_x, of_w, of_dy, parts) = match parallel {
            Parallel::Column => ([1, 1], [world, 1], [1, world], [1, world]),
            Parallel::Row => ([1, world], [1, world], [1, 1], [world, 1]),
        };
        let [mut scales_x, mut scales_w, mut scales_dy] =
            [Role::Input, Role::Weight, Role::Gradient].map(|role| Scales::new(recipe, role));
        let mut steps = Vec::new();
        let mut before: Option<Matrix> = None;
        for step in 0..=all.len() {
            let round = step.min(all.len() - 1);
            let coded_w = scales_w.coded(&w, of_w);
            let coded_x = scales_x.coded(&x[round], of_x);
            let rows = all[round];
            let sums = |k: usize, parts: usize| (parts, of_sum(k / parts));
            let y = Wanted::product_off(
                [rows, output, input],
                sums(input, parts[0]),
                |m, k| at(&coded_x, m, k),
                |k, n| at(&coded_w, n, k),
            );
            let backward = before.take().map(|x: Matrix| {
                let dy = &dy[step - 1];
                let (coded, rows) = (scales_dy.coded(dy, of_dy), dy.rows());
                let dx = Wanted::product_off(
                    [rows, input, output],
                    sums(output, parts[1]),
                    |m, k| at(&coded, m, k),
                    |k, n| at(&coded_w, k, n),
                );
                let turned = scales_dy.along_tokens(dy, &coded, world);
                let dw = Wanted::product_off(
                    [output, input, rows],
                    sums(rows, 1),
                    |m, k| at(&turned, k, m),
                    |k, n| at(&x, k, n),
                );
                let db = Wanted::product([1, output, rows], 1, |_, _| 1.0, |k, n| at(dy, k, n));
                [dx.rounded(), dw, db]
            });
            before = Some(scales_x.along_tokens(&x[round], &coded_x, world));
            steps.push(Step { y, backward });
            for scales in [&mut scales_x, &mut scales_w, &mut scales_dy] {
                scales.next_step();
            }
        }
        Whole {
            rows: all,
            w,
            bias,
            x,
            dy,
            steps,
        }
    }
}

fn tensor(rank: &Communicator, shape: [usize; 2], values: &[bf16]) -> Result<Tensor<bf16>, Error> {
    let tensor = rank.zeros(shape)?;
    tensor.write(values)?;
    Ok(tensor)
}

/// What a rank has of features.
fn own(rank: &Communicator, features: usize) -> Range<usize> {
    let each = features / rank.world() as usize;
    let first = each * rank.rank() as usize;
    first..first + each
}

fn wide<T: Copy + Into<f64>>(values: &[T]) -> Vec<f64> {
    values.iter().map(|value| (*value).into()).collect()
}

/// All steps of a layer on a rank: the bits of what came out.
fn run(
    rank: &Arc<Communicator>,
    userbuffers: &Userbuffers,
    (case, recipe): (&Case, &Recipe),
    whole: &Whole,
) -> Result<Vec<u64>, Error> {
    let mut config = case.layer.clone();
    config.fp8 = Some(*recipe);
    let layer = Linear::new(userbuffers, &config)?;
    let (input, output) = (config.in_features, config.out_features);
    let (inputs, outputs) = match config.parallel {
        Parallel::Column => (0..input, own(rank, output)),
        Parallel::Row => (own(rank, input), 0..output),
    };
    let places = |rows: usize| {
        let shard = rank.shard(rank.rank(), rows);
        match config.parallel {
            Parallel::Column => [shard, 0..rows],
            Parallel::Row => [0..rows, shard],
        }
    };
    let weight = whole.w.part(outputs.clone(), inputs.clone());
    let weight = tensor(rank, layer.weight_shape(), &weight)?;
    let bias = whole.bias.part(0..1, outputs.clone());
    let bias = tensor(rank, layer.bias_shape(), &bias)?;
    let (mut of_weight, mut of_bias) = (
        rank.zeros::<f32>(layer.weight_shape())?,
        rank.zeros::<f32>(layer.bias_shape())?,
    );
    of_weight.write(&vec![BEFORE; of_weight.len()])?;
    of_bias.write(&vec![BEFORE; of_bias.len()])?;
    let parameters = Parameters {
        weight: &weight,
        bias: config.bias.then_some(&bias),
    };
    let before = |shape| Wanted::exactly(f64::from(BEFORE), shape);
    let (mut dw, mut db) = (before([output, input]), before([1, output]));
    let mut bits = Vec::new();
    let mut check = |what: String, wanted: &Wanted, place: [Range<usize>; 2], found: Vec<f64>| {
        let (me, world, [rows, columns]) = (rank.rank(), rank.world(), place);
        let what = format!("{recipe}, {}, rank {me} of {world}: {what}", case.name);
        wanted.check(&what, rows, columns, &found);
        bits.extend(found.iter().map(|value| value.to_bits()));
    };
    let mut before: Option<(usize, Saved)> = None;
    for (number, step) in whole.steps.iter().enumerate() {
        let scope = userbuffers.autocast(None)?;
        let round = number.min(whole.rows.len() - 1);
        let rows = whole.rows[round];
        let [rows_in, rows_out] = places(rows);
        let x = whole.x[round].part(rows_in, inputs.clone());
        let x = tensor(rank, layer.input_shape(rows), &x)?;
        let mut y = rank.zeros(layer.output_shape(rows))?;
        y.fill(0xff)?;
        let saved = layer.forward(rows, &x, &parameters, &mut y)?;
        let wanted = match config.bias {
            true => step.y.clone().plus(&whole.bias.values),
            false => step.y.clone(),
        };
        let place = [rows_out, outputs.clone()];
        check(
            format!("y of {rows} rows"),
            &wanted.rounded(),
            place,
            wide(&y.read()?),
        );
        if let (Some((round, saved)), Some([dx_wanted, dw_more, db_more])) =
            (before.take(), &step.backward)
        {
            let rows = whole.rows[round];
            let [rows_in, rows_out] = places(rows);
            let dy = whole.dy[round].part(rows_out, outputs.clone());
            let dy = tensor(rank, layer.output_shape(rows), &dy)?;
            let mut dx = rank.zeros(layer.input_shape(rows))?;
            dx.fill(0xff)?;
            let gradients = Gradients {
                weight: (!config.frozen).then_some(&mut of_weight),
                bias: config.bias.then_some(&mut of_bias),
            };
            layer.backward(saved, &parameters, &dy, &mut dx, gradients)?;
            let place = [rows_in, inputs.clone()];
            check(
                format!("dx of {rows} rows"),
                dx_wanted,
                place,
                wide(&dx.read()?),
            );
            if !config.frozen {
                dw.add(dw_more);
                let place = [outputs.clone(), inputs.clone()];
                check("dw".into(), &dw, place, wide(&of_weight.read()?));
            }
            if config.bias {
                db.add(db_more);
                let place = [0..1, outputs.clone()];
                check("db".into(), &db, place, wide(&of_bias.read()?));
            }
        }
        before = Some((round, saved));
        scope.end()?;
    }
    Ok(bits)
}

fn recipes() -> [Recipe; 5] {
    let current = Float8CurrentScaling::default();
    let delayed = DelayedScaling {
        amax_history_len: 3,
        ..DelayedScaling::default()
    };
    [
        current.into(),
        delayed.into(),
        Float8CurrentScaling {
            fp8_format: Format::E4M3,
            power_2_scale: true,
            ..current
        }
        .into(),
        DelayedScaling {
            fp8_format: Format::E4M3,
            margin: 1,
            ..delayed
        }
        .into(),
        Float8BlockScaling::default().into(),
    ]
}

/// One case and recipe in each world, or with `WIDE=1` all; so many times, against the same reference.
fn all(parallel: Parallel, world: u32, times: usize) -> Vec<Vec<Vec<u64>>> {
    let wide = wide::wide();
    let cases = of(parallel);
    let recipes = recipes();
    let pairs = (0..cases.len()).flat_map(|case| (0..recipes.len()).map(move |of| (case, of)));
    let pairs = pairs.filter(|(case, of)| {
        let in_blocks = matches!(recipes[*of], Recipe::Float8BlockScaling(_));
        !(in_blocks && cases[*case].layer.keep_gathered)
    });
    let sampled = pairs.enumerate();
    // Of four worlds another recipe each; scales of blocks have a test of their own.
    let sampled =
        sampled.filter(|(number, _)| wide || *number == [6, 12, 18, 25][world as usize - 1]);
    let pairs: Vec<(usize, usize)> = sampled.map(|(_, pair)| pair).collect();
    assert!(!pairs.is_empty());
    let whole = |of: usize| {
        let is_needed = pairs.iter().any(|(_, recipe)| *recipe == of);
        is_needed.then(|| Whole::new(&recipes[of], parallel, world as usize))
    };
    let wholes: Vec<Option<Whole>> = (0..recipes.len()).map(whole).collect();
    let of_rank = |rank: &Arc<Communicator>| {
        let mut bits = Vec::new();
        for (case, of) in &pairs {
            let (case, recipe) = (&cases[*case], &recipes[*of]);
            let whole = wholes[*of].as_ref().expect("one that is needed");
            let shape = [whole.rows[0], FEATURES[0]];
            let modes = vec![QuantizationMode::Fp8];
            let userbuffers = userbuffers_of(rank, shape, case.config, modes)?;
            bits.extend(run(rank, &userbuffers, (case, recipe), whole)?);
        }
        Ok(bits)
    };
    let once = || {
        let found = each(world, of_rank);
        found.unwrap_or_else(|error| panic!("{parallel}, {world} ranks: {error}"))
    };
    (0..times).map(|_| once()).collect()
}

/// Without `WIDE` layers of one kind are in half of the worlds, and of the other kind in the other half.
fn in_worlds(parallel: Parallel) {
    let kind = usize::from(parallel == Parallel::Row);
    for world in (1..=4).filter(|world| wide::wide() || world % 2 != kind) {
        let world = world as u32;
        // Once more for one kind of layers, or with `WIDE=1` for both.
        let times = if world == 3 { 2 } else { 1 };
        let bits = all(parallel, world, times);
        if times == 2 {
            assert!(bits[0].iter().all(|bits| bits.len() > 10_000));
            assert!(bits[0] == bits[1], "{parallel}: other bits");
        }
    }
}

/// A layer with scales of blocks alone, so that it is run without `WIDE=1`, too.
#[test]
fn scales_of_blocks_begin_anew_at_each_ranks_rows() {
    let recipe = Float8BlockScaling::default().into();
    for (parallel, own) in [(Parallel::Column, 0), (Parallel::Row, 3)] {
        let whole = Whole::new(&recipe, parallel, 2);
        let cases = of(parallel);
        let done = each(2, |rank| {
            for at in [0, 3].into_iter().filter(|at| wide::wide() || *at == own) {
                let case = &cases[at];
                let shape = [whole.rows[0], FEATURES[0]];
                let modes = vec![QuantizationMode::Fp8];
                let userbuffers = userbuffers_of(rank, shape, case.config, modes)?;
                run(rank, &userbuffers, (case, &recipe), &whole)?;
            }
            Ok(())
        });
        done.unwrap_or_else(|error| panic!("{parallel}: {error}"));
    }
}

#[test]
fn column_parallel() {
    in_worlds(Parallel::Column);
}

#[test]
fn row_parallel() {
    in_worlds(Parallel::Row);
}
