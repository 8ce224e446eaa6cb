//! A norm and a column-parallel layer on emulated ranks, against an unsharded reference in f64.

use super::norm::{KINDS, exactly};
use super::reference::{Matrix, OF_BF16, OF_F32, Wanted};
use super::{each, userbuffers};
use counterflow::prelude::bf16;
use counterflow::{Communicator, Error, Tensor};
use counterflow_layers::overlap::Flags;
use counterflow_layers::{
    Gradients, LayerNormLinear, LayerNormLinearConfig, LayerNormLinearGradients,
    LayerNormLinearParameters, LinearConfig, Norm, Normalization, Parameters,
};
use std::ops::Range;
use std::sync::Arc;

const INPUT: usize = 48;
const OUTPUT: usize = 48;
const ROWS: [usize; 3] = [21, 2, 5];

/// One call: what goes in, and what must come out.
struct Round {
    x: Matrix,
    dy: Matrix,
    y: Wanted,
    dx: Wanted,
    dw: Wanted,
    /// What each row adds to the gradients of γ and β, and by how much it may be off.
    of_gamma: Wanted,
    of_beta: Wanted,
}

struct Layer {
    norm: Norm,
    gamma: Matrix,
    beta: Matrix,
    w: Matrix,
}

impl Layer {
    fn new(kind: Normalization) -> Layer {
        let beta = match kind {
            Normalization::LayerNorm => Matrix::random(1, INPUT, 1.0, 3),
            Normalization::RmsNorm => Matrix {
                columns: INPUT,
                values: vec![0.0; INPUT],
            },
        };
        Layer {
            norm: Norm::new(kind),
            gamma: Matrix::random(1, INPUT, 1.0, 2),
            beta,
            w: Matrix::random(OUTPUT, INPUT, 0.5, 1),
        }
    }

    fn round(&self, rows: usize, parts: usize, seed: u64) -> Round {
        let x = Matrix::random(rows, INPUT, 2.0, seed);
        let dy = Matrix::random(rows, OUTPUT, 1.0, seed + 1);
        let at = |matrix: &Matrix, row: usize, column: usize| {
            matrix.values[row * matrix.columns + column]
        };
        let row = |row: usize| &x.values[row * INPUT..(row + 1) * INPUT];
        let all =
            (0..rows).map(|at| exactly(&self.norm, row(at), &self.gamma.values, &self.beta.values));
        let (normed, deviations): (Vec<_>, Vec<f64>) = all.unzip();
        let normed = Matrix {
            columns: INPUT,
            values: normed.concat(),
        };
        // What is multiplied is rounded to bf16 first.
        let rounded =
            |mut wanted: Wanted, m: usize, n: usize, terms: &dyn Fn(usize, usize) -> f64| {
                for (row, column) in (0..m).flat_map(|row| (0..n).map(move |column| (row, column)))
                {
                    wanted.bounds[row * n + column] += 1.01 * OF_BF16 * terms(row, column);
                }
                wanted
            };
        let y = Wanted::product(
            [rows, OUTPUT, INPUT],
            1,
            |m, k| at(&normed, m, k),
            |k, n| at(&self.w, n, k),
        );
        let y = rounded(y, rows, OUTPUT, &|m, n| {
            (0..INPUT)
                .map(|k| (at(&normed, m, k) * at(&self.w, n, k)).abs())
                .sum()
        });
        let dw = Wanted::product(
            [OUTPUT, INPUT, rows],
            1,
            |m, k| at(&dy, k, m),
            |k, n| at(&normed, k, n),
        );
        let dw = rounded(dw, OUTPUT, INPUT, &|m, n| {
            (0..rows)
                .map(|k| (at(&dy, k, m) * at(&normed, k, n)).abs())
                .sum()
        });
        // The gradient of what is normalised, and through the norm.
        let of_normed = Wanted::product(
            [rows, INPUT, OUTPUT],
            parts,
            |m, k| at(&dy, m, k),
            |k, n| at(&self.w, k, n),
        );
        let of_normed = of_normed.rounded();
        let (mut dx, mut of_gamma) = (of_normed.clone(), of_normed.clone());
        let mean_of = |of: &dyn Fn(usize) -> f64| (0..INPUT).map(of).sum::<f64>() / INPUT as f64;
        for (row, rstd) in deviations.iter().enumerate() {
            let place = |column: usize| row * INPUT + column;
            let center = match self.norm.kind {
                Normalization::LayerNorm => mean_of(&|column| at(&x, row, column)),
                Normalization::RmsNorm => 0.0,
            };
            let layer = if self.norm.kind == Normalization::LayerNorm {
                1.0
            } else {
                0.0
            };
            let unit = |column: usize| (at(&x, row, column) - center) * rstd;
            let gamma = |column: usize| self.gamma.values[column];
            let g = |column: usize| of_normed.values.values[place(column)] * gamma(column);
            let off = |column: usize| of_normed.bounds[place(column)] * gamma(column).abs();
            let (mean, mean_off) = (layer * mean_of(&g), layer * mean_of(&off));
            let along = mean_of(&|column| g(column) * unit(column));
            let along_off = mean_of(&|column| off(column) * unit(column).abs());
            for column in 0..INPUT {
                let value = rstd * (g(column) - mean - unit(column) * along);
                let terms = rstd * (g(column).abs() + mean.abs() + (unit(column) * along).abs());
                let bound = rstd * (off(column) + mean_off + unit(column).abs() * along_off);
                dx.values.values[place(column)] = value;
                dx.bounds[place(column)] =
                    bound + OF_BF16 * (value.abs() + bound) + 64.0 * OF_F32 * terms;
                let sent = of_normed.values.values[place(column)];
                of_gamma.values.values[place(column)] = sent * unit(column);
                of_gamma.bounds[place(column)] = of_normed.bounds[place(column)]
                    * unit(column).abs()
                    + 64.0 * OF_F32 * sent.abs();
            }
        }
        Round {
            x,
            dy,
            y: y.rounded(),
            dx,
            dw,
            of_gamma,
            of_beta: of_normed,
        }
    }
}

