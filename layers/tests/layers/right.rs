//! Outputs and every gradient, whatever is overlapped.

use super::cases::{Case, FEATURES, of};
use super::reference::{Layer, Round, Wanted};
use super::{each, userbuffers};
use counterflow::prelude::bf16;
use counterflow::{Communicator, Error, Tensor};
use counterflow_layers::overlap::Parallel;
use counterflow_layers::{Gradients, Linear, Parameters, Saved, Userbuffers};
use std::ops::Range;
use std::sync::Arc;

/// Rows of each call, one after another: most, few, fewer than ranks, and as before.
const ROWS: [usize; 5] = [40, 7, 1, 40, 5];
/// What gradients are before the first call.
const BEFORE: f32 = 0.75;

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

/// A layer of a rank, with the features that the rank has.
struct Running<'a> {
    rank: &'a Communicator,
    case: &'a Case,
    layer: Linear,
    inputs: Range<usize>,
    outputs: Range<usize>,
    /// The bits of all that came out.
    bits: Vec<u64>,
}

impl Running<'_> {
    /// The rows that the rank has of input and output.
    fn rows(&self, round: &Round) -> [Range<usize>; 2] {
        let rows = round.x.rows();
        let shard = self.rank.shard(self.rank.rank(), rows);
        match self.case.layer.parallel {
            Parallel::Column => [shard, 0..rows],
            Parallel::Row => [0..rows, shard],
        }
    }

    fn check<T: Copy + Into<f64>>(
        &mut self,
        what: &str,
        wanted: &Wanted,
        [rows, columns]: [Range<usize>; 2],
        found: &[T],
    ) {
        let found: Vec<f64> = found.iter().map(|value| (*value).into()).collect();
        let (rank, case) = (self.rank, self.case.name);
        let what = format!("{case}, rank {} of {}: {what}", rank.rank(), rank.world());
        wanted.check(&what, rows, columns, &found);
        self.bits.extend(found.iter().map(|value| value.to_bits()));
    }

    fn forward(&mut self, round: &Round, parameters: &Parameters<'_>) -> Result<Saved, Error> {
        let (rank, rows) = (self.rank, round.x.rows());
        let [rows_in, rows_out] = self.rows(round);
        let x = round.x.part(rows_in, self.inputs.clone());
        let x = tensor(rank, self.layer.input_shape(rows), &x)?;
        let mut y = garbage(rank, self.layer.output_shape(rows))?;
        let saved = self.layer.forward(rows, &x, parameters, &mut y)?;
        let wanted = match parameters.bias {
            Some(_) => &round.y_biased,
            None => &round.y,
        };
        let place = [rows_out, self.outputs.clone()];
        self.check(&format!("y of {rows} rows"), wanted, place, &y.read()?);
        Ok(saved)
    }

    fn backward(
        &mut self,
        round: &Round,
        saved: Saved,
        parameters: &Parameters<'_>,
        gradients: Gradients<'_>,
    ) -> Result<(), Error> {
        let (rank, rows) = (self.rank, round.x.rows());
        let [rows_in, rows_out] = self.rows(round);
        let dy = round.dy.part(rows_out, self.outputs.clone());
        let dy = tensor(rank, self.layer.output_shape(rows), &dy)?;
        let mut dx = garbage(rank, self.layer.input_shape(rows))?;
        let layer = &self.layer;
        layer.backward(saved, parameters, &dy, &mut dx, gradients)?;
        let place = [rows_in, self.inputs.clone()];
        self.check(&format!("dx of {rows} rows"), &round.dx, place, &dx.read()?);
        Ok(())
    }
}

