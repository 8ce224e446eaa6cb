//! Outputs and every gradient, whatever is overlapped.

use super::cases::{Case, FEATURES, of};
use super::reference::{Layer, Wanted};
use super::{each, userbuffers};
use counterflow::prelude::bf16;
use counterflow::{Communicator, Error, Tensor};
use counterflow_layers::overlap::Parallel;
use counterflow_layers::{Gradients, Linear, Parameters, Userbuffers};
use std::ops::Range;
use std::sync::Arc;

/// Rows of each call, one after another: most, few, fewer than ranks, and as before.
const ROWS: [usize; 5] = [40, 7, 1, 40, 5];
/// What gradients are before the first call.
const BEFORE: f32 = 0.75;

fn wide(values: &[bf16]) -> Vec<f64> {
    values.iter().map(|value| value.to_f64()).collect()
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

/// Memory that was never written, as far as a layer may know.
fn garbage(rank: &Communicator, shape: [usize; 2]) -> Result<Tensor<bf16>, Error> {
    let tensor = rank.zeros(shape)?;
    tensor.fill(0xff)?; // NaN
    Ok(tensor)
}

/// All calls of a layer on a rank, each compared with the reference. Gives the bits of all that came out.
fn run(
    rank: &Arc<Communicator>,
    userbuffers: &Userbuffers,
    case: &Case,
    whole: &Layer,
) -> Result<Vec<u64>, Error> {
    let layer = Linear::new(userbuffers, &case.layer)?;
    let (input, output) = (case.layer.in_features, case.layer.out_features);
    // Features and rows that this rank has of input and output.
    let (of_input, of_output) = match case.layer.parallel {
        Parallel::Column => (0..input, own(rank, output)),
        Parallel::Row => (own(rank, input), 0..output),
    };
    let weight = whole.w.part(of_output.clone(), of_input.clone());
    let weight = tensor(rank, layer.weight_shape(), &weight)?;
    let bias = whole.bias.part(0..1, of_output.clone());
    let bias = tensor(rank, layer.bias_shape(), &bias)?;
    let parameters = Parameters {
        weight: &weight,
        bias: case.layer.bias.then_some(&bias),
    };
    let mut of_weight = rank.zeros::<f32>(layer.weight_shape())?;
    of_weight.write(&vec![BEFORE; of_weight.len()])?;
    let mut of_bias = rank.zeros::<f32>(layer.bias_shape())?;
    of_bias.write(&vec![BEFORE; of_bias.len()])?;
    let before = |rows| Wanted::exactly(f64::from(BEFORE), rows);
    let (mut dw, mut db) = (before([output, input]), before([1, output]));
    let mut bits = Vec::new();
    for (round, at) in whole.rounds.iter().zip(0..) {
        let rows = round.x.rows();
        let name = format!(
            "{}, {} ranks, round {at} of {rows} rows, rank {}",
            case.name,
            rank.world(),
            rank.rank()
        );
        let chunk = rank.chunk(rank.rank(), rows);
        let (rows_in, rows_out) = match case.layer.parallel {
            Parallel::Column => (chunk, 0..rows),
            Parallel::Row => (0..rows, chunk),
        };
        let x = round.x.part(rows_in.clone(), of_input.clone());
        let x = tensor(rank, layer.input_shape(rows), &x)?;
        let mut y = garbage(rank, layer.output_shape(rows))?;
        let saved = layer.forward(rows, &x, &parameters, &mut y)?;
        let found = y.read()?;
        let wanted = if case.layer.bias {
            &round.y_biased
        } else {
            &round.y
        };
        wanted.check(
            &format!("{name}: y"),
            rows_out.clone(),
            of_output.clone(),
            &wide(&found),
        );
        bits.extend(found.iter().map(|value| u64::from(value.to_bits())));

        let dy = round.dy.part(rows_out, of_output.clone());
        let dy = tensor(rank, layer.output_shape(rows), &dy)?;
        let mut dx = garbage(rank, layer.input_shape(rows))?;
        let gradients = Gradients {
            weight: (!case.layer.frozen).then_some(&mut of_weight),
            bias: case.layer.bias.then_some(&mut of_bias),
        };
        layer.backward(saved, &parameters, &dy, &mut dx, gradients)?;
        let found = dx.read()?;
        round.dx.check(
            &format!("{name}: dx"),
            rows_in,
            of_input.clone(),
            &wide(&found),
        );
        bits.extend(found.iter().map(|value| u64::from(value.to_bits())));

        let wide = |values: &[f32]| {
            values
                .iter()
                .map(|value| f64::from(*value))
                .collect::<Vec<_>>()
        };
        if !case.layer.frozen {
            dw.add(&round.dw);
            let found = of_weight.read()?;
            dw.check(
                &format!("{name}: dw"),
                of_output.clone(),
                of_input.clone(),
                &wide(&found),
            );
            bits.extend(found.iter().map(|value| u64::from(value.to_bits())));
        }
        if case.layer.bias {
            db.add(&round.db);
            let found = of_bias.read()?;
            db.check(
                &format!("{name}: db"),
                0..1,
                of_output.clone(),
                &wide(&found),
            );
            bits.extend(found.iter().map(|value| u64::from(value.to_bits())));
        }
    }
    Ok(bits)
}

/// Cases in that many ranks, each on buffers of its own: every one with `WIDE=1`, else a quarter of them, another in each world.
fn all(parallel: Parallel, world: u32) -> Vec<Vec<u64>> {
    let features = match parallel {
        Parallel::Column => FEATURES,
        Parallel::Row => [FEATURES[1], FEATURES[0]],
    };
    let parts = match parallel {
        Parallel::Column => [1, world as usize],
        Parallel::Row => [world as usize, 1],
    };
    let whole = Layer::new(features, &ROWS, parts);
    let wide = std::env::var_os("WIDE").is_some();
    let cases: Vec<_> = of(parallel).into_iter().zip(0..).collect();
    let of_rank = |rank: &Arc<Communicator>| {
        let mut bits = Vec::new();
        let sample = cases.iter().filter(|(_, at)| wide || at % 4 == world % 4);
        for (case, _) in sample {
            let userbuffers = userbuffers(rank, [ROWS[0], FEATURES[0]], case.config)?;
            bits.extend(run(rank, &userbuffers, case, &whole)?);
        }
        Ok(bits)
    };
    each(world, of_rank).unwrap_or_else(|error| panic!("{parallel}, {world} ranks: {error}"))
}

/// Three ranks have the same bits when all is done once more.
fn twice(parallel: Parallel) {
    for world in 1..=4 {
        let bits = all(parallel, world);
        if world == 3 {
            assert!(bits.iter().all(|bits| bits.len() > 10_000));
            assert!(bits == all(parallel, world), "{parallel}: other bits");
        }
    }
}

#[test]
fn column_parallel() {
    twice(Parallel::Column);
}

#[test]
fn row_parallel() {
    twice(Parallel::Row);
}