/// The sum of some rows.
fn sum(of: &Wanted, rows: Range<usize>) -> Wanted {
    let mut all = Wanted::exactly(0.0, [1, INPUT]);
    for row in rows {
        let range = row * INPUT..(row + 1) * INPUT;
        let values = Matrix {
            columns: INPUT,
            values: of.values.values[range.clone()].to_vec(),
        };
        all.add(&Wanted {
            values,
            bounds: of.bounds[range].to_vec(),
        });
    }
    all
}

fn tensor(rank: &Communicator, shape: [usize; 2], values: &[bf16]) -> Result<Tensor<bf16>, Error> {
    let tensor = rank.zeros(shape)?;
    tensor.write(values)?;
    Ok(tensor)
}

fn wide<T: Copy + Into<f64>>(values: &[T]) -> Vec<f64> {
    values.iter().map(|value| (*value).into()).collect()
}

fn run(rank: &Arc<Communicator>, whole: &Layer, rounds: &[Round]) -> Result<(), Error> {
    let (me, world) = (rank.rank() as usize, rank.world() as usize);
    let outputs = OUTPUT / world * me..OUTPUT / world * (me + 1);
    let flags = Flags {
        ub_overlap_ag: true,
        ub_bulk_dgrad: true,
        ub_bulk_wgrad: true,
        ..Flags::default()
    };
    let config = LayerNormLinearConfig {
        norm: whole.norm,
        linear: LinearConfig {
            flags,
            ub_name: Some("qkv".into()),
            ..LinearConfig::column(INPUT, OUTPUT)
        },
    };
    let layer = LayerNormLinear::new(&userbuffers(rank, [ROWS[0], INPUT], "")?, &config)?;
    let shape = layer.linear().weight_shape();
    let weight = tensor(rank, shape, &whole.w.part(outputs.clone(), 0..INPUT))?;
    let gamma = tensor(rank, [1, INPUT], &whole.gamma.part(0..1, 0..INPUT))?;
    let beta = tensor(rank, [1, INPUT], &whole.beta.part(0..1, 0..INPUT))?;
    let has_beta = whole.norm.kind == Normalization::LayerNorm;
    let parameters = LayerNormLinearParameters {
        layer_norm_weight: &gamma,
        layer_norm_bias: has_beta.then_some(&beta),
        linear: Parameters {
            weight: &weight,
            bias: None,
        },
    };
    for round in rounds {
        let rows = round.x.rows();
        let name = |what: &str| {
            format!(
                "{:?}, rank {me} of {world}, {rows} rows: {what}",
                whole.norm.kind
            )
        };
        let shard = rank.shard(rank.rank(), rows);
        let x = tensor(
            rank,
            layer.linear().input_shape(rows),
            &round.x.part(shard.clone(), 0..INPUT),
        )?;
        let mut y = rank.zeros(layer.linear().output_shape(rows))?;
        let saved = layer.forward(rows, &x, &parameters, &mut y)?;
        round
            .y
            .check(&name("y"), 0..rows, outputs.clone(), &wide(&y.read()?));
        let dy = tensor(rank, y.shape(), &round.dy.part(0..rows, outputs.clone()))?;
        let mut dx = rank.zeros(x.shape())?;
        let (mut of_weight, mut of_gamma, mut of_beta) = (
            rank.zeros::<f32>(shape)?,
            rank.zeros::<f32>([1, INPUT])?,
            rank.zeros::<f32>([1, INPUT])?,
        );
        let gradients = LayerNormLinearGradients {
            layer_norm_weight: &mut of_gamma,
            layer_norm_bias: has_beta.then_some(&mut of_beta),
            linear: Gradients {
                weight: Some(&mut of_weight),
                bias: None,
            },
        };
        layer.backward(saved, &parameters, &dy, &mut dx, gradients)?;
        round
            .dx
            .check(&name("dx"), shard.clone(), 0..INPUT, &wide(&dx.read()?));
        round.dw.check(
            &name("dw"),
            outputs.clone(),
            0..INPUT,
            &wide(&of_weight.read()?),
        );
        let wanted = sum(&round.of_gamma, shard.clone());
        wanted.check(
            &name("the gradient of γ"),
            0..1,
            0..INPUT,
            &wide(&of_gamma.read()?),
        );
        if has_beta {
            let wanted = sum(&round.of_beta, shard);
            wanted.check(
                &name("the gradient of β"),
                0..1,
                0..INPUT,
                &wide(&of_beta.read()?),
            );
        }
    }
    Ok(())
}