/// All forward passes of a layer on a rank, then the backward passes, the last one first: by then the buffers have other rows.
/// Gives the bits of all that came out.
pub fn run(
    rank: &Arc<Communicator>,
    userbuffers: &Userbuffers,
    case: &Case,
    whole: &Layer,
) -> Result<Vec<u64>, Error> {
    let (input, output) = (case.layer.in_features, case.layer.out_features);
    let (inputs, outputs) = match case.layer.parallel {
        Parallel::Column => (0..input, own(rank, output)),
        Parallel::Row => (own(rank, input), 0..output),
    };
    let mut running = Running {
        rank,
        case,
        layer: Linear::new(userbuffers, &case.layer)?,
        inputs: inputs.clone(),
        outputs: outputs.clone(),
        bits: Vec::new(),
    };
    let shape = running.layer.weight_shape();
    let weight = whole.w.part(outputs.clone(), inputs.clone());
    let weight = tensor(rank, shape, &weight)?;
    let mut of_weight = rank.zeros::<f32>(shape)?;
    of_weight.write(&vec![BEFORE; of_weight.len()])?;
    let shape = running.layer.bias_shape();
    let bias = tensor(rank, shape, &whole.bias.part(0..1, outputs.clone()))?;
    let mut of_bias = rank.zeros::<f32>(shape)?;
    of_bias.write(&vec![BEFORE; of_bias.len()])?;
    let parameters = Parameters {
        weight: &weight,
        bias: case.layer.bias.then_some(&bias),
    };
    let before = |rows| Wanted::exactly(f64::from(BEFORE), rows);
    let (mut dw, mut db) = (before([output, input]), before([1, output]));
    let forward = |round| Ok((round, running.forward(round, &parameters)?));
    let saved: Result<Vec<_>, Error> = whole.rounds.iter().map(forward).collect();
    for (round, saved) in saved?.into_iter().rev() {
        let gradients = Gradients {
            weight: (!case.layer.frozen).then_some(&mut of_weight),
            bias: case.layer.bias.then_some(&mut of_bias),
        };
        running.backward(round, saved, &parameters, gradients)?;
        if !case.layer.frozen {
            dw.add(&round.dw);
            let place = [outputs.clone(), inputs.clone()];
            running.check("dw", &dw, place, &of_weight.read()?);
        }
        if case.layer.bias {
            db.add(&round.db);
            running.check("db", &db, [0..1, outputs.clone()], &of_bias.read()?);
        }
    }
    Ok(running.bits)
}

/// Cases in that many ranks, each on buffers of its own: every one with `WIDE=1`, else one of them, another in each world.
fn all(parallel: Parallel, world: u32, times: usize) -> Vec<Vec<Vec<u64>>> {
    let features = match parallel {
        Parallel::Column => FEATURES,
        Parallel::Row => [FEATURES[1], FEATURES[0]],
    };
    let parts = match parallel {
        Parallel::Column => [1, world as usize],
        Parallel::Row => [world as usize, 1],
    };
    let whole = Layer::new(features, &ROWS, parts);
    let wide = crate::wide::wide();
    let cases: Vec<_> = of(parallel).into_iter().zip(0..).collect();
    let of_rank = |rank: &Arc<Communicator>| {
        let mut bits = Vec::new();
        let sample = cases
            .iter()
            .filter(|(_, at)| wide || *at == 4 * world as usize % cases.len());
        for (case, _) in sample {
            let userbuffers = userbuffers(rank, [ROWS[0], FEATURES[0]], case.config)?;
            bits.extend(run(rank, &userbuffers, case, &whole)?);
        }
        Ok(bits)
    };
    let once = || {
        let found = each(world, of_rank);
        found.unwrap_or_else(|error| panic!("{parallel}, {world} ranks: {error}"))
    };
    (0..times).map(|_| once()).collect()
}

/// Three ranks have the same bits when all is done once more. Without `WIDE` layers of one kind are in half of the worlds, of the other
/// kind in the other half, and there two ranks have them.
fn twice(parallel: Parallel) {
    let kind = usize::from(parallel == Parallel::Row);
    let worlds = (1..=4).filter(|world| crate::wide::wide() || world % 2 != kind);
    let again = if crate::wide::wide() { 3 } else { 3 - kind };
    for world in worlds {
        let times = if world == again { 2 } else { 1 };
        let bits = all(parallel, world as u32, times);
        if times == 2 {
            assert!(bits[0].iter().all(|bits| bits.len() > 10_000));
            assert!(bits[0] == bits[1], "{parallel}: other bits");
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