#[test]
fn outputs_and_every_gradient() {
    for (kind, world) in KINDS
        .into_iter()
        .flat_map(|kind| [1, 2, 3].map(|world| (kind, world)))
    {
        let whole = Layer::new(kind);
        let rounds = ROWS
            .iter()
            .zip(10..)
            .map(|(rows, seed)| whole.round(*rows, world, 2 * seed));
        let rounds: Vec<Round> = rounds.collect();
        let done = each(world as u32, |rank| run(rank, &whole, &rounds));
        done.unwrap_or_else(|error| panic!("{kind:?}, {world} ranks: {error}"));
    }
}

#[test]
fn what_cannot_be_is_refused() {
    let all = each(1, |rank| {
        let buffers = userbuffers(rank, [8, 16], "")?;
        let norm = Norm::new(Normalization::LayerNorm);
        let config = |linear| LayerNormLinearConfig { norm, linear };
        let told = LayerNormLinear::new(&buffers, &config(LinearConfig::row(16, 16)));
        let told = told.expect_err("a row").to_string();
        assert_eq!(told, "a normalisation before a row-parallel layer");
        let layer = LayerNormLinear::new(&buffers, &config(LinearConfig::column(16, 16)))?;
        let (gamma, w) = (rank.zeros::<bf16>([1, 16])?, rank.zeros::<bf16>([16, 16])?);
        let parameters = LayerNormLinearParameters {
            layer_norm_weight: &gamma,
            layer_norm_bias: None,
            linear: Parameters {
                weight: &w,
                bias: None,
            },
        };
        let (x, mut y) = (rank.zeros([8, 16])?, rank.zeros([8, 16])?);
        let told = layer.forward(8, &x, &parameters, &mut y).expect_err("no β");
        assert_eq!(told.to_string(), "β is not given to LayerNorm");
        let wrong = LayerNormLinearParameters {
            layer_norm_weight: &w,
            ..parameters
        };
        let told = layer.forward(8, &x, &wrong, &mut y).expect_err("γ");
        assert_eq!(told.to_string(), "γ is 16 x 16");
        Ok(())
    });
    all.expect("refusals end nothing");
}
